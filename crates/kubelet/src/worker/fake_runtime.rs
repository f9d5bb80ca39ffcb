//! A container runtime for tests, on a real socket. It records sandboxes and containers, and fails, hangs or responds late as a
//! test requests.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use knarr_cri::messages::*;
use parking_lot::Mutex;
use prost::Message;
use tokio::task::JoinHandle;

use crate::resources::unary::{self, Failure};

/// How the runtime deviates from its work in one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Behaviour {
    /// Fails without doing anything.
    Fail,
    /// Does its work and fails nevertheless.
    DoAndFail,
    /// Never responds.
    Hang,
    /// Does its work and never responds.
    DoAndHang,
    /// Does its work and responds after a while.
    Late,
}

pub const BEHAVIOURS: [Behaviour; 5] =
    [Behaviour::Fail, Behaviour::DoAndFail, Behaviour::Hang, Behaviour::DoAndHang, Behaviour::Late];

/// How long a late response takes; shorter than the timeout of every call.
const LATE: Duration = Duration::from_secs(20);

#[derive(Default)]
pub struct Account {
    pub sandboxes: BTreeMap<String, PodSandboxStatus>,
    /// With the ids of their sandboxes.
    pub containers: BTreeMap<String, (String, ContainerStatus)>,
    images: Vec<String>,
    /// The calls in their order, without those that only read.
    pub calls: Vec<&'static str>,
    behaviours: HashMap<String, VecDeque<Behaviour>>,
    numbered: u32,
}

#[derive(Default)]
pub struct FakeRuntime {
    pub account: Mutex<Account>,
    /// The calls that do not respond at the moment.
    hanging: AtomicUsize,
}

/// A runtime that is served until it is dropped.
pub struct Served {
    pub fake: Arc<FakeRuntime>,
    server: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl FakeRuntime {
    /// The size of every image, in bytes.
    pub const IMAGE_SIZE: u64 = 1000;

    /// Adds an image, as if it had been imported.
    pub fn add_image(&self, name: &str) {
        self.account.lock().images.push(name.to_owned());
    }

    /// The names of all images.
    pub fn images(&self) -> Vec<String> {
        self.account.lock().images.clone()
    }

    pub fn serve(socket: &Path) -> Served {
        let fake = Arc::new(Self::default());
        let (socket, handler) = (socket.to_path_buf(), fake.clone());
        let server = tokio::spawn(async move {
            let served = unary::serve(&socket, move |path, message| {
                let fake = handler.clone();
                async move { fake.handle(&path, message).await }
            });
            served.await.expect("a socket");
        });
        Served { fake, server }
    }

    /// Lets the next call of a method deviate.
    pub fn will(&self, method: &str, behaviour: Behaviour) {
        self.account.lock().behaviours.entry(method.to_string()).or_default().push_back(behaviour);
    }

    /// Whether every deviation happened.
    pub fn has_deviated(&self) -> bool {
        self.account.lock().behaviours.values().all(VecDeque::is_empty)
    }

    pub fn is_hanging(&self) -> bool {
        self.hanging.load(Ordering::Relaxed) > 0
    }

    /// Lets a container end by itself.
    pub fn exit(&self, name: &str, code: i32) {
        let mut account = self.account.lock();
        let all = account.containers.values_mut().map(|(_, status)| status);
        let running = all.filter(|status| status.state == ContainerState::Running as i32);
        for status in running.filter(|status| status.metadata.as_ref().is_some_and(|own| own.name == name)) {
            end(status, code);
        }
    }

    /// Lets all sandboxes end by themselves, with their containers.
    pub fn kill_sandboxes(&self) {
        let mut account = self.account.lock();
        account.sandboxes.values_mut().for_each(|sandbox| sandbox.state = PodSandboxState::NotReady as i32);
        account.containers.values_mut().for_each(|(_, status)| end(status, 137));
    }

    /// The state of all containers, by name.
    pub fn containers(&self) -> Vec<(String, ContainerState)> {
        let account = self.account.lock();
        let view = |status: &ContainerStatus| {
            let name = status.metadata.as_ref().map(|metadata| metadata.name.clone()).unwrap_or_default();
            (name, ContainerState::try_from(status.state).expect("a state"))
        };
        account.containers.values().map(|(_, status)| view(status)).collect()
    }

    async fn handle(&self, path: &str, message: Bytes) -> Result<Vec<u8>, Failure> {
        let method = path.rsplit('/').next().unwrap_or_default();
        let behaviour = self.account.lock().behaviours.get_mut(method).and_then(VecDeque::pop_front);
        let failed = || Err(Failure::invalid("deviates"));
        match behaviour {
            Some(Behaviour::Fail) => return failed(),
            Some(Behaviour::Hang) => self.hang().await,
            _ => {}
        }
        let response = self.account.lock().perform(method, path, &message);
        match behaviour {
            Some(Behaviour::DoAndFail) => return failed(),
            Some(Behaviour::DoAndHang) => self.hang().await,
            Some(Behaviour::Late) => tokio::time::sleep(LATE).await,
            _ => {}
        }
        response
    }

    /// Never returns; is dropped when the caller gives up.
    async fn hang(&self) {
        struct Counted<'a>(&'a AtomicUsize);
        impl Drop for Counted<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.hanging.fetch_add(1, Ordering::Relaxed);
        let _counted = Counted(&self.hanging);
        std::future::pending::<()>().await;
    }
}

