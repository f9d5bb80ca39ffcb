//! Events about pods, their containers and claims, and the node.

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim, Pod};
use knarr_client::EventRecorder;
use knarr_client::events::{EventType, reference};

use crate::pod::{self, Role};
use crate::shortened::shorten;

/// Bytes of an event's message. Those of Kubernetes are shorter; what a driver or a runtime says has no limit.
const MAX_MESSAGE: usize = 4 << 10;

/// Records events of the kubelet.
#[derive(Clone)]
pub struct Events {
    recorder: EventRecorder,
    node_name: String,
}

impl Events {
    pub fn new(recorder: EventRecorder, node_name: &str) -> Self {
        Self { recorder, node_name: node_name.to_owned() }
    }

    pub fn about_pod(&self, pod: &Pod, warning: bool, reason: &str, message: impl Into<String>) {
        self.record(reference(pod), warning, reason, message.into());
    }

    pub fn about_claim(&self, claim: &PersistentVolumeClaim, warning: bool, reason: &str, message: &str) {
        self.record(reference(claim), warning, reason, message.to_string());
    }

    /// An event that points at one container of the pod.
    pub fn about_container(&self, pod: &Pod, container: &str, warning: bool, reason: &str, message: impl Into<String>) {
        let role = pod::roles(pod).find(|(_, name)| *name == container).map(|(role, _)| role);
        let list = match role {
            Some(Role::Init | Role::Sidecar) => "initContainers",
            Some(Role::Ephemeral) => "ephemeralContainers",
            Some(Role::Main) => "containers",
            // An image that is mounted belongs to the pod.
            None => return self.about_pod(pod, warning, reason, message),
        };
        let field_path = Some(format!("spec.{list}{{{container}}}"));
        let object = ObjectReference { field_path, ..reference(pod) };
        self.record(object, warning, reason, message.into());
    }

    /// Events about the node refer to it by its name only.
    pub fn about_node(&self, warning: bool, reason: &str, message: impl Into<String>) {
        let name = &self.node_name;
        let object = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(name.clone()),
            // `kubectl describe node` finds the node's own events by this.
            uid: Some(name.clone()),
            ..Default::default()
        };
        self.record(object, warning, reason, message.into());
    }

    fn record(&self, object: ObjectReference, warning: bool, reason: &str, mut message: String) {
        shorten(&mut message, MAX_MESSAGE);
        let kind = if warning { EventType::Warning } else { EventType::Normal };
        self.recorder.about(object, kind, reason, message);
    }
}
