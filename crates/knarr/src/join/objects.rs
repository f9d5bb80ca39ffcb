//! Objects that nodes need to join and work: permissions of bootstrap tokens, permissions of nodes beyond those of Kubernetes,
//! and the cluster-wide settings.

use knarr_client::k8s_openapi::api::core::v1::ConfigMap;
use knarr_client::k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use knarr_client::kube::api::{Patch, PatchParams};
use knarr_client::kube::{self, Api, Client};
use knarr_client::node_identity::{self, NETWORK, STORAGE};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::GROUP;
use super::cluster_info::{self, ClusterInfo};
use super::{storage, trust};
use crate::cluster::{self, Cluster};

const MANAGER: &str = "knarr";
const NODES: &str = "system:nodes";

/// Name, ClusterRole and group of each ClusterRoleBinding.
const BINDINGS: [(&str, &str, &str); 6] = [
    ("knarr:kubelet-bootstrap", "system:node-bootstrapper", GROUP),
    ("knarr:node-autoapprove-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", GROUP),
    (
        "knarr:node-autoapprove-certificate-rotation",
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        NODES,
    ),
    ("knarr:node-network-certificates", "knarr:node-network-certificates", NODES),
    ("knarr:node-network", "knarr:node-network", NETWORK.group),
    (storage::ROLE, storage::ROLE, STORAGE.group),
];

/// The user that assigns load balancer addresses, creates the DNS Service and publishes addresses of Ingresses.
pub const NETWORK_CONTROLLER: &str = "knarr:network-controller";

/// The users of standalone components, which upload journey events as nodes do.
const COMPONENTS: [&str; 3] = ["system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy"];

const JOURNAL: &str = "knarr:journal";
/// Role and RoleBinding that let nodes read the cluster's settings.
pub const SETTINGS: &str = "knarr:node-settings";

/// The ClusterRoles below.
pub const OWN_ROLES: [&str; 5] =
    ["knarr:node-network", "knarr:node-network-certificates", NETWORK_CONTROLLER, JOURNAL, storage::ROLE];

/// The ClusterRoles of Kubernetes that are bound below.
pub fn bound_roles() -> Vec<&'static str> {
    BINDINGS.iter().map(|(_, role, _)| *role).filter(|role| !OWN_ROLES.contains(role)).collect()
}

/// The names of all ClusterRoleBindings below.
pub fn bindings() -> Vec<&'static str> {
    BINDINGS.iter().map(|(name, _, _)| *name).chain([NETWORK_CONTROLLER, JOURNAL]).collect()
}

/// Creates or updates all objects.
pub async fn ensure(client: &Client, cluster: &Cluster, info: &ClusterInfo) -> Result<(), kube::Error> {
    apply::<ClusterRole>(Api::all(client.clone()), node_network_role()).await?;
    apply::<ClusterRole>(Api::all(client.clone()), node_network_certificates_role()).await?;
    apply::<ClusterRole>(Api::all(client.clone()), network_controller_role()).await?;
    let user = [("User", NETWORK_CONTROLLER)];
    let bound = binding("ClusterRoleBinding", NETWORK_CONTROLLER, "ClusterRole", NETWORK_CONTROLLER, &user);
    apply::<ClusterRoleBinding>(Api::all(client.clone()), bound).await?;
    apply::<ClusterRole>(Api::all(client.clone()), journal_role()).await?;
    apply::<ClusterRole>(Api::all(client.clone()), storage::role()).await?;
    for (name, role, group) in BINDINGS {
        apply::<ClusterRoleBinding>(
            Api::all(client.clone()),
            binding("ClusterRoleBinding", name, "ClusterRole", role, &[("Group", group)]),
        )
        .await?;
    }
    let uploaders: Vec<(&str, &str)> =
        [("Group", NODES)].into_iter().chain(COMPONENTS.map(|name| ("User", name))).collect();
    let bound = binding("ClusterRoleBinding", JOURNAL, "ClusterRole", JOURNAL, &uploaders);
    apply::<ClusterRoleBinding>(Api::all(client.clone()), bound).await?;
    apply::<Role>(Api::namespaced(client.clone(), storage::NAMESPACE), storage::namespace_role()).await?;
    let bound = binding("RoleBinding", storage::ROLE, "Role", storage::ROLE, &[("Group", STORAGE.group)]);
    apply::<RoleBinding>(Api::namespaced(client.clone(), storage::NAMESPACE), bound).await?;
    let namespaced = |client: &Client| Api::namespaced(client.clone(), cluster::NAMESPACE);
    apply::<Role>(namespaced(client), settings_role()).await?;
    let bound = binding("RoleBinding", SETTINGS, "Role", SETTINGS, &[("Group", NODES)]);
    apply::<RoleBinding>(Api::namespaced(client.clone(), cluster::NAMESPACE), bound).await?;
    let mut data = cluster.to_data();
    data.insert(trust::SETTING.to_owned(), info.authority.clone());
    let settings = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": cluster::NAME}, "data": data});
    apply::<ConfigMap>(Api::namespaced(client.clone(), cluster::NAMESPACE), settings).await?;
    publish(client, info).await?;
    // Last: nodes join without it.
    storage::ensure(client).await
}

