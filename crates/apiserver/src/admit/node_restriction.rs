//! NodeRestriction: a kubelet writes its own node, its own lease, and pods bound to it, and only what belongs there.

use std::sync::Arc;

use async_trait::async_trait;
use knarr_api::status::{Named, Status};
use knarr_api::value::{Read, Write as _};
use serde_json::Value;

use super::{Operation, Plugin, Write};
use crate::authorize::{Authorizer, Decision, node_name};
use crate::objects::Objects;
use crate::request::Target;

const MIRROR: &str = "kubernetes.io/config.mirror";
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

    async fn admit(&self, write: &mut Write<'_>, objects: &dyn Objects) -> Result<(), Status> {
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
            ("", "serviceaccounts", "token") => self.token(write, objects, &node),
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

fn pod(write: &Write<'_>, objects: &dyn Objects, node: &str) -> Result<(), Status> {
    match write.operation {
        Operation::Create => mirror_pod(write, objects, node),
        Operation::Delete => match write.old {
            Some(old) if bound_to(old) != node => {
                Err(write.forbidden(format!("node {node:?} can only delete pods with spec.nodeName set to itself")))
            }
            _ => Ok(()),
        },
        _ => Err(write.forbidden(format!(
            "unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"
        ))),
    }
}

fn mirror_pod(write: &Write<'_>, objects: &dyn Objects, node: &str) -> Result<(), Status> {
    let pod = &*write.object;
    let refuse = |why: String| Err(write.forbidden(why));
    if pod.at(&["metadata", "annotations"]).get(MIRROR).is_none() {
        return refuse(format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"));
    }
    if bound_to(pod) != node {
        return refuse(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    let owner = match pod.items(&["metadata", "ownerReferences"]) {
        [owner] => owner,
        [] => return refuse(format!("node {node:?} can only create pods with an owner reference set to itself")),
        _ => return refuse(format!("node {node:?} can only create pods with a single owner reference set to itself")),
    };
    let is_self =
        owner.text(&["apiVersion"]) == "v1" && owner.text(&["kind"]) == "Node" && owner.text(&["name"]) == node;
    if !is_self {
        return refuse(format!("node {node:?} can only create pods with an owner reference set to itself"));
    }
    if owner.flag(&["controller"]) != Some(true) {
        let why = "can only create pods with a controller owner reference set to itself";
        return refuse(format!("node {node:?} {why}"));
    }
    if owner.flag(&["blockOwnerDeletion"]) == Some(true) {
        return refuse(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let uid = objects.get("", "nodes", "", node).map(|node| node.text(&["metadata", "uid"]).to_owned());
    if uid.as_deref() != Some(owner.text(&["uid"])) {
        return refuse(format!(
            "node {node} UID mismatch: expected {} got {}",
            uid.unwrap_or_default(),
            owner.text(&["uid"])
        ));
    }
    let spec = pod.at(&["spec"]);
    if !spec.text(&["serviceAccountName"]).is_empty() {
        return refuse(format!("node {node:?} can not create pods that reference a service account"));
    }
    let volumes = spec.items(&["volumes"]);
    if volumes.iter().any(|volume| volume.has(&["secret"])) {
        return refuse(format!("node {node:?} can not create pods that reference secrets"));
    }
    if volumes.iter().any(|volume| volume.has(&["configMap"])) {
        return refuse(format!("node {node:?} can not create pods that reference configmaps"));
    }
    if volumes.iter().any(|volume| volume.has(&["persistentVolumeClaim"])) {
        return refuse(format!("node {node:?} can not create pods that reference persistentvolumeclaims"));
    }
    if !spec.items(&["resourceClaims"]).is_empty() {
        return refuse(format!("node {node:?} can not create pods that reference resourceclaims"));
    }
    Ok(())
}

fn pod_status(write: &Write<'_>, node: &str) -> Result<(), Status> {
    let Some(old) = write.old.filter(|_| write.operation == Operation::Update) else {
        return Err(write.forbidden("unexpected operation \"CREATE\""));
    };
    if bound_to(old) != node {
        let why = format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself");
        return Err(write.forbidden(why));
    }
    if old.at(&["metadata", "labels"]) != write.object.at(&["metadata", "labels"]) {
        return Err(write.forbidden(format!("node {node:?} cannot update labels through pod status")));
    }
    if old.at(&["status", "resourceClaimStatuses"]) != write.object.at(&["status", "resourceClaimStatuses"]) {
        return Err(write.forbidden(format!("node {node:?} cannot update resource claim statuses")));
    }
    Ok(())
}

fn eviction(write: &Write<'_>, objects: &dyn Objects, node: &str) -> Result<(), Status> {
    let name = match write.name {
        "" => write.object.text(&["metadata", "name"]),
        name => name,
    };
    if name.is_empty() {
        return Err(write.forbidden("could not determine pod from request data"));
    }
    let Some(pod) = objects.get("", "pods", write.namespace, name) else {
        return Err(Status::not_found(Named { group: "", name: "pods" }, name));
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
    let object = &*write.object;
    match (write.operation, write.old) {
        (Operation::Create, _) => {
            if object.has(&["spec", "configSource"]) {
                let why = format!("node {node:?} is not allowed to create pods with a non-nil configSource");
                return Err(write.forbidden(why));
            }
            let labels = forbidden_labels(object, &Value::Null);
            if !labels.is_empty() {
                let list = labels.join(", ");
                return Err(
                    write.forbidden(format!("node {node:?} is not allowed to set the following labels: {list}"))
                );
            }
            Ok(())
        }
        (Operation::Update, Some(old)) => {
            let source = object.at(&["spec", "configSource"]);
            if !source.is_null() && source != old.at(&["spec", "configSource"]) {
                let why = format!("node {node:?} is not allowed to update configSource to a new non-nil configSource");
                return Err(write.forbidden(why));
            }
            if object.at(&["spec", "taints"]) != old.at(&["spec", "taints"]) {
                return Err(write.forbidden(format!("node {node:?} is not allowed to modify taints")));
            }
            if object.at(&["metadata", "ownerReferences"]) != old.at(&["metadata", "ownerReferences"]) {
                return Err(write.forbidden(format!("node {node:?} is not allowed to modify ownerReferences")));
            }
            let labels = forbidden_labels(object, old);
            if !labels.is_empty() {
                return Err(write.forbidden(format!("is not allowed to modify labels: {}", labels.join(", "))));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Changed labels that would let a node draw pods to itself: those of Kubernetes' own domains but for the known ones.
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
    let Some(old) = write.old else { return Ok(()) };
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

fn resource_slice(write: &Write<'_>, node: &str) -> Result<(), Status> {
    let object = if write.operation == Operation::Delete { write.old.unwrap_or(&Value::Null) } else { &*write.object };
    if bound_to(object) != node {
        let verb = match write.operation {
            Operation::Create => "create",
            Operation::Update => "update",
            _ => "delete",
        };
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

impl NodeRestriction {
    fn token(&self, write: &Write<'_>, objects: &dyn Objects, node: &str) -> Result<(), Status> {
        if write.operation != Operation::Create {
            return Ok(());
        }
        let reference = write.object.at(&["spec", "boundObjectRef"]);
        let name = reference.text(&["name"]);
        if reference.text(&["apiVersion"]) != "v1" || reference.text(&["kind"]) != "Pod" || name.is_empty() {
            return Err(write.forbidden("node requested token not bound to a pod"));
        }
        let uid = reference.text(&["uid"]);
        if uid.is_empty() {
            return Err(write.forbidden("node requested token with a pod binding without a uid"));
        }
        let Some(pod) = objects.get("", "pods", write.namespace, name) else {
            return Err(Status::not_found(Named { group: "", name: "pods" }, name));
        };
        if pod.text(&["metadata", "uid"]) != uid {
            return Err(write.forbidden(format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have \
                 been deleted and then recreated"
            )));
        }
        if bound_to(&pod) != node {
            return Err(write.forbidden("node requested token bound to a pod scheduled on a different node"));
        }
        self.audience(write, objects, &pod)
    }

    /// A node asks only for audiences that its pod's volumes name, or that it was given by policy.
    fn audience(&self, write: &Write<'_>, objects: &dyn Objects, pod: &Value) -> Result<(), Status> {
        let audience = match write.object.items(&["spec", "audiences"]) {
            [] => "",
            [one] => one.as_str().unwrap_or_default(),
            _ => return Err(write.forbidden("node may only request 0 or 1 audiences")),
        };
        if uses_audience(pod, audience, objects) {
            return Ok(());
        }
        let target = Target {
            verb: "request-serviceaccounts-token-audience".into(),
            version: "v1".into(),
            resource: audience.into(),
            namespace: write.namespace.into(),
            name: write.name.into(),
            ..Target::default()
        };
        if matches!(self.authorizer.decide(write.user, &target), Decision::Allow(_)) {
            return Ok(());
        }
        Err(write.forbidden(format!(
            "audience {audience:?} not found in pod spec volume, {} is not authorized to request tokens for this audience",
            write.user.name
        )))
    }
}

fn uses_audience(pod: &Value, audience: &str, objects: &dyn Objects) -> bool {
    let namespace = pod.text(&["metadata", "namespace"]);
    pod.items(&["spec", "volumes"]).iter().any(|volume| {
        let projected = volume.items(&["projected", "sources"]).iter().any(|source| {
            source.has(&["serviceAccountToken"]) && source.text(&["serviceAccountToken", "audience"]) == audience
        });
        let claim = match (volume.has(&["ephemeral"]), volume.text(&["persistentVolumeClaim", "claimName"])) {
            (true, _) => format!("{}-{}", pod.text(&["metadata", "name"]), volume.text(&["name"])),
            (false, claim) => claim.to_owned(),
        };
        let driver = match volume.text(&["csi", "driver"]) {
            "" if claim.is_empty() => String::new(),
            "" => driver_of_claim(namespace, &claim, objects).unwrap_or_default(),
            driver => driver.to_owned(),
        };
        projected
            || (!driver.is_empty()
                && objects.get("storage.k8s.io", "csidrivers", "", &driver).is_some_and(|driver| {
                    driver.items(&["spec", "tokenRequests"]).iter().any(|own| own.text(&["audience"]) == audience)
                }))
    })
}

fn driver_of_claim(namespace: &str, claim: &str, objects: &dyn Objects) -> Option<String> {
    let claim = objects.get("", "persistentvolumeclaims", namespace, claim)?;
    let volume = objects.get("", "persistentvolumes", "", claim.text(&["spec", "volumeName"]))?;
    Some(volume.text(&["spec", "csi", "driver"]).to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::tests::run_as;
    use super::*;
    use crate::objects::tests::Fixed;
    use crate::request::User;
    use serde_json::json;

    struct Nobody;

    impl Authorizer for Nobody {
        fn decide(&self, _user: &User, _target: &Target) -> Decision {
            Decision::NoOpinion(String::new())
        }
    }

    #[tokio::test]
    async fn a_node_writes_only_its_own() {
        let user = User::named("system:node:one", &["system:nodes"]);
        let plugin = NodeRestriction::new(Arc::new(Nobody));
        let none = Fixed::new(vec![]);
        let node = |name: &str, labels: Value| json!({"kind": "Node", "metadata": {"name": name, "labels": labels}});
        let pod = |node: &str| json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": node}});
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
            (Operation::Update, "pods/status", pod("one"), Some(pod("one")), ""),
            (
                Operation::Update,
                "pods/status",
                pod("two"),
                Some(pod("two")),
                "can only update pod status for pods with",
            ),
            (Operation::Delete, "pods", Value::Null, Some(pod("two")), "can only delete pods with spec.nodeName"),
            (Operation::Create, "pods", pod("one"), None, "can only create mirror pods"),
        ];
        for (operation, resource, object, old, part) in cases {
            let result = run_as(&user, &plugin, operation, ("", resource), object.clone(), old, &none).await;
            match result {
                Ok(_) => assert!(part.is_empty(), "{object} was taken"),
                Err(message) => assert!(!part.is_empty() && message.contains(part), "{message}"),
            }
        }
    }
}
