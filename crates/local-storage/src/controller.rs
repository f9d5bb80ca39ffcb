//! The Controller service: volumes and snapshots as a whole.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use knarr_csi::messages::{self as csi, *};
use knarr_csi::{Controller, Status};

use crate::copy;
use crate::driver::{Driver, Service};
use crate::error::Error;
use crate::freeze::Frozen;
use crate::record::{self, Kind, Snapshot, Source, Volume};
use crate::store::{DATA, IMAGE};
use crate::{filesystem, loop_device, plan};

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

/// The content of a new volume.
enum Content {
    Empty,
    Of(Volume),
    Was(Snapshot),
}

impl Content {
    fn kind(&self) -> Option<&Kind> {
        match self {
            Self::Empty => None,
            Self::Of(volume) => Some(&volume.kind),
            Self::Was(snapshot) => Some(&snapshot.kind),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Of(volume) => volume.bytes,
            Self::Was(snapshot) => snapshot.bytes,
        }
    }
}

impl Driver {
    fn create_volume(&self, request: &CreateVolumeRequest) -> Result<Volume, Error> {
        present(&request.name, "the name")?;
        let kind = plan::kind(&request.volume_capabilities, &request.parameters, &self.abilities)?;
        let source = source(request.volume_content_source.as_ref())?;
        if !plan::accessible(request.accessibility_requirements.as_ref(), &self.settings.node) {
            let node = &self.settings.node;
            return Err(Error::Exhausted(format!("volumes of node {node} are not accessible where it is required")));
        }
        let range = request.capacity_range.as_ref();
        let _name = self.lock(&format!("the volume name {}", request.name))?;
        if let Some(found) = self.state.lock().volumes.named(&request.name) {
            return same_volume(found, request, source.as_ref()).map(|()| found.clone());
        }
        let _source = source.as_ref().map(|source| self.lock(source_id(source))).transpose()?;
        let content = self.content(source.as_ref())?;
        let kind = kind_with_content(kind, &content, &request.volume_capabilities)?;
        let bytes = match kind {
            Kind::Directory => 0,
            _ => plan::size(range, content.bytes())?,
        };
        let _reserved = self.reserve(bytes)?;
        let id = record::random_id();
        let mut volume = Volume { id: id.clone(), name: request.name.clone(), bytes, kind, source, grow: false };
        let built = self.layout.new_directory(&id).and_then(|directory| {
            volume.grow = self.build(&volume, &content, &directory)?;
            record::write(&directory, &volume)?;
            self.layout.finish(&id, &self.layout.volumes())
        });
        if let Err(error) = built {
            self.layout.abandon(&id);
            return Err(error);
        }
        self.state.lock().volumes.insert(volume.clone());
        tracing::info!(volume = id, name = volume.name, bytes, "created a local volume");
        Ok(volume)
    }

    fn content(&self, source: Option<&Source>) -> Result<Content, Error> {
        match source {
            None => Ok(Content::Empty),
            Some(Source::Volume(id)) => self.volume(id).map(Content::Of),
            Some(Source::Snapshot(id)) => self.snapshot(id).map(Content::Was),
        }
    }

    fn snapshot(&self, id: &str) -> Result<Snapshot, Error> {
        let found = self.state.lock().snapshots.get(id).cloned();
        found.ok_or_else(|| Error::NotFound(format!("snapshot {id:?} does not exist")))
    }

    /// Returns whether the filesystem still has to grow to the size of its image.
    fn build(&self, volume: &Volume, content: &Content, directory: &Path) -> Result<bool, Error> {
        let (image, data) = (directory.join(IMAGE), directory.join(DATA));
        match (&volume.kind, content) {
            (Kind::Directory, Content::Empty) => {
                DirBuilder::new().mode(0o755).create(&data).map_err(Error::file("create", &data))?;
            }
            (_, Content::Of(other)) => self.copy(other, directory)?,
            (_, Content::Was(snapshot)) => {
                let from = self.layout.snapshots().join(&snapshot.id);
                match snapshot.kind {
                    Kind::Directory => copy::directory(&from.join(DATA), &data)?,
                    _ => copy::image(&from.join(IMAGE), &image).map(drop)?,
                }
            }
            (_, Content::Empty) => File::create(&image).map(drop).map_err(Error::file("create", &image))?,
        }
        if volume.kind == Kind::Directory {
            return Ok(false);
        }
        let file = File::options().write(true).open(&image).map_err(Error::file("open", &image))?;
        file.set_len(volume.bytes).map_err(Error::file("resize", &image))?;
        let mut grow = false;
        if let Kind::Filesystem { fs_type } = &volume.kind {
            match content {
                Content::Empty => filesystem::create(fs_type, &image)?,
                _ if volume.bytes > content.bytes() => grow = !filesystem::grow_unmounted(fs_type, &image)?,
                _ => {}
            }
        }
        file.sync_all().map_err(Error::file("sync", &image))?;
        Ok(grow)
    }

