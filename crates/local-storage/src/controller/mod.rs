//! The Controller service: volumes and snapshots as a whole.

mod create_volume;
mod expand_volume;
mod snapshot;

use knarr_csi::messages::{self as csi, *};
use knarr_csi::{Controller, Status};

use crate::driver::{Driver, Service};
use crate::error::Error;
use crate::plan::{self, present, signed};
use crate::record::{Kind, Snapshot, Volume};
use snapshot::describe_snapshot;

const CAPABILITIES: &[ControllerCapability] = &[
    ControllerCapability::CreateDeleteVolume,
    ControllerCapability::ListVolumes,
    ControllerCapability::GetCapacity,
    ControllerCapability::CreateDeleteSnapshot,
    ControllerCapability::ListSnapshots,
    ControllerCapability::GetSnapshot,
    ControllerCapability::CloneVolume,
    ControllerCapability::ExpandVolume,
    ControllerCapability::GetVolume,
    ControllerCapability::VolumeCondition,
    ControllerCapability::SingleNodeMultiWriter,
];

#[async_trait::async_trait]
impl Controller for Service {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
        self.run(move |driver| {
            let volume = driver.create_volume(&request)?;
            Ok(CreateVolumeResponse { volume: Some(driver.describe(&volume)) })
        })
        .await
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<DeleteVolumeResponse, Status> {
        self.run(move |driver| driver.delete_volume(&request.volume_id).map(|()| DeleteVolumeResponse {})).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
        self.run(move |driver| {
            present(&request.volume_id, "the volume ID")?;
            if request.volume_capabilities.is_empty() {
                return Err(Error::Invalid("volume capabilities are missing".into()));
            }
            let volume = driver.volume(&request.volume_id)?;
            let unsupported = plan::supported(&request.volume_capabilities).err().map(|error| error.to_string());
            let mut mismatches = request.volume_capabilities.iter().filter_map(|one| plan::mismatch(&volume.kind, one));
            if let Some(message) = unsupported.or_else(|| mismatches.next()) {
                return Ok(ValidateVolumeCapabilitiesResponse { confirmed: None, message });
            }
            let confirmed = ConfirmedCapabilities {
                volume_context: request.volume_context,
                volume_capabilities: request.volume_capabilities,
                parameters: request.parameters,
                mutable_parameters: request.mutable_parameters,
            };
            Ok(ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() })
        })
        .await
    }

    async fn list_volumes(&self, request: ListVolumesRequest) -> Result<ListVolumesResponse, Status> {
        self.run(move |driver| {
            let state = driver.state.lock();
            let (page, next_token) =
                plan::page(state.volumes.all(), |volume| &volume.id, &request.starting_token, request.max_entries)?;
            let entry = |volume: &&Volume| VolumeEntry {
                volume: Some(driver.describe(volume)),
                status: Some(driver.status(volume)),
            };
            Ok(ListVolumesResponse { entries: page.iter().map(entry).collect(), next_token })
        })
        .await
    }

    async fn controller_get_volume(
        &self,
        request: ControllerGetVolumeRequest,
    ) -> Result<ControllerGetVolumeResponse, Status> {
        self.run(move |driver| {
            present(&request.volume_id, "the volume ID")?;
            let volume = driver.volume(&request.volume_id)?;
            let status = Some(driver.status(&volume));
            Ok(ControllerGetVolumeResponse { volume: Some(driver.describe(&volume)), status })
        })
        .await
    }

    async fn get_capacity(&self, request: GetCapacityRequest) -> Result<GetCapacityResponse, Status> {
        self.run(move |driver| {
            let here = request.accessible_topology.as_ref();
            let possible = here.is_none_or(|topology| plan::is_here(topology, &driver.settings.node))
                && (request.volume_capabilities.is_empty()
                    || plan::kind(&request.volume_capabilities, &request.parameters, &driver.abilities).is_ok());
            let available = if possible { signed(driver.available()?) } else { 0 };
            let maximum_volume_size = Some(Int64Value { value: available.min(signed(plan::MAXIMUM_BYTES)) });
            let minimum_volume_size = Some(Int64Value { value: signed(plan::MINIMUM_BYTES) });
            Ok(GetCapacityResponse { available_capacity: available, maximum_volume_size, minimum_volume_size })
        })
        .await
    }

    async fn controller_get_capabilities(
        &self,
        _: ControllerGetCapabilitiesRequest,
    ) -> Result<ControllerGetCapabilitiesResponse, Status> {
        Ok(ControllerGetCapabilitiesResponse::of(CAPABILITIES))
    }

    async fn create_snapshot(&self, request: CreateSnapshotRequest) -> Result<CreateSnapshotResponse, Status> {
        self.run(move |driver| {
            let snapshot = driver.create_snapshot(&request)?;
            Ok(CreateSnapshotResponse { snapshot: Some(describe_snapshot(&snapshot)) })
        })
        .await
    }

    async fn delete_snapshot(&self, request: DeleteSnapshotRequest) -> Result<DeleteSnapshotResponse, Status> {
        self.run(move |driver| driver.delete_snapshot(&request.snapshot_id).map(|()| DeleteSnapshotResponse {})).await
    }

    async fn list_snapshots(&self, request: ListSnapshotsRequest) -> Result<ListSnapshotsResponse, Status> {
        self.run(move |driver| {
            let state = driver.state.lock();
            let wanted = |snapshot: &&Snapshot| {
                (request.snapshot_id.is_empty() || request.snapshot_id == snapshot.id)
                    && (request.source_volume_id.is_empty() || request.source_volume_id == snapshot.volume)
            };
            let all = state.snapshots.all().filter(wanted);
            let (page, next_token) =
                plan::page(all, |snapshot| &snapshot.id, &request.starting_token, request.max_entries)?;
            let entry = |snapshot: &&Snapshot| SnapshotEntry { snapshot: Some(describe_snapshot(snapshot)) };
            Ok(ListSnapshotsResponse { entries: page.iter().map(entry).collect(), next_token })
        })
        .await
    }

    async fn get_snapshot(&self, request: GetSnapshotRequest) -> Result<GetSnapshotResponse, Status> {
        self.run(move |driver| {
            present(&request.snapshot_id, "the snapshot ID")?;
            let snapshot = driver.snapshot(&request.snapshot_id)?;
            Ok(GetSnapshotResponse { snapshot: Some(describe_snapshot(&snapshot)) })
        })
        .await
    }

    async fn controller_expand_volume(
        &self,
        request: ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        self.run(move |driver| driver.expand_volume(&request)).await
    }
}

