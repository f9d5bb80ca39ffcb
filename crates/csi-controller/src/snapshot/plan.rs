//! Decides what is to be done for a VolumeSnapshot and for a VolumeSnapshotContent.

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use knarr_client::events::reference;
use knarr_client::quantity::{Format, Quantity};

use super::types::{
    GROUP_VERSION, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent, VolumeSnapshotContentSource,
    VolumeSnapshotContentSpec, VolumeSnapshotStatus,
};
use crate::meta::{annotation, has_finalizer, is_deleted, name, namespace, uid};

/// Finalizers and annotations of the snapshot controller, so that either can finish what the other started.
pub(super) const SOURCE_FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
pub(super) const BOUND_FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
pub(super) const CONTENT_FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
pub(super) const BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
const DEFAULT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";
/// The node that has the snapshot.
pub(super) const NODE: &str = "csi.knarr.io/node";

/// The name of the content of a snapshot that is taken of a claim's volume.
pub(super) fn content_name(snapshot: &VolumeSnapshot) -> String {
    let bound = snapshot.status.as_ref().and_then(|status| status.bound_volume_snapshot_content_name.clone());
    let given = snapshot.spec.source.volume_snapshot_content_name.clone();
    bound.or(given).unwrap_or_else(|| format!("snapcontent-{}", uid(snapshot)))
}

/// Whether the snapshot names its content, which exists or has existed.
pub(super) fn had_content(snapshot: &VolumeSnapshot) -> bool {
    let bound = snapshot.status.as_ref().and_then(|status| status.bound_volume_snapshot_content_name.as_ref());
    bound.or(snapshot.spec.source.volume_snapshot_content_name.as_ref()).is_some()
}

/// Whether the content belongs to the snapshot, by the content's own reference: anyone can name any content.
pub(super) fn is_bound(snapshot: &VolumeSnapshot, content: &VolumeSnapshotContent) -> bool {
    let target = &content.spec.volume_snapshot_ref;
    target.uid.as_deref() == Some(uid(snapshot))
        && target.name.as_deref() == Some(name(snapshot))
        && target.namespace.as_deref() == Some(namespace(snapshot))
}

/// The class of a snapshot: the one it names, else the default class of the driver, if there is exactly one.
pub(super) fn class_of<'a>(
    snapshot: &VolumeSnapshot,
    classes: impl Iterator<Item = &'a VolumeSnapshotClass>,
    driver: &str,
) -> Result<&'a VolumeSnapshotClass, String> {
    let mut of_driver = classes.filter(|class| class.driver == driver);
    match &snapshot.spec.volume_snapshot_class_name {
        Some(wanted) => of_driver
            .find(|class| name(*class) == wanted)
            .ok_or_else(|| format!("failed to retrieve snapshot class {wanted} from the informer")),
        None => {
            let defaults: Vec<_> =
                of_driver.filter(|class| annotation(*class, DEFAULT_CLASS) == Some("true")).collect();
            match defaults.as_slice() {
                [class] => Ok(class),
                [] => Err("cannot find default snapshot class".to_owned()),
                several => Err(format!("{} default snapshot classes were found", several.len())),
            }
        }
    }
}