    /// Copies the content of a volume as it is at one moment.
    fn copy(&self, volume: &Volume, directory: &Path) -> Result<(), Error> {
        let (from, to) = (self.image(volume), directory.join(IMAGE));
        let mounts = self.mounts(volume)?;
        match &volume.kind {
            Kind::Filesystem { .. } => {
                let _frozen = mounts.first().map(|mount| Frozen::new(&mount.target)).transpose()?;
                copy::image(&from, &to).map(drop)
            }
            Kind::Block => {
                let device = loop_device::find(&from)?;
                if let Some(device) = &device {
                    let open = File::open(&device.path).map_err(Error::file("open", &device.path))?;
                    open.sync_all().map_err(Error::file("sync", &device.path))?;
                }
                if mounts.is_empty() {
                    return copy::image(&from, &to).map(drop);
                }
                match copy::reflink(&from, &to)? {
                    true => Ok(()),
                    false => {
                        Err(in_use(volume, "is published, and the disk of the node cannot copy a file in one moment"))
                    }
                }
            }
            Kind::Directory if mounts.is_empty() => copy::directory(&self.data(volume), &directory.join(DATA)),
            Kind::Directory => Err(in_use(volume, "is mounted, and a directory cannot be copied in one moment")),
        }
    }

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

    fn create_snapshot(&self, request: &CreateSnapshotRequest) -> Result<Snapshot, Error> {
        present(&request.name, "the name")?;
        present(&request.source_volume_id, "the source volume ID")?;
        if let Some(key) = request.parameters.keys().find(|key| !key.starts_with("csi.storage.k8s.io/")) {
            return Err(Error::Invalid(format!("the parameter {key} is unknown")));
        }
        let _name = self.lock(&format!("the snapshot name {}", request.name))?;
        if let Some(found) = self.state.lock().snapshots.named(&request.name) {
            if found.volume == request.source_volume_id {
                return Ok(found.clone());
            }
            return Err(Error::Exists(format!("snapshot {} of another volume exists", request.name)));
        }
        let _busy = self.lock(&request.source_volume_id)?;
        let volume = self.volume(&request.source_volume_id)?;
        let needed = match volume.kind {
            Kind::Directory => 0,
            _ => copy::allocated(&self.image(&volume))?,
        };
        let _reserved = self.reserve(needed)?;
        let id = record::random_id();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let snapshot = Snapshot {
            id: id.clone(),
            name: request.name.clone(),
            volume: volume.id.clone(),
            bytes: volume.bytes,
            kind: volume.kind.clone(),
            created: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
        };
        let built = self.layout.new_directory(&id).and_then(|directory| {
            self.copy(&volume, &directory)?;
            record::write(&directory, &snapshot)?;
            self.layout.finish(&id, &self.layout.snapshots())
        });
        if let Err(error) = built {
            self.layout.abandon(&id);
            return Err(error);
        }
        self.state.lock().snapshots.insert(snapshot.clone());
        Ok(snapshot)
    }

    fn delete_snapshot(&self, id: &str) -> Result<(), Error> {
        present(id, "the snapshot ID")?;
        let _busy = self.lock(id)?;
        if self.state.lock().snapshots.get(id).is_none() {
            return Ok(());
        }
        self.layout.retire(id, &self.layout.snapshots())?;
        self.state.lock().snapshots.remove(id);
        self.layout.remove_retired(id);
        Ok(())
    }

