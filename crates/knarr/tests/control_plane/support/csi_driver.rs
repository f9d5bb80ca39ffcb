//! A CSI driver in memory, with its registration socket, that can be made to hang after it has done what it was asked for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use knarr_csi::messages::*;
use knarr_csi::{Controller, Identity, Registration, Server, Status};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

const GIB: i64 = 1 << 30;

/// What the driver has, and how it behaves.
#[derive(Default)]
pub struct State {
    /// By name.
    pub volumes: BTreeMap<String, Volume>,
    pub snapshots: BTreeMap<String, Snapshot>,
    /// Attached: volume and node.
    pub attached: Vec<(String, String)>,
    /// Calls by method.
    pub calls: BTreeMap<&'static str, usize>,
    /// Calls of this method hang after their work.
    hanging: Option<&'static str>,
}

pub struct FakeDriver {
    pub name: String,
    node: String,
    socket: PathBuf,
    /// Whether its volumes belong to the node.
    is_local: bool,
    size: i64,
    pub state: Mutex<State>,
    /// The number of calls that hang.
    hung: watch::Sender<usize>,
    never: Semaphore,
}

/// Serves until dropped.
pub struct Serving(#[allow(dead_code)] JoinSet<()>);

impl FakeDriver {
    pub const TOPOLOGY: &str = "topology.fake.example.com/node";

    pub fn new(name: &str, node: &str, directory: &Path, is_local: bool) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            node: node.to_owned(),
            socket: directory.join(format!("{name}-{node}.sock")),
            is_local,
            size: 10 * GIB,
            state: Mutex::default(),
            hung: watch::Sender::new(0),
            never: Semaphore::new(0),
        })
    }

    /// Serves the driver, and its registration in `registry`.
    pub fn serve(self: &Arc<Self>, registry: &Path) -> Serving {
        let mut tasks = JoinSet::new();
        let driver = Server::new().identity(self.clone()).controller(self.clone());
        let listener = knarr_csi::listen(&self.socket).expect("a socket");
        tasks.spawn(async move { driver.serve(listener).await.expect("the driver serves") });
        let registration = Server::new().registration(self.clone());
        let listener = knarr_csi::listen(&registry.join(format!("{}-reg.sock", self.name))).expect("a socket");
        tasks.spawn(async move { registration.serve(listener).await.expect("the registration serves") });
        Serving(tasks)
    }

    /// From now on calls of this method hang after their work; `None` ends that for new calls.
    pub fn hang_after(&self, method: Option<&'static str>) {
        self.state.lock().hanging = method;
    }

    /// Waits until as many calls have hung since the start.
    pub async fn until_hung(&self, count: usize) {
        self.hung.subscribe().wait_for(|hung| *hung >= count).await.expect("the driver lives");
    }

    pub fn volumes(&self) -> Vec<String> {
        self.state.lock().volumes.keys().cloned().collect()
    }

    async fn finish(&self, method: &'static str) {
        let hangs = {
            let mut state = self.state.lock();
            *state.calls.entry(method).or_default() += 1;
            state.hanging == Some(method)
        };
        if hangs {
            self.hung.send_modify(|hung| *hung += 1);
            // Nothing is ever added to the semaphore.
            let _ = self.never.acquire().await;
        }
    }

    fn used(&self) -> i64 {
        self.state.lock().volumes.values().map(|volume| volume.capacity_bytes).sum()
    }
}

#[async_trait::async_trait]
impl Registration for FakeDriver {
    async fn get_info(&self, _: InfoRequest) -> Result<PluginInfo, Status> {
        Ok(PluginInfo {
            kind: "CSIPlugin".into(),
            name: self.name.clone(),
            endpoint: self.socket.to_string_lossy().into_owned(),
            supported_versions: vec!["1.0.0".into()],
        })
    }
}

#[async_trait::async_trait]
impl Identity for FakeDriver {
    async fn get_plugin_capabilities(
        &self,
        _: GetPluginCapabilitiesRequest,
    ) -> Result<GetPluginCapabilitiesResponse, Status> {
        let mut capabilities = vec![PluginCapability::service(PluginService::Controller)];
        if self.is_local {
            capabilities.push(PluginCapability::service(PluginService::VolumeAccessibilityConstraints));
        }
        Ok(GetPluginCapabilitiesResponse { capabilities })
    }
}