fn end(status: &mut ContainerStatus, code: i32) {
    if status.state == ContainerState::Running as i32 {
        status.state = ContainerState::Exited as i32;
        status.exit_code = code;
        status.finished_at = status.started_at + 1;
        status.reason = if code == 0 { "Completed".into() } else { "Error".into() };
    }
}

fn decode<M: Message + Default>(message: &[u8]) -> Result<M, Failure> {
    M::decode(message).map_err(|error| Failure::invalid(error.to_string()))
}

fn matches(selector: &HashMap<String, String>, labels: &HashMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

impl Account {
    fn perform(&mut self, method: &str, path: &str, message: &[u8]) -> Result<Vec<u8>, Failure> {
        match method {
            "Version" => Ok(VersionResponse { runtime_name: "fake".into(), ..Default::default() }.encode_to_vec()),
            "Status" => Ok(StatusResponse::default().encode_to_vec()),
            "RunPodSandbox" => self.run_sandbox(decode(message)?),
            "PodSandboxStatus" => self.sandbox_status(decode(message)?),
            "ListPodSandbox" => self.list_sandboxes(decode(message)?),
            "StopPodSandbox" => self.stop_sandbox(decode(message)?),
            "RemovePodSandbox" => self.remove_sandbox(decode(message)?),
            "CreateContainer" => self.create_container(decode(message)?),
            "StartContainer" => self.start_container(decode(message)?),
            "ContainerStatus" => self.container_status(decode(message)?),
            "ListContainers" => self.list_containers(decode(message)?),
            "StopContainer" => self.stop_container(decode(message)?),
            "RemoveContainer" => self.remove_container(decode(message)?),
            "ImageStatus" => self.image_status(decode(message)?),
            "ListImages" => self.list_images(),
            "PullImage" => self.pull_image(decode(message)?),
            "RemoveImage" => self.remove_image(decode(message)?),
            _ => Err(Failure::unknown(path)),
        }
    }

    /// A new id. Ids and times grow with each object.
    fn next(&mut self, prefix: &str) -> (String, i64) {
        self.numbered += 1;
        (format!("{prefix}-{:04}", self.numbered), i64::from(self.numbered) * 1_000_000_000)
    }

    fn run_sandbox(&mut self, request: RunPodSandboxRequest) -> Result<Vec<u8>, Failure> {
        self.calls.push("RunPodSandbox");
        let config = request.config.unwrap_or_default();
        if self.sandboxes.values().any(|known| known.metadata == config.metadata) {
            return Err(Failure::invalid("the sandbox's name is reserved"));
        }
        let (id, created_at) = self.next("sandbox");
        let network = PodSandboxNetworkStatus { ip: "10.244.0.7".into(), ..Default::default() };
        let status = PodSandboxStatus {
            id: id.clone(),
            metadata: config.metadata,
            state: PodSandboxState::Ready as i32,
            created_at,
            network: Some(network),
            labels: config.labels,
            annotations: config.annotations,
            ..Default::default()
        };
        self.sandboxes.insert(id.clone(), status);
        Ok(RunPodSandboxResponse { pod_sandbox_id: id }.encode_to_vec())
    }

    fn sandbox_status(&mut self, request: PodSandboxStatusRequest) -> Result<Vec<u8>, Failure> {
        let found = self.sandboxes.get(&request.pod_sandbox_id).cloned();
        let status = Some(found.ok_or_else(|| Failure::not_found("no such sandbox"))?);
        Ok(PodSandboxStatusResponse { status, ..Default::default() }.encode_to_vec())
    }

    fn list_sandboxes(&mut self, request: ListPodSandboxRequest) -> Result<Vec<u8>, Failure> {
        let filter = request.filter.unwrap_or_default();
        let chosen = self.sandboxes.values().filter(|sandbox| matches(&filter.label_selector, &sandbox.labels));
        let items = chosen
            .map(|sandbox| PodSandbox {
                id: sandbox.id.clone(),
                metadata: sandbox.metadata.clone(),
                state: sandbox.state,
                created_at: sandbox.created_at,
                labels: sandbox.labels.clone(),
                ..Default::default()
            })
            .collect();
        Ok(ListPodSandboxResponse { items }.encode_to_vec())
    }

    fn stop_sandbox(&mut self, request: PodSandboxIdRequest) -> Result<Vec<u8>, Failure> {
        self.calls.push("StopPodSandbox");
        let id = request.pod_sandbox_id;
        let sandbox = self.sandboxes.get_mut(&id).ok_or_else(|| Failure::not_found("no such sandbox"))?;
        sandbox.state = PodSandboxState::NotReady as i32;
        let own = self.containers.values_mut().filter(|(sandbox, _)| *sandbox == id);
        own.for_each(|(_, status)| end(status, 137));
        Ok(Vec::new())
    }

    fn remove_sandbox(&mut self, request: PodSandboxIdRequest) -> Result<Vec<u8>, Failure> {
        self.calls.push("RemovePodSandbox");
        self.sandboxes.remove(&request.pod_sandbox_id);
        self.containers.retain(|_, (sandbox, _)| *sandbox != request.pod_sandbox_id);
        Ok(Vec::new())
    }

    fn create_container(&mut self, request: CreateContainerRequest) -> Result<Vec<u8>, Failure> {
        self.calls.push("CreateContainer");
        let config = request.config.unwrap_or_default();
        if !self.sandboxes.contains_key(&request.pod_sandbox_id) {
            return Err(Failure::not_found("no such sandbox"));
        }
        let is_same = |(sandbox, status): &(String, ContainerStatus)| {
            *sandbox == request.pod_sandbox_id && status.metadata == config.metadata
        };
        if self.containers.values().any(is_same) {
            return Err(Failure::invalid("the container's name is reserved"));
        }
        let (id, created_at) = self.next("container");
        let status = ContainerStatus {
            id: id.clone(),
            metadata: config.metadata,
            state: ContainerState::Created as i32,
            created_at,
            image: config.image,
            labels: config.labels,
            annotations: config.annotations,
            ..Default::default()
        };
        self.containers.insert(id.clone(), (request.pod_sandbox_id, status));
        Ok(CreateContainerResponse { container_id: id }.encode_to_vec())
    }

    fn container(&mut self, id: &str) -> Result<&mut ContainerStatus, Failure> {
        let found = self.containers.get_mut(id).map(|(_, status)| status);
        found.ok_or_else(|| Failure::not_found("no such container"))
    }

    fn start_container(&mut self, request: ContainerIdRequest) -> Result<Vec<u8>, Failure> {
        self.calls.push("StartContainer");
        let (_, started_at) = self.next("");
        let status = self.container(&request.container_id)?;
        if status.state != ContainerState::Created as i32 {
            return Err(Failure::invalid("the container is not in the created state"));
        }
        status.state = ContainerState::Running as i32;
        status.started_at = started_at;
        Ok(Vec::new())
    }

    fn container_status(&mut self, request: ContainerStatusRequest) -> Result<Vec<u8>, Failure> {
        let status = Some(self.container(&request.container_id)?.clone());
        Ok(ContainerStatusResponse { status, ..Default::default() }.encode_to_vec())
    }

    fn list_containers(&mut self, request: ListContainersRequest) -> Result<Vec<u8>, Failure> {
        let filter = request.filter.unwrap_or_default();
        let chosen = self.containers.values().filter(|(sandbox, status)| {
            (filter.pod_sandbox_id.is_empty() || filter.pod_sandbox_id == *sandbox)
                && matches(&filter.label_selector, &status.labels)
        });
        let containers = chosen
            .map(|(sandbox, status)| Container {
                id: status.id.clone(),
                pod_sandbox_id: sandbox.clone(),
                metadata: status.metadata.clone(),
                state: status.state,
                created_at: status.created_at,
                labels: status.labels.clone(),
                annotations: status.annotations.clone(),
                ..Default::default()
            })
            .collect();
        Ok(ListContainersResponse { containers }.encode_to_vec())
    }

    fn stop_container(&mut self, request: StopContainerRequest) -> Result<Vec<u8>, Failure> {
        self.calls.push("StopContainer");
        end(self.container(&request.container_id)?, 143);
        Ok(Vec::new())
    }

    fn remove_container(&mut self, request: ContainerIdRequest) -> Result<Vec<u8>, Failure> {
        self.calls.push("RemoveContainer");
        self.containers.remove(&request.container_id);
        Ok(Vec::new())
    }

    /// An image is found by its name and by its id.
    fn image_status(&mut self, request: ImageStatusRequest) -> Result<Vec<u8>, Failure> {
        let named = request.image.unwrap_or_default().image;
        let image = self.images.iter().find(|name| **name == named || image_id(name) == named);
        Ok(ImageStatusResponse { image: image.map(|name| image_of(name)) }.encode_to_vec())
    }

    fn list_images(&mut self) -> Result<Vec<u8>, Failure> {
        Ok(ListImagesResponse { images: self.images.iter().map(|name| image_of(name)).collect() }.encode_to_vec())
    }

    fn remove_image(&mut self, request: RemoveImageRequest) -> Result<Vec<u8>, Failure> {
        self.calls.push("RemoveImage");
        let named = request.image.unwrap_or_default().image;
        self.images.retain(|name| image_id(name) != named);
        Ok(Vec::new())
    }

    fn pull_image(&mut self, request: PullImageRequest) -> Result<Vec<u8>, Failure> {
        self.calls.push("PullImage");
        let name = request.image.unwrap_or_default().image;
        let image_ref = image_id(&name);
        if !self.images.contains(&name) {
            self.images.push(name);
        }
        Ok(PullImageResponse { image_ref }.encode_to_vec())
    }
}

fn image_id(name: &str) -> String {
    format!("sha256:{name}")
}

fn image_of(name: &str) -> Image {
    Image { id: image_id(name), repo_tags: vec![name.to_owned()], size: FakeRuntime::IMAGE_SIZE, ..Default::default() }
}

/// Makes time of tests stand still until the sender is dropped, also while they wait for sockets.
pub fn stop_time() -> std::sync::mpsc::Sender<()> {
    let (hold, held) = std::sync::mpsc::channel::<()>();
    tokio::task::spawn_blocking(move || {
        let _ = held.recv();
    });
    hold
}
