//! The data source of a claim: a snapshot or another claim.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use knarr_client::quantity;
use knarr_csi::messages::{ControllerCapability, VolumeContentSource};
use kube::Api;

use super::plan::NODE;
use super::types::{VolumeSnapshot, VolumeSnapshotContent};
use crate::claim::requested_bytes;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::meta::{annotation, is_deleted, name, namespace, uid};

/// The annotation by which an administrator lets a snapshot be restored in another mode.
const ALLOW_MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";

#[derive(Debug, PartialEq)]
enum Source<'a> {
    None,
    Snapshot(&'a str),
    Claim(&'a str),
    /// Of a kind that a populator handles.
    Other,
}

fn source(claim: &PersistentVolumeClaim) -> Source<'_> {
    let Some(spec) = &claim.spec else { return Source::None };
    let (group, kind, target) = match (&spec.data_source_ref, &spec.data_source) {
        (Some(source), _) => (source.api_group.as_deref(), &source.kind, &source.name),
        (None, Some(source)) => (source.api_group.as_deref(), &source.kind, &source.name),
        (None, None) => return Source::None,
    };
    match (group.unwrap_or_default(), kind.as_str()) {
        ("snapshot.storage.k8s.io", "VolumeSnapshot") => Source::Snapshot(target),
        ("", "PersistentVolumeClaim") => Source::Claim(target),
        _ => Source::Other,
    }
}

/// Whether a claim has a data source that the driver copies.
pub(crate) fn has_source(claim: &PersistentVolumeClaim) -> bool {
    matches!(source(claim), Source::Snapshot(_) | Source::Claim(_))
}

/// Whether another component fills the claim's volume.
pub(crate) fn is_for_populator(claim: &PersistentVolumeClaim) -> bool {
    source(claim) == Source::Other
}

/// The node that has the claim's data source, if it is known already.
pub(crate) async fn source_node(driver: &Driver, claim: &PersistentVolumeClaim) -> Result<Option<String>> {
    match source(claim) {
        Source::Snapshot(target) => {
            let snapshots: Api<VolumeSnapshot> = Api::namespaced(driver.kube.clone(), namespace(claim));
            let Some(snapshot) = snapshots.get_opt(target).await? else { return Ok(None) };
            let contents: Api<VolumeSnapshotContent> = Api::all(driver.kube.clone());
            let content = contents.get_opt(&super::plan::content_name(&snapshot)).await?;
            let content = content.filter(|content| content.spec.driver == driver.name);
            Ok(content.and_then(|content| annotation(&content, NODE).map(str::to_owned)))
        }
        Source::Claim(target) => {
            let found = driver.claims.get(namespace(claim), target);
            Ok(found.and_then(|found| driver.volume_of(&found)).map(|_| driver.node.clone()))
        }
        Source::None | Source::Other => Ok(None),
    }
}

/// What the new volume contains, for the driver.
pub(crate) async fn content_source(
    driver: &Driver,
    claim: &PersistentVolumeClaim,
) -> Result<Option<VolumeContentSource>> {
    match source(claim) {
        Source::None | Source::Other => Ok(None),
        Source::Snapshot(target) => of_snapshot(driver, claim, target).await.map(Some),
        Source::Claim(target) => of_claim(driver, claim, target).map(Some),
    }
}

