//! A CSI driver for tests, on a real socket. It records which volumes are staged and published, and fails as a test requests.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use knarr_csi::messages::*;
use knarr_csi::{Code, Node, Registration, Server, Status, listen};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

#[derive(Clone, Debug)]
pub enum Behaviour {
    /// Fails without doing anything.
    Fail(Code),
    /// Does its work and fails nevertheless.
    DoAndFail(Code),
    /// Does its work and never responds.
    DoAndHang,
    /// Never responds.
    Hang,
    /// Does its work and responds after this time.
    Late(Duration),
}

#[derive(Default)]
pub struct Account {
    /// Staging paths by volume.
    pub staged: BTreeMap<String, String>,
    /// Target paths.
    pub published: BTreeSet<String>,
    /// The calls in their order.
    pub calls: Vec<String>,
    pub stages: Vec<NodeStageVolumeRequest>,
    pub publishes: Vec<NodePublishVolumeRequest>,
    pub expands: Vec<NodeExpandVolumeRequest>,
    pub registrations: Vec<RegistrationStatus>,
    pub condition: Option<VolumeCondition>,
    /// How many volumes the node takes, if not seven.
    pub limit: Option<i64>,
    behaviours: HashMap<&'static str, VecDeque<Behaviour>>,
}

pub struct Fake {
    pub account: Mutex<Account>,
    pub capabilities: Mutex<Vec<NodeCapability>>,
    pub name: String,
    endpoint: PathBuf,
    called: Notify,
}

pub struct FakeDriver {
    pub fake: Arc<Fake>,
    pub socket: PathBuf,
    server: JoinHandle<()>,
}

pub const ALL: [NodeCapability; 3] =
    [NodeCapability::StageUnstageVolume, NodeCapability::ExpandVolume, NodeCapability::GetVolumeStats];

impl FakeDriver {
    /// Serves a driver and its registration on one socket.
    pub fn start(socket: &Path, name: &str) -> Self {
        let fake = Arc::new(Fake {
            account: Mutex::default(),
            capabilities: Mutex::new(ALL.to_vec()),
            name: name.to_string(),
            endpoint: socket.to_path_buf(),
            called: Notify::new(),
        });
        let server = serve(socket, &fake);
        Self { fake, socket: socket.to_path_buf(), server }
    }

    pub fn will(&self, method: &'static str, behaviour: Behaviour) {
        self.fake.account.lock().behaviours.entry(method).or_default().push_back(behaviour);
    }

    /// The calls since the last time, without questions.
    pub fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.fake.account.lock().calls)
    }

    pub fn leaks(&self) -> Vec<String> {
        let account = self.fake.account.lock();
        account.staged.values().chain(&account.published).cloned().collect()
    }

    /// Waits until a call is in progress, whether it responds or not.
    pub async fn wait_for_call(&self, method: &str) {
        while !self.fake.account.lock().calls.iter().any(|call| call == method) {
            self.fake.called.notified().await;
        }
    }

    /// Kills the process: connections break.
    pub fn kill(&self) {
        self.server.abort();
    }

    /// Starts it again at the same socket, with what it did before.
    pub fn restart(&mut self) {
        self.server.abort();
        self.server = serve(&self.socket, &self.fake);
    }
}

impl Drop for FakeDriver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn serve(socket: &Path, fake: &Arc<Fake>) -> JoinHandle<()> {
    let listener = listen(socket).expect("a socket");
    let server = Server::new().node(fake.clone()).registration(fake.clone());
    tokio::spawn(async move {
        server.serve(listener).await.expect("served");
    })
}

impl Fake {
    async fn perform<T>(
        &self,
        method: &'static str,
        response: T,
        work: impl FnOnce(&mut Account) -> Result<(), Status>,
    ) -> Result<T, Status> {
        let behaviour = {
            let mut account = self.account.lock();
            account.calls.push(method.to_string());
            account.behaviours.get_mut(method).and_then(VecDeque::pop_front)
        };
        self.called.notify_waiters();
        let failure = |code: &Code| Err(Status::new(*code, "failed on demand"));
        match &behaviour {
            Some(Behaviour::Fail(code)) => return failure(code),
            Some(Behaviour::Hang) => std::future::pending().await,
            _ => work(&mut self.account.lock())?,
        }
        match behaviour {
            Some(Behaviour::DoAndFail(code)) => failure(&code),
            Some(Behaviour::DoAndHang) => std::future::pending().await,
            Some(Behaviour::Late(time)) => {
                tokio::time::sleep(time).await;
                Ok(response)
            }
            _ => Ok(response),
        }
    }
}

