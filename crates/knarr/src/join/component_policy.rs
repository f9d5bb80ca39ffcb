//! Users of the server's own components, with the permissions that each needs. The API server creates these objects itself, as
//! its built-in policy: the components cannot grant them to themselves.

use serde_json::{Value, json};

use super::{SERVER_GROUP, cluster_info, objects, storage};
use crate::cluster;

/// Creates the cluster's initial objects: see [`objects`].
pub const CLUSTER_SETUP: &str = "knarr:cluster-setup";
/// Applies the administrator's manifests, which may contain anything. An administrator can bind it to a smaller role: mark the
/// binding with `rbac.authorization.kubernetes.io/autoupdate: "false"`.
pub const MANIFESTS: &str = "knarr:manifests";
/// Installs charts, which may contain anything; an administrator can bind it to a smaller role in the same way.
pub const CHARTS: &str = "knarr:charts";
/// Elects what runs where among several servers, and shows which nodes are servers.
pub const SERVERS: &str = "knarr:servers";
/// Probes the components after a start.
pub const READINESS: &str = "knarr:readiness";

/// Lets the holder of a token for servers ask for admission.
const SERVER_JOIN: &str = "knarr:server-join";
/// Lets nodes open connections over which servers reach them.
const NODE_TUNNEL: &str = "knarr:node-tunnel";
/// Lets the approver approve the certificates of nodes that Kubernetes leaves to administrators.
const APPROVER: &str = "knarr:certificate-approver";
const RBAC: &str = "rbac.authorization.k8s.io";

/// All roles and bindings.
pub fn component_policy() -> Vec<Value> {
    let user = |name: &str| json!({"apiGroup": RBAC, "kind": "User", "name": name});
    let approver = json!({"kind": "ServiceAccount", "namespace": "kube-system", "name": "certificate-controller"});
    vec![
        role(CLUSTER_SETUP, setup_rules()),
        binding(CLUSTER_SETUP, CLUSTER_SETUP, user(CLUSTER_SETUP)),
        binding(MANIFESTS, "cluster-admin", user(MANIFESTS)),
        binding(CHARTS, "cluster-admin", user(CHARTS)),
        role(
            READINESS,
            json!([
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
                {"apiGroups": ["metrics.k8s.io"], "resources": ["nodes"], "verbs": ["get"]},
            ]),
        ),
        binding(READINESS, READINESS, user(READINESS)),
        role(
            SERVERS,
            json!([
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch"]},
                {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
                {
                    "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                    "verbs": ["get", "list", "create", "update", "patch", "delete"],
                },
            ]),
        ),
        binding(SERVERS, SERVERS, user(SERVERS)),
        role(SERVER_JOIN, json!([{"nonResourceURLs": ["/server-join"], "verbs": ["post"]}])),
        binding(SERVER_JOIN, SERVER_JOIN, json!({"apiGroup": RBAC, "kind": "Group", "name": SERVER_GROUP})),
        role(NODE_TUNNEL, json!([{"nonResourceURLs": ["/node-tunnel"], "verbs": ["get"]}])),
        binding(NODE_TUNNEL, NODE_TUNNEL, json!({"apiGroup": RBAC, "kind": "Group", "name": "system:nodes"})),
        role(
            APPROVER,
            json!([
                {
                    "apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": ["approve"],
                    "resourceNames": ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client"],
                },
            ]),
        ),
        binding(APPROVER, APPROVER, approver),
    ]
}

/// Only the named objects: applying one needs `patch` and, the first time, `create`; granting what one does not have needs
/// `escalate` for roles and `bind` for bindings.
fn setup_rules() -> Value {
    let apply = ["get", "create", "patch"];
    json!([
        {
            "apiGroups": [RBAC], "resources": ["clusterroles"], "resourceNames": objects::OWN_ROLES,
            "verbs": ["get", "create", "patch", "escalate", "bind"],
        },
        {
            "apiGroups": [RBAC], "resources": ["clusterroles"], "resourceNames": objects::bound_roles(), "verbs": ["bind"],
        },
        {
            "apiGroups": [RBAC], "resources": ["clusterrolebindings"], "resourceNames": objects::bindings(), "verbs": apply,
        },
        {
            "apiGroups": [RBAC], "resources": ["roles", "rolebindings"],
            "resourceNames": [objects::SETTINGS, cluster_info::ROLE, storage::ROLE],
            "verbs": ["get", "create", "patch", "escalate", "bind"],
        },
        {
            "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [cluster::NAME, cluster_info::NAME],
            "verbs": apply,
        },
        {
            "apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
            "resourceNames": storage::DEFINITIONS, "verbs": apply,
        },
        {
            "apiGroups": ["storage.k8s.io"], "resources": ["csidrivers"], "resourceNames": [storage::LOCAL_DRIVER],
            "verbs": apply,
        },
        {
            "apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "resourceNames": [storage::LOCAL_CLASS],
            "verbs": apply,
        },
        {
            "apiGroups": ["snapshot.storage.k8s.io"], "resources": ["volumesnapshotclasses"],
            "resourceNames": [storage::LOCAL_CLASS], "verbs": apply,
        },
    ])
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"}})
}

fn role(name: &str, rules: Value) -> Value {
    json!({"apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": metadata(name), "rules": rules})
}

fn binding(name: &str, role: &str, subject: Value) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding", "metadata": metadata(name),
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_manifests_and_charts_get_everything_and_nobody_is_in_masters() {
        let policy = component_policy();
        let bound: Vec<&Value> = policy.iter().filter(|object| object["roleRef"]["name"] == "cluster-admin").collect();
        let users: Vec<&Value> = bound.iter().map(|object| &object["subjects"][0]["name"]).collect();
        assert_eq!(users, [MANIFESTS, CHARTS]);
        for object in &policy {
            assert!(!object.to_string().contains("system:masters"), "{object}");
            for rule in object["rules"].as_array().into_iter().flatten() {
                assert!(!rule.to_string().contains("\"*\""), "{rule}");
            }
        }
    }
}