/// Publishes how to reach and verify the cluster.
async fn publish(client: &Client, info: &ClusterInfo) -> Result<(), kube::Error> {
    let namespace = cluster_info::NAMESPACE;
    let name = cluster_info::ROLE;
    apply::<ConfigMap>(Api::namespaced(client.clone(), namespace), info.config_map()).await?;
    apply::<Role>(Api::namespaced(client.clone(), namespace), cluster_info::role()).await?;
    let bound = binding("RoleBinding", name, "Role", name, &cluster_info::subjects());
    apply::<RoleBinding>(Api::namespaced(client.clone(), namespace), bound).await
}

async fn apply<K>(api: Api<K>, object: Value) -> Result<(), kube::Error>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(object)).await.map(drop)
}

/// The network components of a node watch all Services and endpoints, pods as peers of policies, and Ingresses. They can read
/// single TLS Secrets that Ingresses reference. Kubelets have none of these permissions: see [`node_identity`].
fn node_network_role() -> Value {
    let read = ["get", "list", "watch"];
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "knarr:node-network"},
        "rules": [
            {"apiGroups": [""], "resources": ["namespaces", "nodes", "pods", "services"], "verbs": read},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
            {"apiGroups": ["networking.k8s.io"], "resources": ["ingressclasses", "ingresses", "networkpolicies", "servicecidrs"], "verbs": read},
        ],
    })
}

/// It grants nodes access to TLS Secrets by Roles of one name, which it may create without having their permissions.
fn network_controller_role() -> Value {
    let read = ["get", "list", "watch"];
    let ingress_role = ["knarr:ingress"];
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": NETWORK_CONTROLLER},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes", "services"], "verbs": read},
            {"apiGroups": [""], "resources": ["services"], "verbs": ["create"]},
            {"apiGroups": [""], "resources": ["services/status"], "verbs": ["patch", "update"]},
            {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
            {"apiGroups": ["networking.k8s.io"], "resources": ["ingressclasses", "ingresses"], "verbs": read},
            {"apiGroups": ["networking.k8s.io"], "resources": ["ingressclasses"], "verbs": ["create"]},
            {"apiGroups": ["networking.k8s.io"], "resources": ["ingresses/status"], "verbs": ["patch", "update"]},
            {
                "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"],
                "resourceNames": ingress_role,
                "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
            },
            {
                "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "resourceNames": ingress_role,
                "verbs": ["bind", "escalate"],
            },
        ],
    })
}

/// A node can get the certificate of its own network components approved.
fn node_network_certificates_role() -> Value {
    let resource = format!("certificatesigningrequests/{}", node_identity::APPROVAL);
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "knarr:node-network-certificates"},
        "rules": [{"apiGroups": ["certificates.k8s.io"], "resources": [resource], "verbs": ["create"]}],
    })
}

/// Nodes and standalone components upload journey events.
fn journal_role() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": JOURNAL},
        "rules": [{"nonResourceURLs": [crate::journal::PATH], "verbs": ["post"]}],
    })
}

fn settings_role() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": SETTINGS},
        "rules": [{
            "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [cluster::NAME], "verbs": ["get"],
        }],
    })
}

fn binding(kind: &str, name: &str, role_kind: &str, role: &str, subjects: &[(&str, &str)]) -> Value {
    let subject =
        |(kind, name): &(&str, &str)| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role},
        "subjects": subjects.iter().map(subject).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelets_get_no_reads_of_the_whole_cluster() {
        let of_nodes = BINDINGS.iter().filter(|(_, _, group)| *group == NODES).map(|(_, role, _)| *role);
        let only =
            ["system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", "knarr:node-network-certificates"];
        assert_eq!(of_nodes.collect::<Vec<_>>(), only);
    }

    /// A Lease of another namespace may be another node's, and one of kube-system a scheduler's: see `NodeStorage`.
    #[test]
    fn the_storage_of_a_node_reads_no_secrets_and_writes_leases_of_one_namespace() {
        let everywhere = storage::role();
        for rule in everywhere["rules"].as_array().unwrap() {
            for resource in ["secrets", "pods", "leases", "csistoragecapacities", "*"] {
                assert!(!rule["resources"].as_array().unwrap().contains(&json!(resource)), "{rule}");
            }
        }
        let within = storage::namespace_role();
        assert_eq!(within["kind"], "Role");
        let resources: Vec<&Value> =
            within["rules"].as_array().unwrap().iter().flat_map(|rule| rule["resources"].as_array().unwrap()).collect();
        assert_eq!(resources, ["csistoragecapacities", "leases"]);
    }

    #[test]
    fn the_network_of_a_node_only_reads() {
        for rule in node_network_role()["rules"].as_array().unwrap() {
            assert_eq!(rule["verbs"], json!(["get", "list", "watch"]), "{rule}");
            assert!(!rule["resources"].as_array().unwrap().contains(&json!("secrets")), "{rule}");
        }
    }
}
