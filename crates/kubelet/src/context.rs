//! The state that all components of the kubelet share.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_client::Informer;
use knarr_cri::Runtime;
use knarr_cri::messages::{DnsConfig, RuntimeHandler, RuntimeHandlerFeatures, StatusResponse};
use parking_lot::RwLock;

use crate::cgroup::Cgroups;
use crate::downward_api::DownwardContext;
use crate::events::Events;
use crate::host::Host;
use crate::images::Images;
use crate::node_memory::NodeMemory;
use crate::objects::ObjectCache;
use crate::pod;
use crate::runtime::{Heartbeat, Index};
use crate::settings::Settings;
use crate::start_queue::StartQueue;
use crate::tokens::Tokens;

/// Everything that long-lived tasks of the kubelet need, created once by `assemble`.
pub struct Context {
    pub settings: Settings,
    pub client: kube::Client,
    pub runtime: Runtime,
    /// The prefix of container ids in the API.
    pub runtime_name: String,
    pub runtime_version: String,
    /// The optional features that the runtime reported last.
    pub runtime_features: RwLock<RuntimeFeatures>,
    pub events: Events,
    pub index: Index,
    pub heartbeat: Heartbeat,
    pub objects: ObjectCache,
    pub services: Arc<Informer<Service>>,
    pub node: Arc<Informer<Node>>,
    pub csi: Arc<crate::csi::Csi>,
    pub dra: Arc<crate::dra::Dra>,
    pub images: Images,
    pub tokens: Tokens,
    /// None on hosts that don't let us create cgroups.
    pub cgroups: Option<Cgroups>,
    pub host: Host,
    pub node_dns: DnsConfig,
    pub addresses: Vec<String>,
    pub allocatable: RwLock<BTreeMap<String, Quantity>>,
    pub metrics: Arc<crate::counters::Counters>,
    /// When the kubelet started.
    pub started_at: tokio::time::Instant,
    pub starts: StartQueue,
    /// CPUs, memory and devices that are assigned to single containers.
    pub resources: Arc<crate::resources::Resources>,
}

/// Features that only some runtimes have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuntimeFeatures {
    /// Supplemental groups from the image can be left out.
    pub strict_groups: bool,
    handlers: Vec<RuntimeHandler>,
}

impl RuntimeFeatures {
    pub fn of(status: &StatusResponse) -> Self {
        let strict_groups = status.features.is_some_and(|features| features.supplemental_groups_policy);
        Self { strict_groups, handlers: status.runtime_handlers.clone() }
    }

    /// The features of one runtime handler.
    pub fn of_handler(&self, name: &str) -> RuntimeHandlerFeatures {
        let handler = self.handlers.iter().find(|handler| handler.name == name);
        handler.and_then(|handler| handler.features).unwrap_or_default()
    }
}

impl Context {
    pub fn downward_context(&self, pod: &Pod, pod_addresses: Vec<String>) -> DownwardContext {
        DownwardContext {
            node_name: self.settings.node_name.clone(),
            node_addresses: self.addresses.clone(),
            pod_addresses: if pod::host_network(pod) { self.addresses.clone() } else { pod_addresses },
            allocatable: self.allocatable.read().clone(),
        }
    }

    pub fn cgroup_parent(&self, pod: &Pod) -> String {
        self.cgroups.as_ref().map(|cgroups| cgroups.pod_path(pod)).unwrap_or_default()
    }

    /// The cgroup of a pod's container.
    pub fn container_cgroup(&self, pod: &Pod, id: &str) -> String {
        let driver = self.cgroups.as_ref().map(Cgroups::driver).unwrap_or_default();
        format!("{}/{}", self.cgroup_parent(pod), driver.container(&self.runtime_name, id))
    }

    /// What containers may use of the node's memory and swap.
    pub fn node_memory(&self) -> NodeMemory {
        NodeMemory {
            capacity: self.host.memory,
            unified: self.cgroups.as_ref().is_some_and(Cgroups::is_unified),
            single_process_oom_kill: self.settings.tuning.single_process_oom_kill,
            limits_swap: self.cgroups.as_ref().is_some_and(Cgroups::limits_swap),
            swap: self.settings.limited_swap.then_some(self.host.swap),
        }
    }

    /// The maximum memory of a pod: its own limit, or all memory that the node has for pods.
    pub fn memory_for(&self, pod: &Pod) -> Option<i64> {
        let whole = self.allocatable.read().get("memory").map(knarr_client::quantity::value);
        [whole, crate::cgroup::amounts::pod_amounts(pod).memory_limit].into_iter().flatten().min()
    }
}
