//! Built-in objects of every cluster: system namespaces, RBAC roles and bindings, priority classes, flow control and the
//! first ServiceCIDR. They are reconciled at every start.

mod flow;
pub mod flow_revision;
mod policy;
mod reconcile;

pub use policy::KUBELET_CLIENT;
pub use reconcile::reconcile;

use serde_json::{Value, json};

/// A built-in object and its resource.
#[derive(Debug)]
pub struct DesiredObject {
    pub group: &'static str,
    pub version: &'static str,
    pub resource: &'static str,
    pub object: Value,
}

impl DesiredObject {
    fn new(group: &'static str, resource: &'static str, object: Value) -> Self {
        DesiredObject { group, version: "v1", resource, object }
    }

    pub fn namespace(&self) -> &str {
        self.object["metadata"]["namespace"].as_str().unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }
}

/// All built-in objects; namespaces come before the objects in them.
pub fn desired_objects(service_ranges: &[String]) -> Vec<DesiredObject> {
    let mut all = namespaces();
    all.extend(priority_classes());
    all.extend(flow::desired_objects());
    all.extend(policy::desired_objects());
    all.push(policy::kubelet_client());
    all.push(service_range(service_ranges));
    all
}

/// An RBAC object of a component; `None` for other kinds.
pub fn policy_object(object: Value) -> Option<DesiredObject> {
    let resource = match object["kind"].as_str() {
        Some("ClusterRole") => "clusterroles",
        Some("ClusterRoleBinding") => "clusterrolebindings",
        Some("Role") => "roles",
        Some("RoleBinding") => "rolebindings",
        _ => return None,
    };
    Some(DesiredObject::new("rbac.authorization.k8s.io", resource, object))
}

/// The built-in FlowSchemas and PriorityLevelConfigurations.
pub fn flow_control() -> Vec<DesiredObject> {
    flow::desired_objects()
}

fn namespaces() -> Vec<DesiredObject> {
    ["kube-system", "kube-public", "kube-node-lease", "default"]
        .map(|name| {
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            DesiredObject::new("", "namespaces", object)
        })
        .into()
}

fn priority_classes() -> Vec<DesiredObject> {
    [
        (
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
    ]
    .map(|(name, value, description)| {
        let object = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "description": description,
        });
        DesiredObject::new("scheduling.k8s.io", "priorityclasses", object)
    })
    .into()
}

fn service_range(ranges: &[String]) -> DesiredObject {
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": ranges},
    });
    DesiredObject::new("networking.k8s.io", "servicecidrs", object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_object_has_a_name_and_a_kind() {
        let all = desired_objects(&["10.96.0.0/16".to_owned()]);
        assert!(all.iter().all(|desired| !desired.name().is_empty() && desired.object["kind"].is_string()));
        let count = |resource: &str| all.iter().filter(|desired| desired.resource == resource).count();
        assert_eq!((count("clusterroles"), count("clusterrolebindings"), count("roles")), (69, 51, 7));
        assert_eq!((count("flowschemas"), count("prioritylevelconfigurations")), (11, 8));
    }
}
