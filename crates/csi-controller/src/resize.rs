//! Expands volumes of claims that request more, as external-resizer does.
//!
//! The claim's status says which size is being allocated and how far that is, so that a restart continues, and so that a
//! size which the driver cannot provide can be reduced again.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use knarr_client::quantity::{self, Format, Quantity, value};
use knarr_client::{Change, run_workers};
use knarr_csi::Code;
use knarr_csi::messages::{
    CapacityRange, ControllerCapability, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};

use crate::claim::requested_bytes;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::meta::{Key, is_deleted, name, namespace};
use crate::provision::capability;
use crate::status::{self, FILE_SYSTEM_RESIZE_PENDING, RESIZING};

const STORAGE: &str = "storage";
const PENDING_MESSAGE: &str = "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";

pub(crate) async fn run(driver: Arc<Driver>) {
    let queue = driver.queue::<Key>();
    let added = queue.clone();
    driver.claims.on_change(move |change| {
        let claim = change.latest();
        let relevant = |claim: &PersistentVolumeClaim| {
            // Not the progress, which is written here: that must not end a backoff.
            let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
            let phase = claim.status.as_ref().and_then(|status| status.phase.clone());
            (volume, phase, requested_bytes(claim))
        };
        let has_changed = change.previous().is_none_or(|old| relevant(old) != relevant(claim));
        if !matches!(change, Change::Deleted(_)) && has_changed && requested_bytes(claim) > capacity_bytes(claim) {
            added.add(Key::of(&**claim));
        }
    });
    run_workers(queue, Driver::workers(), move |key: Key| {
        let driver = driver.clone();
        async move {
            let Some(claim) = driver.claims.get(&key.namespace, &key.name) else { return Ok::<(), Error>(()) };
            let Some(volume) = driver.volume_of(&claim) else { return Ok(()) };
            match plan(&claim) {
                Some(bytes) => Expansion { driver: &driver, bytes }.run(&claim, &volume).await,
                None => Ok(()),
            }
        }
    })
    .await;
}

fn storage(
    resources: Option<&std::collections::BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>,
) -> Option<i64> {
    resources?.get(STORAGE).map(value)
}

fn capacity_bytes(claim: &PersistentVolumeClaim) -> i64 {
    storage(claim.status.as_ref().and_then(|status| status.capacity.as_ref())).unwrap_or(0)
}

fn allocated_bytes(claim: &PersistentVolumeClaim) -> Option<i64> {
    storage(claim.status.as_ref().and_then(|status| status.allocated_resources.as_ref()))
}

fn resource_status(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.allocated_resource_statuses.as_ref()?.get(STORAGE).map(String::as_str)
}

fn volume_bytes(volume: &PersistentVolume) -> i64 {
    storage(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref())).unwrap_or(0)
}

/// The size to expand to now.
fn plan(claim: &PersistentVolumeClaim) -> Option<i64> {
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let requested = requested_bytes(claim);
    if phase != Some("Bound") || is_deleted(claim) || requested <= capacity_bytes(claim) {
        return None;
    }
    match (resource_status(claim), allocated_bytes(claim)) {
        // The node's turn, unless the request has changed.
        (Some("NodeResizePending" | "NodeResizeInProgress"), Some(allocated)) if allocated >= requested => None,
        (Some("NodeResizeInfeasible"), Some(allocated)) if allocated == requested => None,
        // It may have succeeded already: a reduced request counts only after the outcome is known.
        (Some("ControllerResizeInProgress"), Some(allocated)) => Some(allocated),
        _ => Some(requested),
    }
}

struct Expansion<'a> {
    driver: &'a Driver,
    bytes: i64,
}

