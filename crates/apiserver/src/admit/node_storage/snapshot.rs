//! Snapshots of volumes, and the contents that stand for them in a driver.

use knarr_api::value::{Read, Write as _};
use serde_json::Value;

use super::volume::volume_of;
use super::{Change, Checked, LOCAL_DRIVER, annotation, ensure, ensure_metadata, ensure_own_node, ensure_served};
use super::{ensure_update, same_spec};
use crate::request::Operation;

const GROUP: &str = "snapshot.storage.k8s.io";
/// The annotation of a content with the node that has the snapshot.
const NODE: &str = "csi.knarr.io/node";
const BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
/// The finalizers of snapshots and contents start with it.
const FINALIZERS: &str = "snapshot.storage.kubernetes.io/volumesnapshot";

/// The controllers complete snapshots by a class and finalizers, and report on them.
pub(super) fn check(change: &Change<'_>) -> Checked {
    ensure_update(change)?;
    let field = ["spec", "volumeSnapshotClassName"];
    let class = change.new.text(&field);
    let may_set: &[&str] = if change.old.text(&field).is_empty() { &field[1..] } else { &[] };
    ensure(same_spec(change, may_set), "set the class of a snapshot that has none")?;
    let class = if class.is_empty() { None } else { change.objects.read(GROUP, "volumesnapshotclasses", "", class)? };
    if let Some(class) = class {
        ensure_served(change.objects, class.text(&["driver"]))?;
    }
    ensure_metadata(change, &[], |finalizer| finalizer.starts_with(FINALIZERS))
}

pub(super) fn check_content(change: &Change<'_>) -> Checked {
    if change.operation == Operation::Create {
        return check_created(change);
    }
    ensure_served(change.objects, change.old.text(&["spec", "driver"]))?;
    let on = annotation(change.old, NODE);
    ensure(on.is_empty() || on == change.node, "write contents of its own")?;
    if change.operation == Operation::Delete {
        return Ok(());
    }
    ensure_own_node(change, NODE)?;
    ensure(without_uid(change.old) == without_uid(change.new), "complete the reference of a content")?;
    let (old, new) = (uid_of(change.old), uid_of(change.new));
    ensure(old.is_empty() || old == new, "complete the reference of a content")?;
    ensure_metadata(change, &[NODE, BEING_CREATED], |finalizer| finalizer.starts_with(FINALIZERS))
}

fn uid_of(content: &Value) -> &str {
    content.text(&["spec", "volumeSnapshotRef", "uid"])
}

fn without_uid(content: &Value) -> Value {
    let mut spec = content.at(&["spec"]).clone();
    spec.remove(&["volumeSnapshotRef", "uid"]);
    spec
}

/// A content is created for a snapshot, of the volume of the claim that the snapshot names.
fn check_created(change: &Change<'_>) -> Checked {
    let (content, objects) = (change.new, change.objects);
    let driver = content.text(&["spec", "driver"]);
    ensure_served(objects, driver)?;
    ensure(driver != LOCAL_DRIVER || annotation(content, NODE) == change.node, "create contents of its own")?;
    let target = content.at(&["spec", "volumeSnapshotRef"]);
    let namespace = target.text(&["namespace"]);
    let snapshot = objects.read(GROUP, "volumesnapshots", namespace, target.text(&["name"]))?;
    let snapshot = snapshot.filter(|snapshot| snapshot.text(&["metadata", "uid"]) == uid_of(content));
    let claim = match snapshot.as_ref().map(|snapshot| snapshot.text(&["spec", "source", "persistentVolumeClaimName"]))
    {
        None | Some("") => None,
        Some(name) => objects.read("", "persistentvolumeclaims", namespace, name)?,
    };
    let volume = match claim {
        Some(claim) => volume_of(&claim, objects)?,
        None => None,
    };
    let source = content.at(&["spec", "source"]);
    let is_of = volume.is_some_and(|volume| {
        let of_volume = volume.at(&["spec", "csi"]);
        of_volume.text(&["driver"]) == driver && of_volume.text(&["volumeHandle"]) == source.text(&["volumeHandle"])
    });
    ensure(is_of && !source.has(&["snapshotHandle"]), "create contents of the volume that a snapshot is taken of")
}
