//! What the storage controllers of nodes may write: objects of the drivers that nodes serve, each node those of its own volumes.
//!
//! Every node has the credentials of such a user. A PersistentVolume names Secrets, which the nodes may read whose pods use its
//! claim, and a Lease of kube-system decides which scheduler runs. So the right to write either would be the right to everything,
//! which RBAC cannot narrow: it knows neither drivers nor claims.

mod snapshot;
mod volume;

use async_trait::async_trait;
use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use serde_json::Value;

use super::{Operation, Plugin, Write};
use crate::object_reader::ObjectReader;
use crate::request::User;

/// Not a plugin of Kubernetes, where nodes have no such user.
pub const NAME: &str = "NodeStorage";

const GROUP: &str = "knarr:node-storage";
/// The annotation by which an administrator has a CSIDriver served by nodes, and its value.
const SERVED_BY: &str = "csi.knarr.io/controller";
const NODES: &str = "built-in";
/// The driver whose volumes and snapshots belong to one node each.
const LOCAL_DRIVER: &str = "local.knarr.io";
const NAMESPACE: &str = "kube-system";
/// The annotation of an attachment with the name that its driver has for the node.
const ATTACHED_NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";
/// The finalizers of attachments start with it.
const ATTACHER_FINALIZERS: &str = "external-attacher/";

/// Why a write is refused.
enum Refusal {
    Because(&'static str),
    Failed(Status),
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Refusal::Failed(status)
    }
}

type Checked = Result<(), Refusal>;

fn ensure(holds: bool, otherwise: &'static str) -> Checked {
    if holds { Ok(()) } else { Err(Refusal::Because(otherwise)) }
}

/// A write of a node's storage controllers.
struct Change<'a> {
    node: &'a str,
    operation: Operation,
    subresource: &'a str,
    namespace: &'a str,
    name: &'a str,
    /// Null on delete.
    new: &'a Value,
    /// Null on create.
    old: &'a Value,
    objects: &'a dyn ObjectReader,
}

pub struct NodeStorage;

#[async_trait]
impl Plugin for NodeStorage {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Connect && write.user.is_in(GROUP)
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let change = Change {
            node: node_of(write.user),
            operation: write.operation,
            subresource: write.subresource,
            namespace: write.namespace,
            name: write.known_name(),
            new: write.object,
            old: write.old.unwrap_or(&Value::Null),
            objects,
        };
        let checked = match (write.group, write.resource) {
            ("", "persistentvolumes") => volume::check(&change),
            ("", "persistentvolumeclaims") => volume::check_claim(&change),
            ("storage.k8s.io", "volumeattachments") => attachment(&change),
            ("storage.k8s.io", "csistoragecapacities") => capacity(&change),
            ("coordination.k8s.io", "leases") => lease(&change),
            ("snapshot.storage.k8s.io", "volumesnapshotcontents") => snapshot::check_content(&change),
            ("snapshot.storage.k8s.io", "volumesnapshots") => snapshot::check(&change),
            _ => Ok(()),
        };
        match checked {
            Ok(()) => Ok(()),
            Err(Refusal::Because(why)) => Err(write.forbidden(format!("the storage of a node can only {why}"))),
            Err(Refusal::Failed(status)) => Err(status),
        }
    }
}

/// The node of such a user; empty if the name is of none.
fn node_of(user: &User) -> &str {
    user.name.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix(':')).unwrap_or_default()
}

/// Refuses drivers that nodes do not serve.
fn ensure_served(objects: &dyn ObjectReader, driver: &str) -> Checked {
    let found = if driver.is_empty() { None } else { objects.read("storage.k8s.io", "csidrivers", "", driver)? };
    ensure(found.is_some_and(|driver| is_served(&driver)), "write objects of drivers that nodes serve")
}

fn is_served(driver: &Value) -> bool {
    annotation(driver, SERVED_BY) == NODES
}

fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    object.text(&["metadata", "annotations", key])
}

