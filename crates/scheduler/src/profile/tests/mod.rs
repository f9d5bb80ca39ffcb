//! Each plugin's verdicts and scores as tables.

mod random;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use super::plugin;
use crate::cluster::pod::PodState;
use crate::cluster::{Cluster, NodeIndex};
use crate::framework::{Prepared, View};
use crate::profile::Profile;

fn object<K: serde::de::DeserializeOwned>(value: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(value).unwrap())
}

fn pod_of(name: &str, labels: Value, spec: Value) -> Arc<Pod> {
    let mut full = json!({"containers": [{"name": "c", "image": "app"}]});
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    object(json!({"metadata": {"name": name, "namespace": "n", "uid": name, "labels": labels}, "spec": full}))
}

fn requests(resources: Value) -> Value {
    json!({"containers": [{"name": "c", "image": "app", "resources": {"requests": resources}}]})
}

/// Node `a`: tainted, in zone 1. Node `b`: cordoned, in zone 2, with a pod. Node `c`: small, without a zone.
fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    let node = |name: &str, labels: Value, spec: Value, cpu: &str, images: Value| -> Arc<Node> {
        object(json!({"metadata": {"name": name, "labels": labels}, "spec": spec,
            "status": {"allocatable": {"cpu": cpu, "memory": "4Gi", "pods": "2", "example.com/gpu": "1"}, "images": images}}))
    };
    let host = "kubernetes.io/hostname";
    let taints = json!([{"key": "team", "value": "x", "effect": "NoSchedule"},
        {"key": "slow", "effect": "PreferNoSchedule"}]);
    let image = json!([{"names": ["app:latest"], "sizeBytes": 600 * 1024 * 1024}]);
    cluster.set_node(node("a", json!({"zone": "1", host: "a"}), json!({"taints": taints}), "4", json!([])));
    cluster.set_node(node("b", json!({"zone": "2", host: "b"}), json!({"unschedulable": true}), "4", image));
    cluster.set_node(node("c", json!({host: "c"}), json!({}), "1", json!([])));
    let anti = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "loud"}}}]}});
    let placed = json!({"affinity": anti, "containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 80}],
        "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}}]});
    cluster.set_pod(&pod_of("placed", json!({"app": "web"}), placed), "b");
    cluster
}

fn verdicts(cluster: &mut Cluster, name: &str, pod: &Arc<PodState>) -> String {
    let plugin = plugin(name, &Profile::named("default-scheduler")).unwrap();
    let filter = match plugin.filter(pod, cluster) {
        Prepared::Nothing => return "all fit".into(),
        Prepared::Reject(rejection) => return format!("rejected: {}", rejection.reasons.join(", ")),
        Prepared::Filter(filter) => filter,
        Prepared::Only(names, _) => return format!("only {}", names.into_iter().collect::<Vec<_>>().join(" ")),
    };
    let mut found = BTreeMap::new();
    for (index, node) in cluster.nodes() {
        let verdict = match filter.check(&View { cluster, index, node, removed: &[], added: &[] }) {
            None => "fits".to_owned(),
            Some(rejection) => {
                let mark = if rejection.unresolvable { "!" } else { "" };
                format!("{}{mark}", rejection.reasons.join("+"))
            }
        };
        found.insert(node.name().to_owned(), verdict);
    }
    found.into_iter().map(|(name, verdict)| format!("{name}: {verdict}")).collect::<Vec<_>>().join("; ")
}

fn scores(cluster: &mut Cluster, profile: &Profile, name: &str, pod: &Arc<PodState>) -> Option<Vec<i64>> {
    let mut feasible: Vec<NodeIndex> = cluster.nodes().map(|(index, _)| index).collect();
    feasible.sort_by_key(|index| cluster.node(*index).name().to_owned());
    let scorer = plugin(name, profile).unwrap().scorer(pod, cluster, &feasible)?;
    let mut scores: Vec<i64> = feasible.iter().map(|index| scorer.score(*index, cluster.node(*index))).collect();
    scorer.normalize(&mut scores);
    Some(scores)
}

#[test]
fn filters_report_kubernetes_messages() {
    let near = |kind: &str, key: &str, app: &str| {
        json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution":
            [{"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}]}}})
    };
    let fields = |values: Value| {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
            [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": values}]}]}}}})
    };
    let spread = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}}]});
    let web = json!({"app": "web"});
    let none = json!({});
    let taint = "node(s) had untolerated taint(s)!";
    let selector = "node(s) didn't match Pod's node affinity/selector!";
    for (name, labels, spec, expected) in [
        ("TaintToleration", &none, json!({}), format!("a: {taint}; b: fits; c: fits")),
        (
            "TaintToleration",
            &none,
            json!({"tolerations": [{"key": "team", "operator": "Exists"}]}),
            "a: fits; b: fits; c: fits".into(),
        ),
        ("NodeUnschedulable", &none, json!({}), "a: fits; b: node(s) were unschedulable!; c: fits".into()),
        ("NodeUnschedulable", &none, json!({"tolerations": [{"operator": "Exists"}]}), "all fit".into()),
        ("NodeAffinity", &none, json!({}), "all fit".into()),
        (
            "NodeAffinity",
            &none,
            json!({"nodeSelector": {"zone": "1"}}),
            format!("a: fits; b: {selector}; c: {selector}"),
        ),
        ("NodeAffinity", &none, fields(json!(["b", "x"])), "only b x".into()),
        ("NodeAffinity", &none, fields(json!([])), "rejected: pod affinity terms conflict".into()),
        (
            "NodePorts",
            &none,
            json!({"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 80}]}]}),
            "a: fits; b: node(s) didn't have free ports for the requested pod ports; c: fits".into(),
        ),
        (
            "NodeResourcesFit",
            &none,
            requests(json!({"cpu": "2"})),
            "a: fits; b: Insufficient cpu; c: Insufficient cpu!".into(),
        ),
        (
            "NodeResourcesFit",
            &none,
            requests(json!({"cpu": "5", "memory": "5Gi"})),
            "a: Insufficient cpu+Insufficient memory!; b: Insufficient cpu+Insufficient memory!; \
             c: Insufficient cpu+Insufficient memory!"
                .into(),
        ),
        (
            "NodeResourcesFit",
            &none,
            requests(json!({"example.com/gpu": "2"})),
            "a: Insufficient example.com/gpu!; b: Insufficient example.com/gpu!; c: Insufficient example.com/gpu!"
                .into(),
        ),
        (
            "PodTopologySpread",
            &web,
            spread.clone(),
            "a: fits; b: node(s) didn't match pod topology spread constraints; \
             c: node(s) didn't match pod topology spread constraints (missing required label)!"
                .into(),
        ),
        (
            "PodTopologySpread",
            &none,
            spread,
            "a: fits; b: fits; \
             c: node(s) didn't match pod topology spread constraints (missing required label)!"
                .into(),
        ),
        (
            "InterPodAffinity",
            &none,
            near("podAffinity", "zone", "web"),
            "a: node(s) didn't match pod affinity rules!; b: fits; c: node(s) didn't match pod affinity rules!".into(),
        ),
        (
            "InterPodAffinity",
            &json!({"app": "own"}),
            near("podAffinity", "zone", "own"),
            "a: fits; b: fits; c: node(s) didn't match pod affinity rules!".into(),
        ),
        (
            "InterPodAffinity",
            &none,
            near("podAntiAffinity", "zone", "web"),
            "a: fits; b: node(s) didn't match pod anti-affinity rules; c: fits".into(),
        ),
        (
            "InterPodAffinity",
            &json!({"app": "loud"}),
            json!({}),
            "a: fits; b: node(s) didn't satisfy existing pods anti-affinity rules; c: fits".into(),
        ),
        (
            "VolumeRestrictions",
            &none,
            json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}]}),
            "rejected: persistentvolumeclaim \"x\" not found".into(),
        ),
        (
            "DynamicResources",
            &none,
            json!({"resourceClaims": [{"name": "d", "resourceClaimName": "x"}]}),
            "rejected: resourceclaim.resource.k8s.io \"x\" not found".into(),
        ),
    ] {
        let pod = Arc::new(PodState::new(pod_of("new", labels.clone(), spec.clone())));
        assert_eq!(verdicts(&mut cluster(), name, &pod), expected, "{name}: {spec}");
    }
}

