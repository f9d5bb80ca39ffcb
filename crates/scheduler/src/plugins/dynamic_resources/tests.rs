//! Pods with claims and extended resources, decided with all plugins.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::cluster::claims::DevicePlan;
use crate::cycle::{ProfilePlugins, Rotation};
use crate::nominations::Nominations;
use crate::profile::Profile;

fn object<T: DeserializeOwned>(value: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value).expect("an object"))
}

fn slice(node: &str, devices: &[&str]) -> Value {
    let devices: Value = devices.iter().map(|name| json!({"name": name})).collect();
    json!({"metadata": {"name": node}, "spec": {"driver": "d", "nodeName": node, "devices": devices,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}})
}

fn claim(name: &str, more: Value) -> Value {
    let mut claim = json!({"metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": "5"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}});
    claim.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    claim
}

fn pod(name: &str, spec: Value) -> Arc<PodState> {
    let mut all = json!({"containers": [{"name": "c"}]});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let pod = json!({"metadata": {"name": name, "namespace": "n", "uid": name}, "spec": all});
    Arc::new(PodState::new(object(pod)))
}

fn with_claim(name: &str, claim: &str) -> Arc<PodState> {
    pod(name, json!({"resourceClaims": [{"name": "x", "resourceClaimName": claim}]}))
}

/// Nodes one and two with one device each, of which two offers some extended resource itself.
fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    for (name, own) in [("one", json!({})), ("two", json!({"example.com/plugin": "4"}))] {
        let mut allocatable = json!({"cpu": "4", "memory": "4Gi", "pods": "10"});
        allocatable.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        cluster.set_node(object(json!({"metadata": {"name": name}, "status": {"allocatable": allocatable}})));
    }
    let claims = &mut cluster.resource_claims;
    claims.set_class(
        None,
        Some(&object(json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}}))),
    );
    claims.inventory.set(None, Some(&object(slice("one", &["a"]))));
    claims.inventory.set(None, Some(&object(slice("two", &["b"]))));
    cluster
}

fn decide(cluster: &mut Cluster, pod: &Arc<PodState>) -> Result<(NodeIndex, DevicePlan), String> {
    let plugins = ProfilePlugins::new(Profile::named("default-scheduler"), 0);
    match plugins.decide(pod, cluster, &Nominations::default(), &mut Rotation::default()) {
        Ok(chosen) => Ok((chosen.node, cluster.resource_claims.reserve(pod, chosen.node))),
        Err(no_fit) => Err(no_fit.error.unwrap_or_else(|| no_fit.diagnosis.message())),
    }
}

fn device_of(plan: &DevicePlan) -> String {
    let result = serde_json::to_value(plan.claims[0].allocation.as_ref().unwrap()).unwrap();
    result["devices"]["results"][0]["device"].as_str().unwrap().to_owned()
}

#[test]
fn devices_are_given_once() {
    let mut cluster = cluster();
    for name in ["x", "y", "z"] {
        cluster.resource_claims.set(None, Some(&object(claim(name, json!({})))));
    }
    let (first, plan) = decide(&mut cluster, &with_claim("p", "x")).unwrap();
    let (second, other) = decide(&mut cluster, &with_claim("q", "y")).unwrap();
    assert_ne!((first, device_of(&plan)), (second, device_of(&other)));
    let none = "0/2 nodes are available: 2 cannot allocate all claims.";
    assert_eq!(decide(&mut cluster, &with_claim("r", "z")).unwrap_err(), none);
    // Another pod with the same claim waits for the first one's write.
    let waiting = "0/2 nodes are available: resource claim n/x is in the process of being allocated.";
    assert_eq!(decide(&mut cluster, &with_claim("s", "x")).unwrap_err(), waiting);
    // The write failed: the device is free again.
    assert!(cluster.resource_claims.finish_pending("p") && !cluster.resource_claims.finish_pending("p"));
    let (third, _) = decide(&mut cluster, &with_claim("r", "z")).unwrap();
    assert_eq!(third, first);
}