#[async_trait]
impl Node for Fake {
    async fn node_stage_volume(&self, request: NodeStageVolumeRequest) -> Result<NodeStageVolumeResponse, Status> {
        self.perform("NodeStageVolume", NodeStageVolumeResponse {}, |account| {
            account.staged.insert(request.volume_id.clone(), request.staging_target_path.clone());
            account.stages.push(request);
            Ok(())
        })
        .await
    }

    async fn node_unstage_volume(
        &self,
        request: NodeUnstageVolumeRequest,
    ) -> Result<NodeUnstageVolumeResponse, Status> {
        self.perform("NodeUnstageVolume", NodeUnstageVolumeResponse {}, |account| {
            account.staged.remove(&request.volume_id);
            Ok(())
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, Status> {
        self.perform("NodePublishVolume", NodePublishVolumeResponse {}, |account| {
            let needs_stage = !request.staging_target_path.is_empty();
            if needs_stage && account.staged.get(&request.volume_id) != Some(&request.staging_target_path) {
                return Err(Status::failed_precondition("the volume is not staged"));
            }
            let is_block = matches!(
                request.volume_capability.as_ref().and_then(|capability| capability.access_type.as_ref()),
                Some(AccessType::Block(_))
            );
            let created = match is_block {
                true => std::fs::write(&request.target_path, ""),
                false => std::fs::create_dir_all(&request.target_path),
            };
            created.map_err(|error| Status::internal(error.to_string()))?;
            account.published.insert(request.target_path.clone());
            account.publishes.push(request);
            Ok(())
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Status> {
        self.perform("NodeUnpublishVolume", NodeUnpublishVolumeResponse {}, |account| {
            account.published.remove(&request.target_path);
            let path = Path::new(&request.target_path);
            // Either may be there, or nothing.
            let _ = std::fs::remove_dir(path);
            let _ = std::fs::remove_file(path);
            Ok(())
        })
        .await
    }

    async fn node_expand_volume(&self, request: NodeExpandVolumeRequest) -> Result<NodeExpandVolumeResponse, Status> {
        let size = request.capacity_range.map_or(0, |range| range.required_bytes);
        self.perform("NodeExpandVolume", NodeExpandVolumeResponse { capacity_bytes: size }, |account| {
            account.expands.push(request);
            Ok(())
        })
        .await
    }

    async fn node_get_volume_stats(
        &self,
        _request: NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        let usage = VolumeUsage { available: 6, total: 10, used: 4, unit: UsageUnit::Bytes as i32 };
        let response =
            NodeGetVolumeStatsResponse { usage: vec![usage], volume_condition: self.account.lock().condition.clone() };
        self.perform("NodeGetVolumeStats", response, |_| Ok(())).await
    }

    async fn node_get_capabilities(
        &self,
        _request: NodeGetCapabilitiesRequest,
    ) -> Result<NodeGetCapabilitiesResponse, Status> {
        Ok(NodeGetCapabilitiesResponse::of(&self.capabilities.lock()))
    }

    async fn node_get_info(&self, _request: NodeGetInfoRequest) -> Result<NodeGetInfoResponse, Status> {
        let topology = Topology { segments: [("fake/node".to_string(), "here".to_string())].into() };
        let response = NodeGetInfoResponse {
            node_id: "fake-node".into(),
            max_volumes_per_node: self.account.lock().limit.unwrap_or(7),
            accessible_topology: Some(topology),
        };
        self.perform("NodeGetInfo", response, |_| Ok(())).await
    }
}

#[async_trait]
impl Registration for Fake {
    async fn get_info(&self, _request: InfoRequest) -> Result<PluginInfo, Status> {
        Ok(PluginInfo {
            kind: CSI_PLUGIN.into(),
            name: self.name.clone(),
            endpoint: self.endpoint.to_string_lossy().into_owned(),
            supported_versions: vec!["1.0.0".into()],
        })
    }

    async fn notify_registration_status(
        &self,
        request: RegistrationStatus,
    ) -> Result<RegistrationStatusResponse, Status> {
        self.account.lock().registrations.push(request);
        self.called.notify_waiters();
        Ok(RegistrationStatusResponse {})
    }
}