#[async_trait::async_trait]
impl Controller for FakeDriver {
    async fn controller_get_capabilities(
        &self,
        _: ControllerGetCapabilitiesRequest,
    ) -> Result<ControllerGetCapabilitiesResponse, Status> {
        let mut all = vec![
            ControllerCapability::CreateDeleteVolume,
            ControllerCapability::CreateDeleteSnapshot,
            ControllerCapability::ListSnapshots,
            ControllerCapability::CloneVolume,
            ControllerCapability::ExpandVolume,
            ControllerCapability::GetCapacity,
        ];
        if !self.is_local {
            all.push(ControllerCapability::PublishUnpublishVolume);
        }
        Ok(ControllerGetCapabilitiesResponse::of(&all))
    }

    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
        let size = request.capacity_range.map_or(GIB, |range| range.required_bytes);
        let known = self.state.lock().volumes.get(&request.name).cloned();
        let volume = match known {
            Some(volume) => volume,
            None if self.used() + size > self.size => return Err(Status::resource_exhausted("the disk is full")),
            None => {
                let place = Topology { segments: StringMap::from([(Self::TOPOLOGY.into(), self.node.clone())]) };
                let volume = Volume {
                    capacity_bytes: size,
                    volume_id: format!("id-{}", request.name),
                    volume_context: StringMap::new(),
                    content_source: request.volume_content_source.clone(),
                    accessible_topology: if self.is_local { vec![place] } else { Vec::new() },
                };
                self.state.lock().volumes.insert(request.name.clone(), volume.clone());
                volume
            }
        };
        self.finish("CreateVolume").await;
        Ok(CreateVolumeResponse { volume: Some(volume) })
    }

    async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<DeleteVolumeResponse, Status> {
        self.state.lock().volumes.retain(|_, volume| volume.volume_id != request.volume_id);
        self.finish("DeleteVolume").await;
        Ok(DeleteVolumeResponse {})
    }

    async fn controller_publish_volume(
        &self,
        request: ControllerPublishVolumeRequest,
    ) -> Result<ControllerPublishVolumeResponse, Status> {
        let attachment = (request.volume_id.clone(), request.node_id.clone());
        {
            let mut state = self.state.lock();
            if state.attached.iter().any(|(volume, node)| *volume == attachment.0 && *node != attachment.1) {
                return Err(Status::failed_precondition("attached to another node"));
            }
            if !state.attached.contains(&attachment) {
                state.attached.push(attachment);
            }
        }
        self.finish("ControllerPublishVolume").await;
        let publish_context = StringMap::from([("device".into(), "/dev/x".into())]);
        Ok(ControllerPublishVolumeResponse { publish_context })
    }

    async fn controller_unpublish_volume(
        &self,
        request: ControllerUnpublishVolumeRequest,
    ) -> Result<ControllerUnpublishVolumeResponse, Status> {
        self.state.lock().attached.retain(|own| *own != (request.volume_id.clone(), request.node_id.clone()));
        self.finish("ControllerUnpublishVolume").await;
        Ok(ControllerUnpublishVolumeResponse {})
    }

    async fn get_capacity(&self, _: GetCapacityRequest) -> Result<GetCapacityResponse, Status> {
        let available_capacity = self.size - self.used();
        Ok(GetCapacityResponse { available_capacity, ..GetCapacityResponse::default() })
    }

    async fn create_snapshot(&self, request: CreateSnapshotRequest) -> Result<CreateSnapshotResponse, Status> {
        let snapshot = {
            let mut state = self.state.lock();
            let source = state.volumes.values().find(|volume| volume.volume_id == request.source_volume_id);
            let size_bytes = source.ok_or_else(|| Status::not_found("no such volume"))?.capacity_bytes;
            let snapshot = Snapshot {
                size_bytes,
                snapshot_id: format!("id-{}", request.name),
                source_volume_id: request.source_volume_id.clone(),
                creation_time: Some(Timestamp { seconds: 1_700_000_000, nanos: 0 }),
                ready_to_use: true,
                group_snapshot_id: String::new(),
            };
            state.snapshots.entry(request.name.clone()).or_insert(snapshot).clone()
        };
        self.finish("CreateSnapshot").await;
        Ok(CreateSnapshotResponse { snapshot: Some(snapshot) })
    }

    async fn delete_snapshot(&self, request: DeleteSnapshotRequest) -> Result<DeleteSnapshotResponse, Status> {
        self.state.lock().snapshots.retain(|_, snapshot| snapshot.snapshot_id != request.snapshot_id);
        self.finish("DeleteSnapshot").await;
        Ok(DeleteSnapshotResponse {})
    }

    async fn list_snapshots(&self, request: ListSnapshotsRequest) -> Result<ListSnapshotsResponse, Status> {
        let state = self.state.lock();
        let found = state.snapshots.values().filter(|own| own.snapshot_id == request.snapshot_id).cloned();
        let entries = found.map(|snapshot| SnapshotEntry { snapshot: Some(snapshot) }).collect();
        Ok(ListSnapshotsResponse { entries, next_token: String::new() })
    }

    async fn controller_expand_volume(
        &self,
        request: ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        let capacity_bytes = request.capacity_range.map_or(0, |range| range.required_bytes);
        if capacity_bytes > self.size {
            return Err(Status::out_of_range("larger than the disk"));
        }
        for volume in self.state.lock().volumes.values_mut().filter(|own| own.volume_id == request.volume_id) {
            volume.capacity_bytes = capacity_bytes;
        }
        self.finish("ControllerExpandVolume").await;
        Ok(ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: false })
    }
}