async fn of_snapshot(driver: &Driver, claim: &PersistentVolumeClaim, target: &str) -> Result<VolumeContentSource> {
    if !driver.can(ControllerCapability::CreateDeleteSnapshot) {
        return Err(Error::Refused(
            "CSI driver does not support snapshot restore: plugin capabilities do not include it".to_owned(),
        ));
    }
    let snapshots: Api<VolumeSnapshot> = Api::namespaced(driver.kube.clone(), namespace(claim));
    let missing = || {
        Error::Refused(format!(
            "error getting snapshot {target} from api server: volumesnapshots.snapshot.storage.k8s.io \"{target}\" not found"
        ))
    };
    let snapshot = snapshots.get_opt(target).await?.ok_or_else(missing)?;
    if is_deleted(&snapshot) {
        return Err(Error::Refused(format!("snapshot {target} is currently being deleted")));
    }
    let bound = snapshot.status.as_ref().and_then(|status| status.bound_volume_snapshot_content_name.as_deref());
    let not_ready = || Error::Later(format!("snapshot {target} is not Ready"));
    let contents: Api<VolumeSnapshotContent> = Api::all(driver.kube.clone());
    let content = contents.get_opt(bound.ok_or_else(not_ready)?).await?.ok_or_else(not_ready)?;
    // A user may bind any content to a snapshot of theirs: only the content's own reference counts.
    if content.spec.volume_snapshot_ref.uid.as_deref() != Some(uid(&snapshot)) {
        return Err(Error::Refused(format!("snapshot {target} not bound")));
    }
    if content.spec.driver != driver.name {
        return Err(Error::Refused(format!(
            "requested volume source is of driver {}, and not of {}",
            content.spec.driver, driver.name
        )));
    }
    if let Some(node) = annotation(&content, NODE)
        && driver.is_local
        && node != driver.node
    {
        return Err(Error::Refused(format!("the snapshot {target} is on node {node}")));
    }
    if changes_mode(&content, claim) {
        return Err(Error::Refused(format!(
            "requested volume {} modifies the mode of the source volume but does not have permission to do so. \
             {ALLOW_MODE_CHANGE} annotation is not present on snapshotcontent {}",
            name(claim),
            name(&content)
        )));
    }
    let status = content.status.clone().unwrap_or_default();
    if status.ready_to_use != Some(true) {
        return Err(not_ready());
    }
    let (size, requested) = (status.restore_size.unwrap_or(0), requested_bytes(claim));
    if requested < size {
        return Err(Error::Refused(format!(
            "requested volume size {requested} is less than the size {size} for the source snapshot {target}"
        )));
    }
    status.snapshot_handle.map(VolumeContentSource::snapshot).ok_or_else(not_ready)
}

/// Whether a claim would get what was written to a block device as a file system, or the other way round, without permission: who
/// writes to the device could have the kernel of the node mount anything.
fn changes_mode(content: &VolumeSnapshotContent, claim: &PersistentVolumeClaim) -> bool {
    let Some(was) = content.spec.source_volume_mode.as_deref() else { return false };
    let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()).unwrap_or("Filesystem");
    was != wanted && annotation(content, ALLOW_MODE_CHANGE) != Some("true")
}