    fn expand_volume(&self, request: &ControllerExpandVolumeRequest) -> Result<ControllerExpandVolumeResponse, Error> {
        present(&request.volume_id, "the volume ID")?;
        let Some(range) = request.capacity_range else {
            return Err(Error::Invalid("the capacity range is missing".into()));
        };
        let _busy = self.lock(&request.volume_id)?;
        let mut volume = self.volume(&request.volume_id)?;
        if volume.kind == Kind::Directory {
            let capacity_bytes = range.required_bytes;
            return Ok(ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: false });
        }
        let bytes = plan::size(Some(&range), volume.bytes)?;
        let image = self.image(&volume);
        if bytes > volume.bytes {
            let _reserved = self.reserve(bytes - volume.bytes)?;
            let file = File::options().write(true).open(&image).map_err(Error::file("open", &image))?;
            file.set_len(bytes).and_then(|()| file.sync_all()).map_err(Error::file("resize", &image))?;
            volume.bytes = bytes;
            volume.grow = matches!(volume.kind, Kind::Filesystem { .. });
            self.update(volume.clone())?;
        }
        // A device that is attached gets the size at once; a filesystem grows on the node.
        if let Some(device) = loop_device::find(&image)? {
            device.update_size()?;
        }
        let capacity_bytes = signed(volume.bytes);
        Ok(ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: volume.kind != Kind::Block })
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

/// Whether a volume is what a repeated request asks for.
fn same_volume(found: &Volume, request: &CreateVolumeRequest, source: Option<&Source>) -> Result<(), Error> {
    let differs = |what: &str| Err(Error::Exists(format!("volume {} exists with {what}", request.name)));
    if found.kind != Kind::Directory && !plan::fits(found.bytes, request.capacity_range.as_ref()) {
        return differs("another size");
    }
    if found.source.as_ref() != source {
        return differs("other content");
    }
    match request.volume_capabilities.iter().find_map(|one| plan::mismatch(&found.kind, one)) {
        Some(reason) => differs(&reason),
        None => Ok(()),
    }
}

/// A copy has the filesystem of its source.
fn kind_with_content(kind: Kind, content: &Content, capabilities: &[VolumeCapability]) -> Result<Kind, Error> {
    let Some(found) = content.kind() else { return Ok(kind) };
    if let Some(reason) = capabilities.iter().find_map(|one| plan::mismatch(found, one)) {
        return Err(Error::Invalid(format!("the source does not fit: {reason}")));
    }
    if (*found == Kind::Directory) != (kind == Kind::Directory) {
        return Err(Error::Invalid(format!("source and copy must have the same parameter {}", plan::SIZE_LIMIT)));
    }
    Ok(found.clone())
}

fn source(source: Option<&VolumeContentSource>) -> Result<Option<Source>, Error> {
    match source.map(|source| &source.kind) {
        None => Ok(None),
        Some(Some(ContentSource::Snapshot(from))) => Ok(Some(Source::Snapshot(from.snapshot_id.clone()))),
        Some(Some(ContentSource::Volume(from))) => Ok(Some(Source::Volume(from.volume_id.clone()))),
        Some(None) => Err(Error::Invalid("the kind of content source is unknown".into())),
    }
}

fn source_id(source: &Source) -> &str {
    match source {
        Source::Snapshot(id) | Source::Volume(id) => id,
    }
}

fn describe_snapshot(snapshot: &Snapshot) -> csi::Snapshot {
    csi::Snapshot {
        size_bytes: signed(snapshot.bytes),
        snapshot_id: snapshot.id.clone(),
        source_volume_id: snapshot.volume.clone(),
        creation_time: Some(Timestamp { seconds: snapshot.created, nanos: 0 }),
        ready_to_use: true,
        group_snapshot_id: String::new(),
    }
}

fn in_use(volume: &Volume, how: &str) -> Error {
    Error::Precondition(format!("volume {} {how}", volume.id))
}

/// An error if a required field is empty.
pub(crate) fn present(value: &str, field: &str) -> Result<(), Error> {
    if value.is_empty() { Err(Error::Invalid(format!("{field} is missing"))) } else { Ok(()) }
}

pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
