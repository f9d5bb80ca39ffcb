//! The node authorizer: a kubelet may access only the objects that belong to its own node.

use std::sync::Arc;

use knarr_api::selector::FieldSelector;

use super::node_graph::{NodeGraph, VertexKind};
use super::{Authorizer, Decision, Rule};
use crate::request::{Target, User};

const USER_PREFIX: &str = "system:node:";
const GROUP_NODES: &str = "system:nodes";
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// The node whose kubelet the user is; `Some("")` for a member of `system:nodes` without a node name.
pub fn node_name(user: &User) -> Option<&str> {
    if !user.is_in(GROUP_NODES) {
        return None;
    }
    user.name.strip_prefix(USER_PREFIX)
}

pub struct NodeAuthorizer {
    graph: Arc<NodeGraph>,
    /// What every node may do to resources that belong to no single node.
    rules: Vec<Rule>,
}

impl NodeAuthorizer {
    pub fn new(graph: Arc<NodeGraph>, rules: Vec<Rule>) -> Self {
        NodeAuthorizer { graph, rules }
    }

    fn related(&self, node: &str, kind: VertexKind, target: &Target) -> Decision {
        if target.name.is_empty() {
            return refuse("No Object name found");
        }
        if self.graph.reaches(kind, &target.namespace, &target.name, node) {
            return allow();
        }
        refuse(format!("no relationship found between node '{node}' and this object"))
    }

    fn get(&self, node: &str, kind: VertexKind, target: &Target) -> Decision {
        match (target.verb.as_str(), target.subresource.as_str()) {
            ("get", "") => self.related(node, kind, target),
            ("get", _) => refuse("cannot get subresource"),
            _ => refuse("can only get individual resources of this type"),
        }
    }

    fn read_namespaced(&self, node: &str, kind: VertexKind, target: &Target) -> Decision {
        match (target.verb.as_str(), target.subresource.as_str(), target.namespace.as_str()) {
            ("get" | "list" | "watch", "", "") => refuse("can only read namespaced object of this type"),
            ("get" | "list" | "watch", "", _) => self.related(node, kind, target),
            ("get" | "list" | "watch", _, _) => refuse("cannot read subresource"),
            _ => refuse("can only read resources of this type"),
        }
    }

    fn claim(&self, node: &str, target: &Target) -> Decision {
        match (target.subresource.as_str(), target.verb.as_str()) {
            ("status", "update" | "patch") => self.related(node, VertexKind::Claim, target),
            ("status", _) => refuse("can only get/update/patch this type"),
            _ => self.get(node, VertexKind::Claim, target),
        }
    }

    fn service_account(&self, node: &str, target: &Target) -> Decision {
        match (target.verb.as_str(), target.subresource.as_str()) {
            ("get", "") => self.read_namespaced(node, VertexKind::ServiceAccount, target),
            ("create", "token") if !target.name.is_empty() => self.related(node, VertexKind::ServiceAccount, target),
            ("create", "token") => refuse("can only create tokens for individual service accounts"),
            ("create", _) => refuse("can only create token subresource of serviceaccount"),
            _ => refuse("can only create tokens for individual service accounts"),
        }
    }

    fn pod(&self, node: &str, target: &Target) -> Decision {
        match (target.subresource.as_str(), target.verb.as_str()) {
            ("", "get") => self.get(node, VertexKind::Pod, target),
            ("", "list" | "watch") if selects(&target.field_selector, "spec.nodeName", node) => allow(),
            ("", "list" | "watch") if !target.name.is_empty() => self.related(node, VertexKind::Pod, target),
            ("", "list" | "watch") => refuse("can only list/watch pods with spec.nodeName field selector"),
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => allow(),
            _ => refuse(""),
        }
    }

    fn resource_slice(&self, node: &str, target: &Target) -> Decision {
        if !target.subresource.is_empty() {
            return refuse("cannot authorize ResourceSlice subresources");
        }
        match target.verb.as_str() {
            "create" => allow(),
            "get" | "update" | "patch" | "delete" => self.related(node, VertexKind::ResourceSlice, target),
            "watch" | "list" | "deletecollection" => {
                if selects(&target.field_selector, "spec.nodeName", node) {
                    return allow();
                }
                refuse("can only list/watch/deletecollection resourceslices with nodeName field selector")
            }
            _ => refuse(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, \
                 delete, deletecollection",
            ),
        }
    }
}

impl Authorizer for NodeAuthorizer {
    fn decide(&self, user: &User, target: &Target) -> Decision {
        let Some(node) = node_name(user) else { return refuse("") };
        if node.is_empty() {
            return refuse(format!("unknown node for user {:?}", user.name));
        }
        match (target.group.as_str(), target.resource.as_str()) {
            ("", "secrets") => self.read_namespaced(node, VertexKind::Secret, target),
            ("", "configmaps") => self.read_namespaced(node, VertexKind::ConfigMap, target),
            ("", "persistentvolumeclaims") => self.claim(node, target),
            ("", "persistentvolumes") => self.get(node, VertexKind::Volume, target),
            ("resource.k8s.io", "resourceclaims") => self.get(node, VertexKind::ResourceClaim, target),
            ("storage.k8s.io", "volumeattachments") => self.get(node, VertexKind::Attachment, target),
            ("", "serviceaccounts") => self.service_account(node, target),
            ("coordination.k8s.io", "leases") => lease(node, target),
            ("storage.k8s.io", "csinodes") => csi_node(node, target),
            ("resource.k8s.io", "resourceslices") => self.resource_slice(node, target),
            ("", "nodes") => own_node(node, target),
            ("", "pods") => self.pod(node, target),
            _ if self.rules.iter().any(|rule| rule.allows(target)) => allow(),
            _ => refuse(""),
        }
    }
}