#[test]
fn written_allocations_outlive_stale_events() {
    let mut cluster = cluster();
    let allocated = |version: &str| {
        let result = json!({"request": "r", "driver": "d", "pool": "one", "device": "a"});
        let status = json!({"allocation": {"devices": {"results": [result]}}});
        claim(
            "x",
            json!({"metadata": {"name": "x", "namespace": "n", "uid": "x", "resourceVersion": version}, "status": status}),
        )
    };
    let before = object(claim("x", json!({})));
    cluster.resource_claims.set(None, Some(&before));
    cluster.resource_claims.set(None, Some(&object(claim("y", json!({})))));
    decide(&mut cluster, &with_claim("p", "x")).unwrap();
    cluster.resource_claims.store(object(allocated("7")));
    cluster.resource_claims.finish_pending("p");
    // The informer is behind: the finalizer, then the allocation.
    cluster.resource_claims.set(
        Some(&before),
        Some(&object(claim(
            "x",
            json!({"metadata": {"name": "x", "namespace": "n", "uid": "x", "resourceVersion": "6"}}),
        ))),
    );
    assert_eq!(device_of(&decide(&mut cluster, &with_claim("q", "y")).unwrap().1), "b");
    cluster.resource_claims.finish_pending("q");
    let now = object(allocated("7"));
    cluster.resource_claims.set(Some(&before), Some(&now));
    assert_eq!(device_of(&decide(&mut cluster, &with_claim("q", "y")).unwrap().1), "b");
    cluster.resource_claims.finish_pending("q");
    cluster.resource_claims.set(Some(&now), None);
    assert!(cluster.resource_claims.in_use().is_empty());
}

#[test]
fn allocated_claims_decide_the_node() {
    let mut cluster = cluster();
    let selector = |node: &str| json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]});
    let status = |node: &str, users: Value| json!({"status": {"reservedFor": users, "allocation": {"nodeSelector": selector(node)}}});
    let user = |name: &str| json!({"resource": "pods", "name": name, "uid": name});
    cluster.resource_claims.set(None, Some(&object(claim("x", status("two", json!([user("other")]))))));
    let (node, plan) = decide(&mut cluster, &with_claim("p", "x")).unwrap();
    assert_eq!(cluster.node(node).name(), "two");
    assert!(plan.claims[0].allocation.is_none());
    for (users, is_freed) in [(json!([]), true), (json!([user("p")]), true), (json!([user("q")]), false)] {
        cluster.resource_claims.set(None, Some(&object(claim("x", status("three", users.clone())))));
        let no_fit = decide(&mut cluster, &with_claim("p", "x")).unwrap_err();
        assert_eq!(no_fit, "0/2 nodes are available: 2 resourceclaim not available on the node.");
        let cycle = cluster.resource_claims.cycle.take().unwrap();
        assert_eq!(cycle.to_deallocate().is_some(), is_freed, "{users}");
    }
}

#[test]
fn preferred_devices_score_higher() {
    let mut cluster = cluster();
    cluster.resource_claims.set_class(None, Some(&object(json!({"metadata": {"name": "b"}, "spec": {"selectors": [{"cel": {"expression": "device.attributes['d'].?best.orValue(false)"}}]}}))));
    let mut best = slice("two", &["b"]);
    best["spec"]["devices"][0]["attributes"] = json!({"best": {"bool": true}});
    cluster.resource_claims.inventory.set(Some(&object(slice("two", &["b"]))), Some(&object(best)));
    let list = json!([{"name": "r", "firstAvailable": [{"name": "best", "deviceClassName": "b"}, {"name": "any", "deviceClassName": "gpu"}]}]);
    for turn in 0..8 {
        let name = format!("c{turn}");
        cluster
            .resource_claims
            .set(None, Some(&object(claim(&name, json!({"spec": {"devices": {"requests": list}}})))));
        let (node, _) = decide(&mut cluster, &with_claim("p", &name)).unwrap();
        assert_eq!(cluster.node(node).name(), "two");
        cluster.resource_claims.finish_pending("p");
    }
}