impl Expansion<'_> {
    fn quantity(&self) -> String {
        Quantity::new(self.bytes, Format::BinarySi).to_string()
    }

    async fn run(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<()> {
        let recorder = &self.driver.recorder;
        let started = self.started(claim);
        let claim = self.write(claim, started).await?;
        recorder.normal(&claim, "Resizing", format!("External resizer is resizing volume {}", name(volume)));
        match self.expand(volume).await {
            Ok(expanded) => self.finish(&claim, volume, expanded).await,
            Err(error) => {
                let driver = &self.driver.name;
                let message = format!("resize volume \"{}\" by resizer \"{driver}\" failed: {error}", name(volume));
                recorder.warning(&claim, "VolumeResizeFailed", message);
                if is_infeasible(&error) {
                    self.write(&claim, self.infeasible()).await?;
                }
                Err(error)
            }
        }
    }

    async fn expand(&self, volume: &PersistentVolume) -> Result<ControllerExpandVolumeResponse> {
        // A driver without the call expands only on the node.
        let on_node = ControllerExpandVolumeResponse { capacity_bytes: self.bytes, node_expansion_required: true };
        if !self.driver.can(ControllerCapability::ExpandVolume) {
            return Ok(on_node);
        }
        let spec = volume.spec.clone().unwrap_or_default();
        let source = spec.csi.unwrap_or_default();
        let mode = spec.access_modes.iter().flatten().next().map_or("ReadWriteOnce", String::as_str);
        let is_block = spec.volume_mode.as_deref() == Some("Block");
        let counts_writers = self.driver.can(ControllerCapability::SingleNodeMultiWriter);
        let fs_type = source.fs_type.unwrap_or_default();
        let options = spec.mount_options.unwrap_or_default();
        let request = ControllerExpandVolumeRequest {
            volume_id: source.volume_handle,
            capacity_range: Some(CapacityRange { required_bytes: self.bytes, limit_bytes: 0 }),
            secrets: Vec::new(),
            volume_capability: Some(capability(mode, is_block, &fs_type, &options, counts_writers)),
        };
        Ok(self.driver.csi.controller_expand_volume(request).await?)
    }

    /// First the PersistentVolume has the new size, then the claim: a kill between is repaired by the next call.
    async fn finish(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        expanded: ControllerExpandVolumeResponse,
    ) -> Result<()> {
        let bytes = expanded.capacity_bytes.max(self.bytes);
        if volume_bytes(volume) < bytes {
            let size = quantity::to_api(&Quantity::new(bytes, Format::BinarySi));
            let patch = Patch::Merge(json!({"spec": {"capacity": {STORAGE: size}}}));
            let api: Api<PersistentVolume> = Api::all(self.driver.kube.clone());
            api.patch(name(volume), &PatchParams::default(), &patch).await?;
        }
        self.driver.space_changed.notify_one();
        let recorder = &self.driver.recorder;
        if expanded.node_expansion_required {
            self.write(claim, self.pending(claim)).await?;
            recorder.normal(claim, "FileSystemResizeRequired", "Require file system resize of volume on node");
        } else {
            self.write(claim, self.done(claim, bytes)).await?;
            recorder.normal(claim, "VolumeResizeSuccessful", "Resize volume succeeded");
        }
        Ok(())
    }

    fn started(&self, claim: &PersistentVolumeClaim) -> Map<String, Value> {
        let conditions = status::conditions(claim, &[], Some((RESIZING, "")));
        fields(json!({
            "conditions": conditions,
            "allocatedResources": {STORAGE: self.quantity()},
            "allocatedResourceStatuses": {STORAGE: "ControllerResizeInProgress"},
        }))
    }

    fn infeasible(&self) -> Map<String, Value> {
        fields(json!({"allocatedResourceStatuses": {STORAGE: "ControllerResizeInfeasible"}}))
    }

    fn pending(&self, claim: &PersistentVolumeClaim) -> Map<String, Value> {
        let pending = Some((FILE_SYSTEM_RESIZE_PENDING, PENDING_MESSAGE));
        fields(json!({
            "conditions": status::conditions(claim, &[RESIZING], pending),
            "allocatedResources": {STORAGE: self.quantity()},
            "allocatedResourceStatuses": {STORAGE: "NodeResizePending"},
        }))
    }

    fn done(&self, claim: &PersistentVolumeClaim, bytes: i64) -> Map<String, Value> {
        fields(json!({
            "capacity": {STORAGE: Quantity::new(bytes, Format::BinarySi).to_string()},
            "conditions": status::conditions(claim, &[RESIZING, FILE_SYSTEM_RESIZE_PENDING], None),
            "allocatedResources": {STORAGE: self.quantity()},
            "allocatedResourceStatuses": {STORAGE: null},
        }))
    }

    async fn write(&self, claim: &PersistentVolumeClaim, fields: Map<String, Value>) -> Result<PersistentVolumeClaim> {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.driver.kube.clone(), namespace(claim));
        let patch = Patch::Merge(status::patch(claim, fields));
        Ok(api.patch_status(name(claim), &PatchParams::default(), &patch).await?)
    }
}

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// Whether the driver will never expand the volume to this size.
fn is_infeasible(error: &Error) -> bool {
    let Error::Call(error) = error else { return false };
    matches!(error.code(), Code::InvalidArgument | Code::OutOfRange | Code::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_follows_from_request_and_progress() {
        for (phase, requested, capacity, allocated, status, expected) in [
            ("Bound", "1Gi", "1Gi", None, None, None),
            ("Bound", "2Gi", "1Gi", None, None, Some(2)),
            ("Pending", "2Gi", "1Gi", None, None, None),
            ("Bound", "2Gi", "1Gi", Some("2Gi"), Some("NodeResizePending"), None),
            ("Bound", "3Gi", "1Gi", Some("2Gi"), Some("NodeResizePending"), Some(3)),
            ("Bound", "2Gi", "1Gi", Some("2Gi"), Some("NodeResizeInfeasible"), None),
            ("Bound", "2Gi", "1Gi", Some("4Gi"), Some("NodeResizeInfeasible"), Some(2)),
            ("Bound", "2Gi", "1Gi", Some("4Gi"), Some("ControllerResizeInProgress"), Some(4)),
            ("Bound", "2Gi", "1Gi", Some("4Gi"), Some("ControllerResizeInfeasible"), Some(2)),
            ("Bound", "2Gi", "2Gi", Some("2Gi"), None, None),
        ] {
            let allocated = allocated.map(|size| json!({STORAGE: size}));
            let statuses = status.map(|status| json!({STORAGE: status}));
            let claim: PersistentVolumeClaim = serde_json::from_value(json!({
                "spec": {"resources": {"requests": {STORAGE: requested}}},
                "status": {"phase": phase, "capacity": {STORAGE: capacity}, "allocatedResources": allocated,
                    "allocatedResourceStatuses": statuses},
            }))
            .unwrap();
            let expected = expected.map(|size: i64| size << 30);
            assert_eq!(plan(&claim), expected, "{requested} {capacity} {status:?}");
        }
    }

    #[test]
    fn only_a_refusal_is_infeasible() {
        let call = |status: knarr_csi::Status| {
            let status = Box::new(status);
            Error::Call(knarr_csi::CallError::Refused { method: "ControllerExpandVolume", status })
        };
        for (status, expected) in [
            (knarr_csi::Status::out_of_range("too large"), true),
            (knarr_csi::Status::invalid_argument("no"), true),
            (knarr_csi::Status::unavailable("later"), false),
            (knarr_csi::Status::resource_exhausted("full"), false),
        ] {
            assert_eq!(is_infeasible(&call(status)), expected);
        }
    }
}
