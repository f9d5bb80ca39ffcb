//! What the runtime holds of one pod, in the node's own words.

mod events;
mod observe;
mod heartbeat;

pub use events::{Index, Round, follow};
pub use observe::{PodName, held_of_pod, inventory, observe_container, observe_sandbox};
pub use heartbeat::Heartbeat;

use std::collections::HashMap;

use k8s_openapi::jiff::Timestamp;
use knarr_cri::messages::LinuxContainerResources;

/// Names under which the runtime keeps whom a sandbox or container belongs to. They are those of every kubelet, so that
/// tools that look at the runtime find their way.
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
    /// The image as the pod asked for it: a change of it means a new container.
    pub const IMAGE: &str = "knarr.io/image";
}

/// A pod as the runtime knows it, newest first in both lists.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuntimePod {
    pub sandboxes: Vec<Sandbox>,
    pub containers: Vec<ContainerView>,
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
    /// What an earlier life of the node noted about the container.
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

    /// The whole id as the API shows it.
    pub fn shown_id(&self, runtime_name: &str) -> String {
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
        // Few pods get more than they begin with.
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

    /// Of all its containers and sandboxes.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        let containers = self.containers.iter().map(|container| container.id.as_str());
        containers.chain(self.sandboxes.iter().map(|sandbox| sandbox.id.as_str()))
    }

    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }
}

/// The kernel's table of the pod's interfaces, by way of one of its processes; none where no container runs.
pub fn network_table(worker: &crate::worker::Handle) -> Option<String> {
    let process = worker.runtime.lock().running().find_map(|container| container.process)?;
    Some(format!("/proc/{process}/net/dev"))
}
