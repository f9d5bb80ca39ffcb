//! The state of pods in the container runtime.

mod events;
mod heartbeat;
mod observe;

pub use events::{EventHandler, Index, RelistRound, RuntimeEvent, watch_events};
pub use heartbeat::Heartbeat;
pub use observe::{PodName, inventory, list_pod, observe_container, observe_sandbox};

use std::collections::{HashMap, HashSet};

use k8s_openapi::jiff::Timestamp;
use knarr_cri::messages::LinuxContainerResources;

/// Labels and annotations of sandboxes and containers. They are the ones of the upstream kubelet, so that runtime tools
/// understand them.
pub mod label {
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    pub const POD_UID: &str = "io.kubernetes.pod.uid";
    pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
    pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    pub const HASH: &str = "io.kubernetes.container.hash";
    pub const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    pub const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    pub const GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
    /// The image in the pod's spec: a change means a new container.
    pub const IMAGE: &str = "knarr.io/image";
}

/// A pod as the runtime knows it, newest first in both lists.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuntimePod {
    pub sandboxes: Vec<Sandbox>,
    pub containers: Vec<ContainerView>,
    /// Containers that were stopped to be started again, whatever their exit code is.
    pub restarting: HashSet<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sandbox {
    pub id: String,
    pub attempt: u32,
    pub ready: bool,
    pub created_at: i64,
    pub addresses: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Created,
    Running,
    Exited,
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerView {
    pub id: String,
    pub name: String,
    pub sandbox: String,
    pub state: State,
    pub created_at: i64,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub exit_code: i32,
    pub reason: String,
    pub message: String,
    /// The image as the pod named it, and the digest form of what runs.
    pub image: String,
    pub image_id: String,
    pub restart_count: u32,
    pub log_path: String,
    /// What the kubelet, possibly a previous process, recorded about the container.
    pub annotations: HashMap<String, String>,
    pub resources: Option<LinuxContainerResources>,
    pub user: Option<(i64, i64, Vec<i64>)>,
    /// Its first process on the node.
    pub process: Option<u32>,
}

impl ContainerView {
    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// The container id in the API's form.
    pub fn api_id(&self, runtime_name: &str) -> String {
        format!("{runtime_name}://{}", self.id)
    }
}

impl RuntimePod {
    pub fn current_sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.first()
    }

    pub fn latest(&self, name: &str) -> Option<&ContainerView> {
        self.containers.iter().find(|container| container.name == name)
    }

    pub fn latest_in(&self, sandbox: &str, name: &str) -> Option<&ContainerView> {
        self.containers.iter().find(|container| container.name == name && container.sandbox == sandbox)
    }

    /// All of a name, newest first.
    pub fn all_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a ContainerView> {
        self.containers.iter().filter(move |container| container.name == name)
    }

    pub fn by_id(&self, id: &str) -> Option<&ContainerView> {
        self.containers.iter().find(|container| container.id == id)
    }

    pub fn running(&self) -> impl Iterator<Item = &ContainerView> {
        self.containers.iter().filter(|container| container.is_running())
    }

    pub fn put_container(&mut self, container: ContainerView) {
        self.containers.retain(|known| known.id != container.id);
        let place = self.containers.partition_point(|known| known.created_at > container.created_at);
        // Few pods ever get more containers.
        self.containers.reserve_exact(1);
        self.containers.insert(place, container);
    }

    pub fn put_sandbox(&mut self, sandbox: Sandbox) {
        self.sandboxes.retain(|known| known.id != sandbox.id);
        let place = self.sandboxes.partition_point(|known| known.created_at > sandbox.created_at);
        self.sandboxes.insert(place, sandbox);
    }

    pub fn forget(&mut self, id: &str) {
        self.containers.retain(|known| known.id != id);
        self.sandboxes.retain(|known| known.id != id);
    }

    /// The ids of all containers and sandboxes.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        let containers = self.containers.iter().map(|container| container.id.as_str());
        containers.chain(self.sandboxes.iter().map(|sandbox| sandbox.id.as_str()))
    }

    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }
}

/// The path of the kernel's interface table of the pod, through one of its processes; none if no container runs.
pub fn network_table(pod: &RuntimePod) -> Option<String> {
    let process = pod.running().find_map(|container| container.process)?;
    Some(format!("/proc/{process}/net/dev"))
}