fn ensure_update(change: &Change<'_>) -> Checked {
    ensure(change.operation == Operation::Update, "update objects of this kind")
}

/// Refuses changes of the metadata but for these annotations, which may name the node itself only, and these finalizers.
fn ensure_metadata(change: &Change<'_>, annotations: &[&str], is_own_finalizer: impl Fn(&str) -> bool) -> Checked {
    let rest = |object: &Value| {
        let mut metadata = object.at(&["metadata"]).clone();
        for field in ["resourceVersion", "managedFields", "generation"] {
            metadata.remove(&[field]);
        }
        for key in annotations {
            metadata.remove(&["annotations", key]);
        }
        let finalizers = metadata.items(&["finalizers"]).iter();
        let finalizers = finalizers.filter(|one| !one.as_str().is_some_and(&is_own_finalizer)).cloned();
        metadata.set(&["finalizers"], finalizers.collect::<Vec<Value>>());
        if metadata.fields(&["annotations"]).is_none_or(|left| left.is_empty()) {
            metadata.remove(&["annotations"]);
        }
        metadata
    };
    ensure(rest(change.old) == rest(change.new), "change metadata of its own in such an object")
}

/// Refuses an annotation that is set to anything but the name of the node.
fn ensure_own_node(change: &Change<'_>, key: &str) -> Checked {
    let (old, new) = (annotation(change.old, key), annotation(change.new, key));
    ensure(new.is_empty() || new == old || new == change.node, "name itself as the node of an object")
}

/// Whether the specs are equal without these fields.
fn same_spec(change: &Change<'_>, without: &[&str]) -> bool {
    let rest = |object: &Value| {
        let mut spec = object.at(&["spec"]).clone();
        without.iter().for_each(|field| drop(spec.remove(&[field])));
        spec
    };
    rest(change.old) == rest(change.new)
}

fn attachment(change: &Change<'_>) -> Checked {
    ensure_update(change)?;
    ensure_served(change.objects, change.old.text(&["spec", "attacher"]))?;
    ensure(same_spec(change, &[]), "report on attachments")?;
    ensure_metadata(change, &[ATTACHED_NODE_ID], |finalizer| finalizer.starts_with(ATTACHER_FINALIZERS))
}

fn capacity(change: &Change<'_>) -> Checked {
    let is_created = change.operation == Operation::Create;
    let object = if is_created { change.new } else { change.old };
    let driver = object.text(&["metadata", "labels", "csi.storage.k8s.io/drivername"]);
    ensure(change.namespace == NAMESPACE, "report capacities in kube-system")?;
    ensure_served(change.objects, driver)?;
    if is_created {
        let class = change.objects.read("storage.k8s.io", "storageclasses", "", object.text(&["storageClassName"]))?;
        let is_own = class.is_some_and(|class| class.text(&["provisioner"]) == driver);
        ensure(is_own, "report capacities of the driver's classes")?;
    }
    let owners = object.items(&["metadata", "ownerReferences"]);
    let is_here = owners.iter().any(|owner| owner.text(&["kind"]) == "Node" && owner.text(&["name"]) == change.node);
    ensure(driver != LOCAL_DRIVER || is_here, "report the capacity of its own node")?;
    // The label and the owner decide whose it is.
    if change.operation == Operation::Update { ensure_metadata(change, &[], |_| false) } else { Ok(()) }
}

/// A driver without places is served by the node that holds its Lease.
fn lease(change: &Change<'_>) -> Checked {
    let drivers = change.objects.read_all("storage.k8s.io", "csidrivers", "")?;
    let of_driver = |driver: &Value| format!("csi-{}", driver.text(&["metadata", "name"]).replace('.', "-"));
    let is_own = drivers.iter().any(|driver| is_served(driver) && of_driver(driver) == change.name);
    ensure(change.namespace == NAMESPACE && is_own, "hold Leases of drivers that nodes serve")
}

#[cfg(test)]
mod tests;