#[test]
fn scores_equal_the_published_formulas() {
    let default = Profile::named("default-scheduler");
    let prefers_zone = json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 10, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}},
        {"weight": 30, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["2"]}]}}]}}});
    let prefers_web = |kind: &str| {
        json!({"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 7, "podAffinityTerm":
            {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}}]}}})
    };
    let soft = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": "web"}}}]});
    for (name, spec, expected) in [
        // One mild taint on a, none on the others.
        ("TaintToleration", json!({}), Some(vec![0, 100, 100])),
        ("NodeAffinity", prefers_zone, Some(vec![25, 100, 0])),
        ("NodeAffinity", json!({}), None),
        // (4000-1000)/4000 and (4096-1024)/4096; (4000-4000) and (4096-2048)/4096; 0 and 75.
        ("NodeResourcesFit", requests(json!({"cpu": "1", "memory": "1Gi"})), Some(vec![75, 25, 37])),
        // a: from balance 100 to 100. b: from |0.75-0.25|/2 to |1-0.5|/2, the same. c: to |1-0.25|/2.
        ("NodeResourcesBalancedAllocation", requests(json!({"cpu": "1", "memory": "1Gi"})), Some(vec![75, 75, 56])),
        ("NodeResourcesBalancedAllocation", json!({}), None),
        // 600 MiB on one of three nodes: (200 MiB - 23 MiB) of (1000 MiB - 23 MiB).
        ("ImageLocality", json!({}), Some(vec![0, 18, 0])),
        ("InterPodAffinity", prefers_web("podAffinity"), Some(vec![0, 100, 0])),
        ("InterPodAffinity", prefers_web("podAntiAffinity"), Some(vec![100, 0, 100])),
        // One pod on b: its raw score is round(ln 5) = 2, the others' 0.
        ("PodTopologySpread", soft, Some(vec![100, 0, 100])),
        ("PodTopologySpread", json!({}), None),
    ] {
        let pod = Arc::new(PodState::new(pod_of("new", json!({"app": "web"}), spec.clone())));
        assert_eq!(scores(&mut cluster(), &default, name, &pod), expected, "{name}: {spec}");
    }
}

#[test]
fn pods_of_a_service_are_spread_by_default() {
    let mut cluster = cluster();
    let pod = Arc::new(PodState::new(pod_of("new", json!({"app": "web"}), json!({}))));
    let default = Profile::named("default-scheduler");
    assert_eq!(scores(&mut cluster, &default, "PodTopologySpread", &pod), None);
    let service = json!({"metadata": {"namespace": "n", "name": "s"}, "spec": {"selector": {"app": "web"}}});
    cluster.workloads.set_service(None, Some(&object(service)));
    // Skews 3 and 5; only b has a pod, and all three nodes count though none has the real zone label.
    // b: 1 * ln 5 + 2 = 3.6 → 4, the others 2: 100 * (4 + 2 - 4) / 4 = 50.
    assert_eq!(scores(&mut cluster, &default, "PodTopologySpread", &pod), Some(vec![100, 50, 100]));
    let mut listed = Profile::named("default-scheduler");
    listed.spread_defaults = super::SpreadDefaults::List(vec![
        serde_json::from_value(json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}))
            .unwrap(),
    ]);
    let instance = plugin("PodTopologySpread", &listed).unwrap();
    assert!(matches!(instance.filter(&pod, &mut cluster), Prepared::Filter(_)));
}
