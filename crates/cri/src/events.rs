//! Which container changed, told by the runtime as it happens.
//!
//! containerd before 1.7 serves no CRI events, but its own stream of task events says the same at once; other runtimes
//! serve CRI's. Where neither exists the caller falls back to listing.

use futures::stream::{BoxStream, StreamExt};
use http::uri::PathAndQuery;
use prost::Message;
use tonic::Request;
use tonic_prost::ProstCodec;

use crate::client::Runtime;
use crate::messages::{
    ContainerEventResponse, ContainerEventType, Empty, Envelope, SubscribeRequest, TaskExit, TaskOom,
};

/// The namespace in which containerd keeps what came through CRI.
const CRI_NAMESPACE: &str = "k8s.io";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerEvent {
    /// The main process of a container or sandbox ended. The runtime may need a moment to record it.
    Exited { id: String },
    /// Something else changed: look at the container again.
    Changed { id: String },
}

#[derive(Debug, thiserror::Error)]
pub enum EventError {
    #[error("the runtime serves no event stream")]
    Unsupported,
    #[error("the event stream broke: {0}")]
    Broken(Box<tonic::Status>),
    #[error("the runtime does not answer")]
    Unreachable(#[source] tonic::transport::Error),
}

pub type EventStream = BoxStream<'static, Result<ContainerEvent, EventError>>;

/// Subscribes to whichever stream this runtime serves.
pub async fn subscribe(runtime: &Runtime) -> Result<EventStream, EventError> {
    match containerd_events(runtime).await {
        Err(EventError::Unsupported) => cri_events(runtime).await,
        other => other,
    }
}

async fn containerd_events(runtime: &Runtime) -> Result<EventStream, EventError> {
    let request = SubscribeRequest { filters: vec![format!("namespace=={CRI_NAMESPACE},topic~=^/tasks/(exit|oom)$")] };
    let path = PathAndQuery::from_static("/containerd.services.events.v1.Events/Subscribe");
    let mut grpc = tonic::client::Grpc::new(runtime.channel());
    grpc.ready().await.map_err(EventError::Unreachable)?;
    let codec = ProstCodec::<SubscribeRequest, Envelope>::default();
    let stream = grpc.server_streaming(Request::new(request), path, codec).await.map_err(refused)?.into_inner();
    Ok(stream
        .filter_map(|item| async move {
            match item {
                Ok(envelope) => translate(&envelope).map(Ok),
                Err(status) => Some(Err(refused(status))),
            }
        })
        .boxed())
}

async fn cri_events(runtime: &Runtime) -> Result<EventStream, EventError> {
    let path = PathAndQuery::from_static("/runtime.v1.RuntimeService/GetContainerEvents");
    let mut grpc = tonic::client::Grpc::new(runtime.channel());
    grpc.ready().await.map_err(EventError::Unreachable)?;
    let codec = ProstCodec::<Empty, ContainerEventResponse>::default();
    let stream = grpc.server_streaming(Request::new(Empty {}), path, codec).await.map_err(refused)?.into_inner();
    Ok(stream
        .map(|item| {
            let event = item.map_err(refused)?;
            let stopped = event.container_event_type == ContainerEventType::Stopped as i32;
            let id = event.container_id;
            Ok(if stopped { ContainerEvent::Exited { id } } else { ContainerEvent::Changed { id } })
        })
        .boxed())
}

fn refused(status: tonic::Status) -> EventError {
    if status.code() == tonic::Code::Unimplemented {
        return EventError::Unsupported;
    }
    EventError::Broken(Box::new(status))
}

/// None for events of no interest and for the ends of processes added by exec.
fn translate(envelope: &Envelope) -> Option<ContainerEvent> {
    let payload = envelope.event.as_ref()?;
    match envelope.topic.as_str() {
        "/tasks/exit" => {
            let exit = TaskExit::decode(payload.value.as_slice()).ok()?;
            (exit.id == exit.container_id).then_some(ContainerEvent::Exited { id: exit.container_id })
        }
        "/tasks/oom" => {
            let oom = TaskOom::decode(payload.value.as_slice()).ok()?;
            Some(ContainerEvent::Changed { id: oom.container_id })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::Packed;

    fn envelope(topic: &str, value: Vec<u8>) -> Envelope {
        Envelope {
            namespace: CRI_NAMESPACE.into(),
            topic: topic.into(),
            event: Some(Packed { type_url: String::new(), value }),
        }
    }

    #[test]
    fn only_main_processes_count_as_exits() {
        let exit =
            |id: &str| TaskExit { container_id: "c".into(), id: id.into(), pid: 7, exit_status: 1 }.encode_to_vec();
        let cases = [
            (envelope("/tasks/exit", exit("c")), Some(ContainerEvent::Exited { id: "c".into() })),
            (envelope("/tasks/exit", exit("exec-1")), None),
            (
                envelope("/tasks/oom", TaskOom { container_id: "c".into() }.encode_to_vec()),
                Some(ContainerEvent::Changed { id: "c".into() }),
            ),
            (envelope("/images/create", Vec::new()), None),
        ];
        for (input, expected) in cases {
            assert_eq!(translate(&input), expected);
        }
    }
}
