//! The messages that a worker receives.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::Outcome;
use super::state::{Operation, Termination};
use crate::probes::ProbeKind;
use crate::runtime::{ContainerView, RelistRound, RuntimeEvent};

/// A message to a worker. Large payloads are boxed, as queues hold many messages.
pub enum Message {
    /// The desired pod.
    Desired(Arc<Pod>),
    /// The pod is gone from the API.
    Removed,
    /// The mirror pod of a static pod, which gets its status.
    Mirror(Option<Arc<Pod>>),
    Exited(String),
    /// The same, sent by the worker itself because the runtime had not recorded the exit yet.
    ExitedAgain(String),
    Changed(String),
    /// The runtime failed to stop a container.
    NotStopped(String),
    /// Read all containers again: events may have been missed.
    Relist(Option<Arc<RelistRound>>),
    ObjectsChanged,
    Running(Box<ContainerView>),
    Probe {
        id: String,
        kind: ProbeKind,
        success: bool,
    },
    /// The node terminates the pod.
    Stop(Box<Termination>),
    Done(Operation, Box<Outcome>),
}

impl From<RuntimeEvent> for Message {
    fn from(event: RuntimeEvent) -> Self {
        match event {
            RuntimeEvent::Exited(id) => Self::Exited(id),
            RuntimeEvent::Changed(id) => Self::Changed(id),
            RuntimeEvent::Relist(round) => Self::Relist(Some(round)),
        }
    }
}