const OWN_VERBS: [&str; 5] = ["get", "create", "update", "patch", "delete"];

fn lease(node: &str, target: &Target) -> Decision {
    if !OWN_VERBS.contains(&target.verb.as_str()) {
        return refuse("can only get, create, update, patch, or delete a node lease");
    }
    if target.namespace != LEASE_NAMESPACE {
        return refuse(format!("can only access leases in the {LEASE_NAMESPACE:?} system namespace"));
    }
    // A create names its object in the body; admission checks it there.
    if target.verb != "create" && target.name != node {
        return refuse("can only access node lease with the same name as the requesting node");
    }
    allow()
}

fn csi_node(node: &str, target: &Target) -> Decision {
    if !OWN_VERBS.contains(&target.verb.as_str()) {
        return refuse("can only get, create, update, patch, or delete a CSINode");
    }
    if !target.subresource.is_empty() {
        return refuse("cannot authorize CSINode subresources");
    }
    if target.verb != "create" && target.name != node {
        return refuse("can only access CSINode with the same name as the requesting node");
    }
    allow()
}

fn own_node(node: &str, target: &Target) -> Decision {
    match (target.subresource.as_str(), target.verb.as_str()) {
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => allow(),
        ("", "get" | "list" | "watch") if target.name == node => allow(),
        ("", "get" | "list" | "watch") if target.name.is_empty() => {
            refuse(format!("node '{node}' cannot read all nodes, only its own Node object"))
        }
        ("", "get" | "list" | "watch") => {
            refuse(format!("node '{node}' cannot read '{}', only its own Node object", target.name))
        }
        _ => refuse(""),
    }
}

/// Whether a field selector contains the requirement `field=value`. It is parsed as the request's handler parses it:
/// values may contain escaped commas.
fn selects(selector: &str, field: &str, value: &str) -> bool {
    FieldSelector::parse(selector).is_ok_and(|selector| {
        selector.terms.iter().any(|term| !term.negated && term.field == field && term.value == value)
    })
}

fn allow() -> Decision {
    Decision::Allow(String::new())
}

fn refuse(reason: impl Into<String>) -> Decision {
    Decision::NoOpinion(reason.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_reaches_its_own_things_only() {
        let graph = NodeGraph::default();
        let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": "one",
            "serviceAccountName": "sa", "volumes": [{"secret": {"secretName": "s"}}]}});
        graph.pod_changed(None, Some(&pod));
        let authorizer = NodeAuthorizer::new(Arc::new(graph), Vec::new());
        let target = |verb: &str, resource: &str, name: &str, selector: &str| {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            Target {
                verb: verb.into(),
                resource: resource.into(),
                subresource: subresource.into(),
                namespace: "n".into(),
                name: name.into(),
                field_selector: selector.into(),
                ..Target::default()
            }
        };
        for (node, target, allowed) in [
            ("one", target("get", "secrets", "s", ""), true),
            ("one", target("get", "secrets", "other", ""), false),
            ("two", target("get", "secrets", "s", ""), false),
            ("one", target("list", "secrets", "", ""), false),
            ("one", target("create", "serviceaccounts/token", "sa", ""), true),
            ("two", target("create", "serviceaccounts/token", "sa", ""), false),
            ("one", target("list", "pods", "", "spec.nodeName=one"), true),
            ("one", target("list", "pods", "", "spec.nodeName==one,metadata.name=p"), true),
            ("one", target("list", "pods", "", "spec.nodeName=two"), false),
            ("one", target("list", "pods", "", "spec.nodeName!=one"), false),
            // One requirement, which nearly every pod meets.
            ("one", target("list", "pods", "", r"metadata.name!=x\,spec.nodeName=one"), false),
            ("one", target("watch", "pods", "", ""), false),
            ("one", target("get", "pods", "p", ""), true),
            ("two", target("get", "pods", "p", ""), false),
            ("two", target("list", "pods", "p", ""), false),
            ("one", target("deletecollection", "pods", "", "spec.nodeName=one"), false),
            ("one", target("update", "pods", "p", ""), false),
            ("one", target("get", "pods/log", "p", ""), false),
            ("one", target("create", "pods/eviction", "p", ""), true),
            ("one", target("list", "nodes", "", ""), false),
            ("one", target("watch", "nodes", "one", ""), true),
            ("one", target("delete", "nodes", "one", ""), false),
            ("one", target("get", "nodes/status", "one", ""), false),
            ("one", target("get", "nodes", "one", ""), true),
            ("one", target("get", "nodes", "two", ""), false),
        ] {
            let user = User::named(&format!("system:node:{node}"), &["system:nodes"]);
            let decision = authorizer.decide(&user, &target);
            assert_eq!(matches!(decision, Decision::Allow(_)), allowed, "{node} {target:?}: {decision:?}");
        }
    }
}
