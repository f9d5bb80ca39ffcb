//! Which container changed, told by the runtime as it happens.
//!
//! containerd before 1.7 serves no CRI events, but its own stream of task events says the same at once; other runtimes
//! serve CRI's. Where neither exists the caller falls back to listing.

use std::time::{Duration, SystemTime};

use futures::stream::{self, BoxStream, Stream, StreamExt, TryStreamExt};
use http::uri::PathAndQuery;
use prost::Message;
use tonic::Request;
use tonic_prost::ProstCodec;

use crate::client::Runtime;
use crate::containerd::NAMESPACE;
use crate::messages::{
    ContainerEventResponse, ContainerEventType, Empty, Envelope, SubscribeRequest, TaskExit, TaskOom,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerEvent {
    /// The main process of a container or sandbox ended. The runtime may need a moment to record it.
    Exited { id: String },
    /// Something else changed: look at the container again.
    Changed { id: String },
}

/// An event, and when it happened by the runtime's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub event: ContainerEvent,
    pub at: Option<SystemTime>,
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

pub type EventStream = BoxStream<'static, Result<Told, EventError>>;

/// Whichever stream this runtime serves. It connects when it is first polled: a runtime answers a subscription only with
/// its first event. A runtime without any stream shows as [`EventError::Unsupported`], the first and last item.
pub fn subscribe(runtime: &Runtime) -> EventStream {
    let state = (containerd_events(runtime.clone()), Some(runtime.clone()));
    stream::unfold(state, |(mut current, mut fallback)| async move {
        loop {
            match current.next().await {
                Some(Err(EventError::Unsupported)) if fallback.is_some() => {
                    let runtime = fallback.take()?;
                    current = cri_events(runtime);
                }
                item => return item.map(|item| (item, (current, fallback))),
            }
        }
    })
    .boxed()
}

fn containerd_events(runtime: Runtime) -> EventStream {
    let request = SubscribeRequest { filters: vec![format!("namespace=={NAMESPACE},topic~=^/tasks/(exit|oom)$")] };
    let path = "/containerd.services.events.v1.Events/Subscribe";
    open::<SubscribeRequest, Envelope>(runtime, path, request)
        .try_filter_map(async |envelope| {
            let at = envelope.timestamp.and_then(|moment| {
                let since = Duration::new(u64::try_from(moment.seconds).ok()?, u32::try_from(moment.nanos).ok()?);
                SystemTime::UNIX_EPOCH.checked_add(since)
            });
            Ok(translate(&envelope).map(|event| Told { event, at }))
        })
        .boxed()
}

fn cri_events(runtime: Runtime) -> EventStream {
    let path = "/runtime.v1.RuntimeService/GetContainerEvents";
    open::<Empty, ContainerEventResponse>(runtime, path, Empty {})
        .map_ok(|event| {
            let stopped = event.container_event_type == ContainerEventType::Stopped as i32;
            let since = u64::try_from(event.created_at).ok().map(Duration::from_nanos);
            let at = since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
            let id = event.container_id;
            let event = if stopped { ContainerEvent::Exited { id } } else { ContainerEvent::Changed { id } };
            Told { event, at }
        })
        .boxed()
}

fn open<Q, A>(runtime: Runtime, path: &'static str, request: Q) -> impl Stream<Item = Result<A, EventError>> + Send
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    stream::once(async move {
        let mut grpc = tonic::client::Grpc::new(runtime.channel());
        grpc.ready().await.map_err(EventError::Unreachable)?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = grpc.server_streaming(Request::new(request), PathAndQuery::from_static(path), codec).await;
        Ok(answer.map_err(refused)?.into_inner().map_err(refused))
    })
    .try_flatten()
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
            timestamp: None,
            namespace: NAMESPACE.into(),
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