impl Driver {
    fn delete_volume(&self, id: &str) -> Result<(), Error> {
        present(id, "the volume ID")?;
        let _busy = self.lock(id)?;
        let Ok(volume) = self.volume(id) else { return Ok(()) };
        if let Some(mount) = self.mounts(&volume)?.first() {
            return Err(in_use(&volume, &format!("is mounted at {}", mount.target.display())));
        }
        self.layout.retire(id, &self.layout.volumes())?;
        self.state.lock().volumes.remove(id);
        self.layout.remove_retired(id);
        tracing::info!(volume = id, name = volume.name, "deleted a local volume");
        Ok(())
    }

    fn describe(&self, volume: &Volume) -> csi::Volume {
        csi::Volume {
            capacity_bytes: signed(volume.bytes),
            volume_id: volume.id.clone(),
            volume_context: StringMap::new(),
            content_source: volume.source.as_ref().map(Into::into),
            accessible_topology: vec![self.topology()],
        }
    }

    fn status(&self, volume: &Volume) -> VolumeStatus {
        VolumeStatus { published_node_ids: Vec::new(), volume_condition: Some(self.condition(volume)) }
    }

    /// The health of a volume, from what is on disk.
    pub(crate) fn condition(&self, volume: &Volume) -> VolumeCondition {
        let path = if volume.kind == Kind::Directory { self.data(volume) } else { self.image(volume) };
        match std::fs::symlink_metadata(&path) {
            Ok(found) if volume.kind != Kind::Directory && found.len() < volume.bytes => {
                VolumeCondition { abnormal: true, message: "the image is shorter than the volume".into() }
            }
            Ok(_) => VolumeCondition { abnormal: false, message: "the data is on the disk".into() },
            Err(error) => VolumeCondition { abnormal: true, message: format!("the data cannot be read: {error}") },
        }
    }
}

fn in_use(volume: &Volume, how: &str) -> Error {
    Error::Precondition(format!("volume {} {how}", volume.id))
}
