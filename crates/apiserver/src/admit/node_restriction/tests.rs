use super::super::tests::run_as;
use super::*;
use crate::authorize::Decision;
use crate::object_reader::tests::{Fixed, Unreadable};
use crate::request::{Target, User};
use serde_json::json;

struct DenyAll;

impl Authorizer for DenyAll {
    fn decide(&self, _user: &User, _target: &Target) -> Decision {
        Decision::NoOpinion(String::new())
    }
}

#[tokio::test]
async fn a_node_writes_only_its_own() {
    let user = User::named("system:node:one", &["system:nodes"]);
    let plugin = NodeRestriction::new(Arc::new(DenyAll));
    let none = Fixed::new(vec![]);
    let node = |name: &str, labels: Value| json!({"kind": "Node", "metadata": {"name": name, "labels": labels}});
    let pod =
        |node: &str| json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": node}});
    let cases: Vec<(Operation, &str, Value, Option<Value>, &str)> = vec![
        (Operation::Create, "nodes", node("one", json!({"kubernetes.io/os": "linux"})), None, ""),
        (Operation::Create, "nodes", node("two", json!({})), None, "is not allowed to modify node"),
        (
            Operation::Create,
            "nodes",
            node("one", json!({"node-role.kubernetes.io/control-plane": ""})),
            None,
            "is not allowed to set the following labels: node-role.kubernetes.io/control-plane",
        ),
        (
            Operation::Update,
            "nodes",
            node("one", json!({"node-restriction.kubernetes.io/team": "a"})),
            Some(node("one", json!({}))),
            "is not allowed to modify labels: node-restriction.kubernetes.io/team",
        ),
        (Operation::Update, "pods/status", pod("one"), Some(pod("one")), ""),
        (Operation::Update, "pods/status", pod("two"), Some(pod("two")), "can only update pod status for pods with"),
        (Operation::Delete, "pods", Value::Null, Some(pod("two")), "can only delete pods with spec.nodeName"),
        (Operation::Create, "pods", pod("one"), None, "can only create mirror pods"),
    ];
    for (operation, resource, object, old, part) in cases {
        let result = run_as(&user, &plugin, operation, ("", resource), object.clone(), old, &none).await;
        match result {
            Ok(_) => assert!(part.is_empty(), "{object} was accepted"),
            Err(message) => assert!(!part.is_empty() && message.contains(part), "{message}"),
        }
    }
}

/// Runs the plugin as node `one`; returns the error, if any.
async fn refusal(
    operation: Operation,
    (group, resource): (&str, &str),
    object: Value,
    old: Option<Value>,
    objects: &dyn ObjectReader,
) -> Option<String> {
    let user = User::named("system:node:one", &["system:nodes"]);
    let plugin = NodeRestriction::new(Arc::new(DenyAll));
    run_as(&user, &plugin, operation, (group, resource), object, old, objects).await.err()
}

#[tokio::test]
async fn a_node_sets_neither_its_owners_nor_its_pod_networks() {
    let none = Fixed::new(vec![]);
    let node = |spec: Value, owners: Value| json!({"kind": "Node", "metadata": {"name": "one", "ownerReferences": owners}, "spec": spec});
    let plain = || node(json!({}), json!([]));
    let assigned = || node(json!({"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]}), json!([]));
    let owned = || node(json!({}), json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "u"}]));
    let tainted = || node(json!({"taints": [{"key": "a", "effect": "NoSchedule"}]}), json!([]));
    let refused = |why: &str| Some(format!("nodes \"one\" is forbidden: node \"one\" is not allowed to {why}"));
    for resource in ["nodes", "nodes/status"] {
        for (object, old, expected) in [
            (owned(), plain(), refused("modify ownerReferences")),
            (plain(), owned(), refused("modify ownerReferences")),
            (owned(), owned(), None),
            (tainted(), plain(), refused("modify taints")),
            (plain(), tainted(), refused("modify taints")),
            (assigned(), plain(), refused("modify podCIDRs")),
            (plain(), assigned(), refused("modify podCIDRs")),
            (assigned(), assigned(), None),
        ] {
            let case = format!("{resource}: {old} to {object}");
            let found = refusal(Operation::Update, ("", resource), object, Some(old), &none).await;
            assert_eq!(found, expected, "{case}");
        }
    }
    for (spec, expected) in [
        (json!({}), None),
        (json!({"podCIDR": "0.0.0.0/1"}), refused("set podCIDRs")),
        (json!({"podCIDRs": ["10.244.0.0/16"]}), refused("set podCIDRs")),
    ] {
        let object = node(spec, json!([]));
        assert_eq!(refusal(Operation::Create, ("", "nodes"), object, None, &none).await, expected);
    }
}