/// The content to create for a snapshot of a volume.
pub(super) fn content(
    snapshot: &VolumeSnapshot,
    class: &VolumeSnapshotClass,
    volume: &PersistentVolume,
    node: Option<&str>,
) -> VolumeSnapshotContent {
    let spec = volume.spec.as_ref();
    let handle = spec.and_then(|spec| spec.csi.as_ref()).map(|source| source.volume_handle.clone());
    let mut target = reference(snapshot);
    target.resource_version = snapshot.metadata.resource_version.clone();
    VolumeSnapshotContent {
        api_version: GROUP_VERSION.to_owned(),
        kind: "VolumeSnapshotContent".to_owned(),
        metadata: ObjectMeta {
            name: Some(content_name(snapshot)),
            finalizers: Some(vec![CONTENT_FINALIZER.to_owned()]),
            annotations: node.map(|node| [(NODE.to_owned(), node.to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: VolumeSnapshotContentSpec {
            deletion_policy: class.deletion_policy.clone(),
            driver: class.driver.clone(),
            source: VolumeSnapshotContentSource { volume_handle: handle, snapshot_handle: None },
            source_volume_mode: spec.and_then(|spec| spec.volume_mode.clone()),
            volume_snapshot_class_name: Some(name(class).to_owned()),
            volume_snapshot_ref: target,
        },
        status: None,
    }
}

/// The status that a snapshot has by its content; `None` if it has it already.
pub(super) fn status(snapshot: &VolumeSnapshot, content: &VolumeSnapshotContent) -> Option<VolumeSnapshotStatus> {
    let of_content = content.status.clone().unwrap_or_default();
    let created = of_content.creation_time.and_then(|nanos| Timestamp::from_nanosecond(nanos.into()).ok());
    let status = VolumeSnapshotStatus {
        bound_volume_snapshot_content_name: Some(name(content).to_owned()),
        creation_time: created.map(knarr_client::time::truncated),
        ready_to_use: Some(of_content.ready_to_use.unwrap_or(false)),
        restore_size: of_content.restore_size.map(|size| Quantity::new(size, Format::BinarySi).to_string()),
        error: of_content.error,
    };
    (snapshot.status.as_ref() != Some(&status)).then_some(status)
}

#[derive(Debug, PartialEq)]
pub(super) enum ContentStep {
    Nothing,
    /// Take the snapshot, or ask for its progress.
    Create,
    /// Delete the snapshot of the driver, then the finalizer.
    Delete,
    /// Keep the snapshot of the driver.
    Release,
}

/// `snapshot_exists` is whether the VolumeSnapshot that the content is bound to exists and is not being deleted.
pub(super) fn plan_content(content: &VolumeSnapshotContent, snapshot_exists: bool) -> ContentStep {
    let status = content.status.as_ref();
    if !is_deleted(content) {
        let is_ready = status.is_some_and(|status| status.ready_to_use == Some(true));
        return if is_ready { ContentStep::Nothing } else { ContentStep::Create };
    }
    if !has_finalizer(content, CONTENT_FINALIZER) || snapshot_exists {
        return ContentStep::Nothing;
    }
    let may_exist = status.is_some_and(|status| status.snapshot_handle.is_some())
        || annotation(content, BEING_CREATED).is_some()
        || content.spec.source.snapshot_handle.is_some();
    if content.spec.deletion_policy == "Delete" && may_exist { ContentStep::Delete } else { ContentStep::Release }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn snapshot(spec: Value, status: Value) -> VolumeSnapshot {
        let metadata = json!({"name": "s", "namespace": "ns", "uid": "u", "resourceVersion": "3"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    }

    fn class(name: &str, driver: &str, default: bool) -> VolumeSnapshotClass {
        let annotations = json!({DEFAULT_CLASS: default.to_string()});
        let metadata = json!({"name": name, "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "driver": driver, "deletionPolicy": "Delete"})).unwrap()
    }

    #[test]
    fn the_class_is_named_or_the_default() {
        let classes = [class("a", "d", false), class("b", "d", true), class("c", "e", true)];
        let named = |class: &str| snapshot(json!({"source": {}, "volumeSnapshotClassName": class}), Value::Null);
        let found =
            |snapshot: &VolumeSnapshot| class_of(snapshot, classes.iter(), "d").map(|class| name(class).to_owned());
        assert_eq!(found(&named("a")), Ok("a".into()));
        assert!(found(&named("c")).is_err(), "another driver's");
        assert_eq!(found(&snapshot(json!({"source": {}}), Value::Null)), Ok("b".into()));
        assert!(class_of(&named("a"), classes[2..].iter(), "d").is_err());
    }

    #[test]
    fn content_and_snapshot_refer_to_each_other() {
        let snapshot = snapshot(json!({"source": {"persistentVolumeClaimName": "c"}}), Value::Null);
        let volume: PersistentVolume = serde_json::from_value(
            json!({"spec": {"volumeMode": "Block", "csi": {"driver": "d", "volumeHandle": "h"}}}),
        )
        .unwrap();
        let mut content = content(&snapshot, &class("a", "d", true), &volume, Some("n"));
        assert_eq!(name(&content), "snapcontent-u");
        assert!(is_bound(&snapshot, &content));
        let mut other = snapshot.clone();
        other.metadata.uid = Some("v".into());
        assert!(!is_bound(&other, &content), "of the same name, created later");
        let types = serde_json::to_value(&content).unwrap();
        assert_eq!((&types["apiVersion"], &types["kind"]), (&json!(GROUP_VERSION), &json!("VolumeSnapshotContent")));
        assert_eq!(
            serde_json::to_value(&content.spec).unwrap(),
            json!({
                "deletionPolicy": "Delete", "driver": "d", "source": {"volumeHandle": "h"}, "sourceVolumeMode": "Block",
                "volumeSnapshotClassName": "a",
                "volumeSnapshotRef": {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
                    "namespace": "ns", "name": "s", "uid": "u", "resourceVersion": "3"},
            })
        );
        content.status = serde_json::from_value(json!({"readyToUse": true, "restoreSize": 1 << 30,
            "creationTime": 1_700_000_000_000_000_000_i64, "snapshotHandle": "x"}))
        .unwrap();
        let status = status(&snapshot, &content).unwrap();
        assert_eq!(
            serde_json::to_value(status).unwrap(),
            json!({"boundVolumeSnapshotContentName": "snapcontent-u", "creationTime": "2023-11-14T22:13:20Z",
                "readyToUse": true, "restoreSize": "1Gi"})
        );
    }

    #[test]
    fn contents_are_deleted_by_policy() {
        let made = json!({"snapshotHandle": "x", "readyToUse": true});
        for (policy, deleted, status, annotations, exists, expected) in [
            ("Delete", false, Value::Null, json!({}), true, ContentStep::Create),
            (
                "Delete",
                false,
                json!({"snapshotHandle": "x", "readyToUse": false}),
                json!({}),
                true,
                ContentStep::Create,
            ),
            ("Delete", false, made.clone(), json!({}), true, ContentStep::Nothing),
            ("Delete", true, made.clone(), json!({}), true, ContentStep::Nothing),
            ("Delete", true, made.clone(), json!({}), false, ContentStep::Delete),
            ("Retain", true, made, json!({}), false, ContentStep::Release),
            ("Delete", true, Value::Null, json!({}), false, ContentStep::Release),
            ("Delete", true, Value::Null, json!({BEING_CREATED: "yes"}), false, ContentStep::Delete),
        ] {
            let deletion = deleted.then_some("2026-01-01T00:00:00Z");
            let metadata = json!({"name": "c", "deletionTimestamp": deletion, "finalizers": [CONTENT_FINALIZER],
                "annotations": annotations});
            let spec = json!({"deletionPolicy": policy, "driver": "d", "source": {"volumeHandle": "h"}, "volumeSnapshotRef": {}});
            let content: VolumeSnapshotContent =
                serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap();
            assert_eq!(plan_content(&content, exists), expected, "{policy} {deleted} {status} {annotations} {exists}");
        }
    }
}
