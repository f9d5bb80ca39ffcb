//! What every part of the node shares.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod, Service};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_client::events::{EventType, reference};
use knarr_client::{EventRecorder, Informer};
use knarr_cri::Runtime;
use knarr_cri::messages::{DnsConfig, RuntimeHandler, RuntimeHandlerFeatures, StatusResponse};
use parking_lot::RwLock;

use crate::cgroup::Cgroups;
use crate::container::env::Surroundings;
use crate::images::Images;
use crate::host::Host;
use crate::objects::Objects;
use crate::pod::{self, Role};
use crate::runtime::{Index, Heartbeat};
use crate::settings::Settings;
use crate::start_queue::StartQueue;
use crate::volumes::Tokens;

pub struct Context {
    pub settings: Settings,
    pub client: kube::Client,
    pub runtime: Runtime,
    /// As it shows in container ids.
    pub runtime_name: String,
    pub runtime_version: String,
    /// What the runtime can do beyond what every runtime can, as it told last.
    pub abilities: RwLock<Abilities>,
    pub events: EventRecorder,
    pub index: Index,
    pub heartbeat: Heartbeat,
    pub objects: Objects,
    pub services: Arc<Informer<Service>>,
    pub node: Arc<Informer<Node>>,
    pub images: Images,
    pub tokens: Tokens,
    /// None on hosts that let us make no cgroups.
    pub cgroups: Option<Cgroups>,
    pub host: Host,
    pub node_dns: DnsConfig,
    pub addresses: Vec<String>,
    pub allocatable: RwLock<BTreeMap<String, Quantity>>,
    pub metrics: Arc<crate::counters::Counters>,
    /// When the kubelet began.
    pub begun: tokio::time::Instant,
    pub starts: StartQueue,
    /// What containers have for themselves.
    pub resources: Arc<crate::resources::Resources>,
}

/// What only some runtimes can do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Abilities {
    /// Groups that an image gives a user can be left out.
    pub strict_groups: bool,
    handlers: Vec<RuntimeHandler>,
}

impl Abilities {
    pub fn of(status: &StatusResponse) -> Self {
        let strict_groups = status.features.is_some_and(|features| features.supplemental_groups_policy);
        Self { strict_groups, handlers: status.runtime_handlers.clone() }
    }

    /// What one of the runtime's handlers can do.
    pub fn of_handler(&self, name: &str) -> RuntimeHandlerFeatures {
        let handler = self.handlers.iter().find(|handler| handler.name == name);
        handler.and_then(|handler| handler.features).unwrap_or_default()
    }
}

impl Context {
    pub fn surroundings(&self, pod: &Pod, pod_addresses: Vec<String>) -> Surroundings {
        Surroundings {
            node_name: self.settings.node_name.clone(),
            node_addresses: self.addresses.clone(),
            pod_addresses: if pod::host_network(pod) { self.addresses.clone() } else { pod_addresses },
            allocatable: self.allocatable.read().clone(),
        }
    }

    pub fn cgroup_parent(&self, pod: &Pod) -> String {
        self.cgroups.as_ref().map(|cgroups| cgroups.pod_path(pod)).unwrap_or_default()
    }

    /// How much memory a pod can have at most: what it is limited to, or all that the node has for pods.
    pub fn memory_for(&self, pod: &Pod) -> Option<i64> {
        let whole = self.allocatable.read().get("memory").map(knarr_client::quantity::value);
        [whole, crate::cgroup::amounts::pod_amounts(pod).memory_limit].into_iter().flatten().min()
    }

    pub fn pod_event(&self, pod: &Pod, warning: bool, reason: &str, message: impl Into<String>) {
        self.record(reference(pod), warning, reason, message.into());
    }

    /// An event that points at one container of the pod.
    pub fn container_event(&self, pod: &Pod, container: &str, warning: bool, reason: &str, message: impl Into<String>) {
        let role = pod::roles(pod).find(|(_, name)| *name == container).map(|(role, _)| role);
        let list = match role {
            Some(Role::Init | Role::Sidecar) => "initContainers",
            Some(Role::Ephemeral) => "ephemeralContainers",
            Some(Role::Main) => "containers",
            // An image that is mounted belongs to the pod.
            None => return self.pod_event(pod, warning, reason, message),
        };
        let field_path = Some(format!("spec.{list}{{{container}}}"));
        let object = ObjectReference { field_path, ..reference(pod) };
        self.record(object, warning, reason, message.into());
    }

    /// The node is known to its events by its name alone.
    pub fn node_event(&self, warning: bool, reason: &str, message: impl Into<String>) {
        let name = &self.settings.node_name;
        let object = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(name.clone()),
            // By which `kubectl describe node` finds what the node itself tells.
            uid: Some(name.clone()),
            ..Default::default()
        };
        self.record(object, warning, reason, message.into());
    }

    fn record(&self, object: ObjectReference, warning: bool, reason: &str, message: String) {
        let kind = if warning { EventType::Warning } else { EventType::Normal };
        self.events.about(object, kind, reason, message);
    }
}

/// What the API server said, without the debris of a client library.
pub fn api_text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => {
            let mut text = other.to_string();
            let mut source = std::error::Error::source(other);
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            text
        }
    }
}