#[tokio::test]
async fn a_mirror_pod_belongs_to_the_node_and_refers_to_no_api_objects() {
    let objects = Fixed::new(vec![("", "nodes", json!({"metadata": {"name": "one", "uid": "u"}}))]);
    let owner = |uid: &str| json!({"apiVersion": "v1", "kind": "Node", "name": "one", "uid": uid, "controller": true});
    let pod = |owners: Value, spec: Value| {
        let mut pod = json!({"kind": "Pod", "spec": spec, "metadata": {"name": "p", "namespace": "n",
            "annotations": {"kubernetes.io/config.mirror": "h"}, "ownerReferences": owners}});
        pod["spec"]["nodeName"] = "one".into();
        pod
    };
    let container = |part: Value| json!({"containers": [part]});
    let claims = json!({"resourceClaims": [{"name": "r", "resourceClaimName": "c"}]});
    for (owners, spec, why) in [
        (json!([owner("u")]), json!({}), ""),
        (json!([owner("other")]), json!({}), "node one UID mismatch: expected other got u"),
        (json!([]), json!({}), "node \"one\" can only create pods with an owner reference set to itself"),
        (json!([owner("u")]), claims, "node \"one\" can not create pods that reference resourceclaims"),
        (
            json!([owner("u")]),
            container(json!({"envFrom": [{"configMapRef": {"name": "c"}}]})),
            "node \"one\" can not create pods that reference configmaps",
        ),
        (
            json!([owner("u")]),
            json!({"volumes": [{"name": "v", "projected": {"sources": [{"clusterTrustBundle": {}}]}}]}),
            "node \"one\" can not create pods that reference clustertrustbundles",
        ),
    ] {
        let expected = (!why.is_empty()).then(|| format!("pods \"p\" is forbidden: {why}"));
        let found = refusal(Operation::Create, ("", "pods"), pod(owners, spec), None, &objects).await;
        assert_eq!(found, expected, "{why}");
    }
}

#[tokio::test]
async fn a_node_cannot_change_what_the_scheduler_allocated() {
    let pod = |status: Value| json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": "one"}, "status": status});
    for (status, why) in [
        (json!({"phase": "Running"}), ""),
        (json!({"resourceClaimStatuses": [{"name": "r", "resourceClaimName": "c"}]}), "resource claim statues"),
        (json!({"extendedResourceClaimStatus": {"resourceClaimName": "c"}}), "extended resource claim status"),
    ] {
        let old = Some(pod(json!({})));
        let found = refusal(Operation::Update, ("", "pods/status"), pod(status), old, &Fixed::new(vec![])).await;
        let expected = (!why.is_empty()).then(|| format!("pods \"p\" is forbidden: node \"one\" cannot update {why}"));
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn tokens_are_for_the_nodes_own_pods_and_their_audiences() {
    let pod = |name: &str, node: &str, volumes: Value| {
        let metadata = json!({"name": name, "namespace": "n", "uid": format!("{name}-uid")});
        ("", "pods", json!({"metadata": metadata, "spec": {"nodeName": node, "volumes": volumes}}))
    };
    let projected = json!([{"projected": {"sources": [{"serviceAccountToken": {"audience": "vault"}}]}}]);
    let claimed = json!([{"persistentVolumeClaim": {"claimName": "gone"}}]);
    let objects =
        Fixed::new(vec![pod("own", "one", projected), pod("foreign", "two", json!([])), pod("claims", "one", claimed)]);
    let request = |name: &str, uid: &str, audiences: Value| {
        json!({"kind": "TokenRequest", "metadata": {"name": "sa", "namespace": "n"}, "spec": {"audiences": audiences,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}}})
    };
    for (object, why) in [
        (request("own", "own-uid", json!(["vault"])), ""),
        (request("", "u", json!([])), "node requested token not bound to a pod"),
        (request("own", "", json!([])), "node requested token with a pod binding without a uid"),
        (
            request("foreign", "foreign-uid", json!([])),
            "node requested token bound to a pod scheduled on a different node",
        ),
        (
            request("own", "other", json!([])),
            "the UID in the bound object reference (other) does not match the UID in record. The object might have \
             been deleted and then recreated",
        ),
        (request("own", "own-uid", json!(["vault", "b"])), "node may only request 0 or 1 audiences"),
        (
            request("own", "own-uid", json!(["db"])),
            "audience \"db\" not found in pod spec volume, system:node:one is not authorized to request tokens for \
             this audience",
        ),
        (
            request("claims", "claims-uid", json!(["db"])),
            "error validating audience \"db\": persistentvolumeclaim \"gone\" not found",
        ),
    ] {
        let expected = (!why.is_empty()).then(|| format!("serviceaccounts \"sa\" is forbidden: {why}"));
        let found = refusal(Operation::Create, ("", "serviceaccounts/token"), object, None, &objects).await;
        assert_eq!(found, expected, "{why}");
    }
}

#[tokio::test]
async fn an_admitted_eviction_deletes_pods_of_the_node_only() {
    for (bound_to, allowed) in [("one", true), ("two", false)] {
        let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": bound_to}});
        let target = ("", "pods/eviction");
        let refused = refusal(Operation::Delete, target, json!({}), Some(pod), &Fixed::new(vec![])).await;
        assert_eq!(refused.is_none(), allowed, "{bound_to}: {refused:?}");
    }
}

#[tokio::test]
async fn writes_are_refused_if_objects_cannot_be_read() {
    let token = json!({"kind": "TokenRequest", "metadata": {"name": "sa", "namespace": "n"}, "spec": {
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}}});
    let eviction = json!({"kind": "Eviction", "metadata": {"name": "p", "namespace": "n"}});
    for (resource, object) in [("serviceaccounts/token", token), ("pods/eviction", eviction)] {
        let why = refusal(Operation::Create, ("", resource), object, None, &Unreadable).await.unwrap();
        assert!(why.contains("cannot be read"), "{why}");
    }
}