#[test]
fn extended_resources_become_claims() {
    let mut cluster = cluster();
    let asks = |amounts: &[(&str, &str)]| {
        let requests: serde_json::Map<String, Value> =
            amounts.iter().map(|(name, n)| ((*name).to_owned(), json!(n))).collect();
        pod("p", json!({"containers": [{"name": "c", "resources": {"requests": requests}}]}))
    };
    let (_, plan) = decide(&mut cluster, &asks(&[("cpu", "1"), ("example.com/gpu", "1")])).unwrap();
    let extended = plan.extended.unwrap();
    let made = serde_json::to_value(&extended.claim).unwrap();
    assert_eq!(made["metadata"]["generateName"], "p-extended-resources-");
    assert_eq!(made["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"], "true");
    let request = json!({"name": "container-0-request-1", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}});
    assert_eq!(made["spec"]["devices"]["requests"], json!([request]));
    let mapping =
        json!([{"containerName": "c", "resourceName": "example.com/gpu", "requestName": "container-0-request-1"}]);
    assert_eq!(serde_json::to_value(&extended.mappings).unwrap(), mapping);
    cluster.resource_claims.finish_pending("p");
    // The class can be named as well; a resource of a device plugin is the node's own.
    let (node, plan) =
        decide(&mut cluster, &asks(&[("deviceclass.resource.kubernetes.io/gpu", "1"), ("example.com/plugin", "2")]))
            .unwrap();
    assert_eq!(cluster.node(node).name(), "two");
    assert!(plan.extended.is_some());
    cluster.resource_claims.finish_pending("p");
    for (amounts, expected) in [
        (vec![("example.com/gpu", "2")], "0/2 nodes are available: 2 cannot allocate all claims."),
        (vec![("example.com/none", "1")], "0/2 nodes are available: 2 Insufficient example.com/none."),
    ] {
        assert_eq!(decide(&mut cluster, &asks(&amounts)).unwrap_err(), expected);
    }
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}]);
    let left = claim(
        "left",
        json!({"metadata": {"name": "left", "namespace": "n", "uid": "left", "ownerReferences": owner,
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}}}),
    );
    cluster.resource_claims.set(None, Some(&object(left)));
    let text = "0/2 nodes are available: 2 cannot schedule extended resource claim.";
    assert_eq!(decide(&mut cluster, &asks(&[("example.com/gpu", "1")])).unwrap_err(), text);
}

#[test]
fn init_containers_reuse_the_devices_of_others() {
    let mut cluster = cluster();
    cluster
        .resource_claims
        .inventory
        .set(Some(&object(slice("one", &["a"]))), Some(&object(slice("one", &["a", "c", "d", "e"]))));
    let container =
        |name: &str, amount: &str| json!({"name": name, "resources": {"requests": {"example.com/gpu": amount}}});
    let spec = json!({"initContainers": [container("i", "1"), container("j", "3")], "containers": [container("c", "1"), container("d", "1")]});
    let (_, plan) = decide(&mut cluster, &pod("p", spec)).unwrap();
    let extended = plan.extended.unwrap();
    let made = serde_json::to_value(&extended.claim).unwrap();
    let requests: Vec<(String, i64)> = made["spec"]["devices"]["requests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|request| (request["name"].as_str().unwrap().to_owned(), request["exactly"]["count"].as_i64().unwrap()))
        .collect();
    let expected = [("container-1-request-0", 1), ("container-2-request-0", 1), ("container-3-request-0", 1)];
    assert_eq!(requests, expected.map(|(name, count)| (name.to_owned(), count)));
    let used = extended.mappings.iter().map(|mapping| format!("{}:{}", mapping.container_name, mapping.request_name));
    let used: Vec<String> = used.collect();
    assert_eq!(
        used,
        [
            "c:container-2-request-0",
            "d:container-3-request-0",
            "i:container-2-request-0",
            "j:container-2-request-0",
            "j:container-3-request-0",
            "j:container-1-request-0"
        ]
    );
}

#[test]
fn errors_end_the_decision() {
    let mut cluster = cluster();
    cluster.resource_claims.set_class(None, Some(&object(json!({"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "device.attributes['d'].no"}}]}}))));
    cluster.resource_claims.set(None, Some(&object(claim("x", json!({})))));
    let text = "running \"DynamicResources\" filter plugin: class gpu: selector #0: CEL runtime error: no such key: no";
    assert_eq!(decide(&mut cluster, &with_claim("p", "x")).unwrap_err(), text);
    let gone = "0/2 nodes are available: request r: device class gpu does not exist.";
    let class = object(json!({"metadata": {"name": "gpu"}, "spec": {}}));
    cluster.resource_claims.set_class(Some(&class), None);
    assert_eq!(decide(&mut cluster, &with_claim("p", "x")).unwrap_err(), gone);
}

#[test]
fn pods_that_need_a_feature_run_where_it_is_declared() {
    let mut cluster = cluster();
    let rules =
        json!([{"name": "c", "restartPolicy": "Never", "restartPolicyRules": [{"action": "RestartAllContainers"}]}]);
    let needs = pod("p", json!({"containers": rules}));
    let text = "0/2 nodes are available: 2 node(s) didn't match Pod's required features.";
    assert_eq!(decide(&mut cluster, &needs).unwrap_err(), text);
    cluster.set_node(object(
        json!({"metadata": {"name": "three"}, "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "9"},
        "declaredFeatures": ["RestartAllContainersOnContainerExits"]}}),
    ));
    let (node, _) = decide(&mut cluster, &needs).unwrap();
    assert_eq!(cluster.node(node).name(), "three");
}
