//! NodeRestriction: a kubelet may write only its own node, its own lease and the pods bound to it.

mod mirror_pod;
mod token;

use std::sync::Arc;

use async_trait::async_trait;
use knarr_api::status::{GroupResource, Status};
use knarr_api::value::{Read, Write as _};
use serde_json::Value;

use super::{Operation, Plugin, Write};
use crate::authorize::{Authorizer, node_name};
use crate::object_reader::ObjectReader;

const OWN_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
const OWN_LABEL_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

pub struct NodeRestriction {
    authorizer: Arc<dyn Authorizer>,
}

impl NodeRestriction {
    pub fn new(authorizer: Arc<dyn Authorizer>) -> Self {
        NodeRestriction { authorizer }
    }
}

#[async_trait]
impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Connect && node_name(write.user).is_some()
    }

    async fn admit(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let node = node_name(write.user).unwrap_or_default().to_owned();
        if node.is_empty() {
            return Err(write.forbidden(format!("could not determine node from user {:?}", write.user.name)));
        }
        match (write.group, write.resource, write.subresource) {
            ("", "pods", "") => pod(write, objects, &node),
            ("", "pods", "status") => pod_status(write, &node),
            ("", "pods", "eviction") => eviction(write, objects, &node),
            ("", "pods", other) => Err(write
                .forbidden(format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"))),
            ("", "nodes", _) => own_node(write, &node),
            ("", "persistentvolumeclaims", "status") => claim_status(write, &node),
            ("", "persistentvolumeclaims", _) => Err(write.forbidden("may only update PVC status")),
            ("", "serviceaccounts", "token") => token::check(write, &*self.authorizer, objects, &node),
            ("coordination.k8s.io", "leases", _) => lease(write, &node),
            ("storage.k8s.io", "csinodes", _) => csi_node(write, &node),
            ("resource.k8s.io", "resourceslices", _) => resource_slice(write, &node),
            ("certificates.k8s.io", "certificatesigningrequests", "") => request(write, &node),
            _ => Ok(()),
        }
    }
}

fn bound_to(pod: &Value) -> &str {
    pod.text(&["spec", "nodeName"])
}

fn pod(write: &Write<'_>, objects: &dyn ObjectReader, node: &str) -> Result<(), Status> {
    match write.operation {
        Operation::Create => mirror_pod::check(write, objects, node),
        Operation::Delete => match write.old {
            Some(old) if bound_to(old) != node => {
                Err(write.forbidden(format!("node {node:?} can only delete pods with spec.nodeName set to itself")))
            }
            _ => Ok(()),
        },
        _ => Err(write.forbidden(format!(
            "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
            write.operation.name()
        ))),
    }
}

fn pod_status(write: &Write<'_>, node: &str) -> Result<(), Status> {
    let Some(old) = write.old.filter(|_| write.operation == Operation::Update) else {
        return Err(unexpected(write));
    };
    if bound_to(old) != node {
        let why = format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself");
        return Err(write.forbidden(why));
    }
    if old.at(&["metadata", "labels"]) != write.object.at(&["metadata", "labels"]) {
        return Err(write.forbidden(format!("node {node:?} cannot update labels through pod status")));
    }
    if old.at(&["status", "resourceClaimStatuses"]) != write.object.at(&["status", "resourceClaimStatuses"]) {
        // The spelling is Kubernetes' own.
        return Err(write.forbidden(format!("node {node:?} cannot update resource claim statues")));
    }
    let extended = ["status", "extendedResourceClaimStatus"];
    if old.at(&extended) != write.object.at(&extended) {
        return Err(write.forbidden(format!("node {node:?} cannot update extended resource claim status")));
    }
    Ok(())
}

fn unexpected(write: &Write<'_>) -> Status {
    write.forbidden(format!("unexpected operation {:?}", write.operation.name()))
}

fn eviction(write: &Write<'_>, objects: &dyn ObjectReader, node: &str) -> Result<(), Status> {
    match write.operation {
        Operation::Create => {}
        // An eviction that was admitted deletes the pod.
        Operation::Delete => return pod(write, objects, node),
        _ => return Err(write.forbidden(format!("unexpected operation {}", write.operation.name()))),
    }
    let name = match write.name {
        "" => write.object.text(&["metadata", "name"]),
        name => name,
    };
    if name.is_empty() {
        return Err(write.forbidden("could not determine pod from request data"));
    }
    let Some(pod) = objects.read("", "pods", write.namespace, name)? else {
        return Err(Status::not_found(GroupResource { group: "", name: "pods" }, name));
    };
    if bound_to(&pod) != node {
        let why = format!("node {node} can only evict pods with spec.nodeName set to itself");
        return Err(write.forbidden(why));
    }
    Ok(())
}

fn own_node(write: &Write<'_>, node: &str) -> Result<(), Status> {
    let named = match write.name {
        "" => write.object.text(&["metadata", "name"]),
        name => name,
    };
    if named != node {
        return Err(write.forbidden(format!("node {node:?} is not allowed to modify node {named:?}")));
    }
    match (write.operation, write.old) {
        (Operation::Create, _) => created_node(write, node),
        (Operation::Update, Some(old)) => updated_node(write, old, node),
        _ => Ok(()),
    }
}

fn created_node(write: &Write<'_>, node: &str) -> Result<(), Status> {
    let object = &*write.object;
    if object.has(&["spec", "configSource"]) {
        let why = format!("node {node:?} is not allowed to create pods with a non-nil configSource");
        return Err(write.forbidden(why));
    }
    if !pod_networks(object).is_empty() {
        return Err(write.forbidden(format!("node {node:?} is not allowed to set podCIDRs")));
    }
    let labels = forbidden_labels(object, &Value::Null);
    if !labels.is_empty() {
        let list = labels.join(", ");
        return Err(write.forbidden(format!("node {node:?} is not allowed to set the following labels: {list}")));
    }
    Ok(())
}

fn updated_node(write: &Write<'_>, old: &Value, node: &str) -> Result<(), Status> {
    let object = &*write.object;
    let source = object.at(&["spec", "configSource"]);
    if !source.is_null() && source != old.at(&["spec", "configSource"]) {
        let why = format!("node {node:?} is not allowed to update configSource to a new non-nil configSource");
        return Err(write.forbidden(why));
    }
    let changes = |path: &[&str]| object.items(path) != old.items(path);
    if changes(&["spec", "taints"]) {
        return Err(write.forbidden(format!("node {node:?} is not allowed to modify taints")));
    }
    if changes(&["metadata", "ownerReferences"]) {
        return Err(write.forbidden(format!("node {node:?} is not allowed to modify ownerReferences")));
    }
    if pod_networks(object) != pod_networks(old) {
        return Err(write.forbidden(format!("node {node:?} is not allowed to modify podCIDRs")));
    }
    let labels = forbidden_labels(object, old);
    if !labels.is_empty() {
        return Err(write.forbidden(format!("is not allowed to modify labels: {}", labels.join(", "))));
    }
    Ok(())
}

/// The pod networks of a Node. Other nodes route them to it, so a node that could set them could redirect the traffic of
/// other nodes' pods to itself. Kubernetes leaves this check to the network plugin.
fn pod_networks(node: &Value) -> Vec<&str> {
    let mut networks: Vec<&str> =
        node.items(&["spec", "podCIDRs"]).iter().map(|network| network.as_str().unwrap_or_default()).collect();
    let first = node.text(&["spec", "podCIDR"]);
    if !first.is_empty() && !networks.contains(&first) {
        networks.insert(0, first);
    }
    networks
}

/// Changed labels by which a node could attract pods: those of Kubernetes' domains, except for known ones.
fn forbidden_labels(object: &Value, old: &Value) -> Vec<String> {
    let labels = |object: &Value| object.fields(&["metadata", "labels"]).cloned().unwrap_or_default();
    let (new, old) = (labels(object), labels(old));
    let mut keys: Vec<String> = new.keys().chain(old.keys()).cloned().collect();
    keys.sort();
    keys.dedup();
    keys.retain(|key| new.get(key) != old.get(key) && is_forbidden_label(key));
    keys
}

fn is_forbidden_label(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let within = |of: &str| domain == of || domain.strip_suffix(of).is_some_and(|rest| rest.ends_with('.'));
    let is_own = OWN_LABELS.contains(&key) || OWN_LABEL_DOMAINS.iter().any(|of| within(of));
    within("node-restriction.kubernetes.io") || ((within("kubernetes.io") || within("k8s.io")) && !is_own)
}

fn claim_status(write: &Write<'_>, node: &str) -> Result<(), Status> {
    let Some(old) = write.old.filter(|_| write.operation == Operation::Update) else {
        return Err(unexpected(write));
    };
    let stripped = |claim: &Value| {
        let mut claim = claim.clone();
        for field in ["resourceVersion", "managedFields"] {
            claim.remove(&["metadata", field]);
        }
        for field in ["capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"] {
            claim.remove(&["status", field]);
        }
        claim
    };
    if stripped(old) != stripped(write.object) {
        return Err(write.forbidden(format!(
            "node {node:?} is not allowed to update fields other than status.quantity and status.conditions"
        )));
    }
    Ok(())
}

fn named_as_node(write: &Write<'_>) -> String {
    match write.name {
        "" => write.object.text(&["metadata", "name"]).to_owned(),
        name => name.to_owned(),
    }
}

fn lease(write: &Write<'_>, node: &str) -> Result<(), Status> {
    if write.namespace != "kube-node-lease" {
        let why = "can only access leases in the \"kube-node-lease\" system namespace";
        return Err(write.forbidden(why));
    }
    if named_as_node(write) != node {
        return Err(write.forbidden("can only access node lease with the same name as the requesting node"));
    }
    Ok(())
}

fn csi_node(write: &Write<'_>, node: &str) -> Result<(), Status> {
    if named_as_node(write) != node {
        return Err(write.forbidden("can only access CSINode with the same name as the requesting node"));
    }
    Ok(())
}

/// Updates are checked by the authorizer, which knows the node of the stored slice; a slice's node never changes.
fn resource_slice(write: &Write<'_>, node: &str) -> Result<(), Status> {
    let (object, verb) = match write.operation {
        Operation::Create => (&*write.object, "create"),
        Operation::Delete => (write.old.unwrap_or(&Value::Null), "delete"),
        _ => return Ok(()),
    };
    if bound_to(object) != node {
        return Err(
            write.forbidden(format!("can only {verb} ResourceSlice with the same NodeName as the requesting node"))
        );
    }
    Ok(())
}

/// A kubelet's certificate requests must name the kubelet's own node.
fn request(write: &Write<'_>, node: &str) -> Result<(), Status> {
    let signer = write.object.text(&["spec", "signerName"]);
    let is_kubelets = matches!(signer, "kubernetes.io/kubelet-serving" | "kubernetes.io/kube-apiserver-client-kubelet");
    if write.operation != Operation::Create || !is_kubelets {
        return Ok(());
    }
    let name = super::certificates::common_name(write.object.text(&["spec", "request"]))
        .map_err(|why| write.forbidden(format!("unable to parse csr: {why}")))?;
    if name != format!("system:node:{node}") {
        let why = format!("can only create a node CSR with CN=system:node:{node}");
        return Err(write.forbidden(why));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