fn of_claim(driver: &Driver, claim: &PersistentVolumeClaim, target: &str) -> Result<VolumeContentSource> {
    if !driver.can(ControllerCapability::CloneVolume) {
        return Err(Error::Refused(
            "CSI driver does not support clone operations: plugin capabilities do not include it".to_owned(),
        ));
    }
    let missing =
        || Error::Later(format!("error getting PVC {target} (namespace \"{}\") from api server", namespace(claim)));
    let found = driver.claims.get(namespace(claim), target).ok_or_else(missing)?;
    if is_deleted(&*found) {
        return Err(Error::Refused(format!("the PVC DataSource {target} is currently being deleted")));
    }
    let unusable = || {
        Error::Refused(format!("the PVC DataSource {target} has no volume of {} on node {}", driver.name, driver.node))
    };
    let volume = driver.volume_of(&found).ok_or_else(unusable)?;
    let spec = volume.spec.as_ref().ok_or_else(unusable)?;
    let mode = |mode: Option<&String>| mode.map_or("Filesystem", String::as_str).to_owned();
    if mode(spec.volume_mode.as_ref()) != mode(claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref())) {
        return Err(Error::Refused(format!(
            "the source PVC and destination PVCs must have the same volume mode for cloning: {}",
            name(&*found)
        )));
    }
    let size = spec.capacity.as_ref().and_then(|capacity| capacity.get("storage")).map_or(0, quantity::value);
    let requested = requested_bytes(claim);
    if requested < size {
        return Err(Error::Refused(format!(
            "error, new PVC request must be greater than or equal in size to the specified PVC data source, requested {requested} but source is {size}"
        )));
    }
    let handle = spec.csi.as_ref().map(|source| source.volume_handle.clone()).ok_or_else(unusable)?;
    Ok(VolumeContentSource::volume(handle))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Place;
    use knarr_client::{EventRecorder, Informers};
    use knarr_csi::Client as CsiClient;
    use knarr_csi::messages::ControllerGetCapabilitiesResponse;
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;
    use tokio::sync::Notify;

    /// A driver whose API has these objects, by name.
    fn driver(objects: Value) -> Driver {
        let respond = tower::service_fn(move |request: http::Request<Body>| {
            let object = &objects[request.uri().path().rsplit('/').next().unwrap_or_default()];
            let response = http::Response::builder().status(if object.is_null() { 404 } else { 200 });
            let response = response.body(Body::from(object.to_string().into_bytes()));
            async move { response }
        });
        let kube = knarr_client::in_process_client(respond);
        let informers = Informers::new(kube.clone());
        Driver {
            name: "d".to_owned(),
            node: "n".to_owned(),
            namespace: "kube-system".to_owned(),
            place: Place { segments: BTreeMap::new(), node_uid: String::new(), node_id: String::new() },
            is_local: true,
            csi: CsiClient::connect("/nowhere").unwrap(),
            recorder: EventRecorder::new(kube.clone(), "d", None),
            kube,
            claims: informers.of(),
            volumes: informers.of(),
            classes: informers.of(),
            attachments: informers.of(),
            csi_drivers: informers.of(),
            informers,
            capabilities: ControllerGetCapabilitiesResponse::of(&[ControllerCapability::CreateDeleteSnapshot]),
            space_changed: Notify::new(),
        }
    }

    #[tokio::test]
    async fn a_snapshot_of_a_block_device_is_not_mounted_without_permission() {
        for (was, wanted, permission, is_refused) in [
            (Some("Block"), None, None, true),
            (Some("Block"), Some("Filesystem"), None, true),
            (Some("Block"), Some("Filesystem"), Some("false"), true),
            (Some("Block"), Some("Filesystem"), Some("true"), false),
            (Some("Block"), Some("Block"), None, false),
            (Some("Filesystem"), Some("Block"), None, true),
            (Some("Filesystem"), None, None, false),
            (None, Some("Filesystem"), None, false),
        ] {
            let objects = json!({
                "s": {"metadata": {"name": "s", "namespace": "a", "uid": "u"}, "spec": {"source": {}},
                    "status": {"boundVolumeSnapshotContentName": "c"}},
                "c": {"metadata": {"name": "c", "annotations": permission.map(|text| json!({ALLOW_MODE_CHANGE: text}))},
                    "spec": {"deletionPolicy": "Delete", "driver": "d", "source": {}, "sourceVolumeMode": was,
                        "volumeSnapshotRef": {"uid": "u"}},
                    "status": {"readyToUse": true, "snapshotHandle": "h"}},
            });
            let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
            let claim = json!({"metadata": {"name": "p", "namespace": "a"},
                "spec": {"volumeMode": wanted, "dataSource": source}});
            let given = content_source(&driver(objects), &serde_json::from_value(claim).unwrap()).await;
            let case = format!("{was:?} {wanted:?} {permission:?}: {given:?}");
            match given {
                Err(Error::Refused(why)) => assert!(is_refused && why.contains("modifies the mode"), "{case}"),
                given => assert!(!is_refused && given.is_ok_and(|source| source.is_some()), "{case}"),
            }
        }
    }

    #[test]
    fn data_sources_are_distinguished() {
        let claim = |spec: Value| -> PersistentVolumeClaim { serde_json::from_value(json!({"spec": spec})).unwrap() };
        let group = "snapshot.storage.k8s.io";
        for (spec, expected) in [
            (json!({}), Source::None),
            (json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "c"}}), Source::Claim("c")),
            (json!({"dataSource": {"kind": "VolumeSnapshot", "name": "s", "apiGroup": group}}), Source::Snapshot("s")),
            (
                json!({"dataSource": {"kind": "VolumeSnapshot", "name": "old", "apiGroup": group},
                    "dataSourceRef": {"kind": "VolumeSnapshot", "name": "s", "apiGroup": group}}),
                Source::Snapshot("s"),
            ),
            (json!({"dataSourceRef": {"kind": "Hello", "name": "h", "apiGroup": "hello.example.com"}}), Source::Other),
        ] {
            assert_eq!(source(&claim(spec.clone())), expected, "{spec}");
        }
    }
}
