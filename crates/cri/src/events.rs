//! The stream of container changes from the runtime.
//!
//! containerd before 1.7 serves no CRI events, but an equivalent stream of task events; other runtimes serve CRI's. Where
//! neither exists, the caller falls back to listing.

use std::time::{Duration, SystemTime};

use futures::stream::{self, BoxStream, Stream, StreamExt, TryStreamExt};
use http::uri::PathAndQuery;
use prost::Message;
use tonic::Request;
use tonic_prost::ProstCodec;

use crate::CONTAINERD_NAMESPACE;
use crate::client::Runtime;
use crate::messages::{
    ContainerEventResponse, ContainerEventType, Empty, Envelope, SubscribeRequest, TaskExit, TaskOom,
};

/// A change of a container or sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerEvent {
    /// The main process of a container or sandbox exited. The runtime may need a moment to record it.
    Exited { id: String },
    /// Something else changed: query the container's status.
    Changed { id: String },
}

/// An event with the runtime's timestamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedEvent {
    /// The change.
    pub event: ContainerEvent,
    /// When it happened, if the runtime reports it.
    pub at: Option<SystemTime>,
}

/// Why the event stream ended.
#[derive(Debug, thiserror::Error)]
pub enum EventError {
    /// The runtime implements no event stream.
    #[error("the runtime serves no event stream")]
    Unsupported,
    /// The stream failed.
    #[error("the event stream broke: {0}")]
    Broken(Box<tonic::Status>),
    /// The connection to the runtime failed.
    #[error("the runtime does not respond")]
    Unreachable(#[source] tonic::transport::Error),
}

/// A stream of container events.
pub type EventStream = BoxStream<'static, Result<TimedEvent, EventError>>;

/// Subscribes to the event stream that this runtime serves. Connects when first polled: a runtime responds to a
/// subscription only with its first event. A runtime without a stream yields a single [`EventError::Unsupported`].
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
    let request =
        SubscribeRequest { filters: vec![format!("namespace=={CONTAINERD_NAMESPACE},topic~=^/tasks/(exit|oom)$")] };
    let path = "/containerd.services.events.v1.Events/Subscribe";
    open::<SubscribeRequest, Envelope>(runtime, path, request)
        .try_filter_map(async |envelope| {
            let at = envelope.timestamp.and_then(|time| {
                let since = Duration::new(u64::try_from(time.seconds).ok()?, u32::try_from(time.nanos).ok()?);
                SystemTime::UNIX_EPOCH.checked_add(since)
            });
            Ok(translate(&envelope).map(|event| TimedEvent { event, at }))
        })
        .boxed()
}

fn cri_events(runtime: Runtime) -> EventStream {
    let path = "/runtime.v1.RuntimeService/GetContainerEvents";
    let events = open::<Empty, ContainerEventResponse>(runtime, path, Empty {}).map_ok(|event| {
        let stopped = event.container_event_type == ContainerEventType::Stopped as i32;
        let since = u64::try_from(event.created_at).ok().map(Duration::from_nanos);
        let at = since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
        let id = event.container_id;
        let event = if stopped { ContainerEvent::Exited { id } } else { ContainerEvent::Changed { id } };
        TimedEvent { event, at }
    });
    unsupported_if_empty(events)
}

/// A runtime whose events are turned off, as CRI-O's are by default, ends the stream at once and without an error. Without
/// [`EventError::Unsupported`] the caller would subscribe again and again, and never list.
fn unsupported_if_empty<T: Send + 'static>(
    events: impl Stream<Item = Result<T, EventError>> + Send + 'static,
) -> BoxStream<'static, Result<T, EventError>> {
    let state = Some((events.boxed(), true));
    stream::unfold(state, |state| async move {
        let (mut events, is_empty) = state?;
        match events.next().await {
            Some(item) => Some((item, Some((events, false)))),
            None if is_empty => Some((Err(EventError::Unsupported), None)),
            None => None,
        }
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
        let response = grpc.server_streaming(Request::new(request), PathAndQuery::from_static(path), codec).await;
        Ok(response.map_err(refused)?.into_inner().map_err(refused))
    })
    .try_flatten()
}

fn refused(status: tonic::Status) -> EventError {
    if status.code() == tonic::Code::Unimplemented {
        return EventError::Unsupported;
    }
    EventError::Broken(Box::new(status))
}

/// `None` for other events and for the exit of processes started by exec.
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
    use crate::messages::Any;

    fn envelope(topic: &str, value: Vec<u8>) -> Envelope {
        Envelope {
            timestamp: None,
            namespace: CONTAINERD_NAMESPACE.into(),
            topic: topic.into(),
            event: Some(Any { type_url: String::new(), value }),
        }
    }

    #[tokio::test]
    async fn a_stream_without_a_single_event_is_unsupported() {
        let broken = || Err(EventError::Broken(Box::new(tonic::Status::unavailable("restarting"))));
        let cases: [(Vec<Result<u8, EventError>>, &[&str]); 4] = [
            (vec![], &["the runtime serves no event stream"]),
            (vec![Ok(1), Ok(2)], &["1", "2"]),
            (vec![broken()], &["broken"]),
            (vec![Ok(1), broken()], &["1", "broken"]),
        ];
        for (items, expected) in cases {
            let text = |item: Result<u8, EventError>| match item {
                Ok(event) => event.to_string(),
                Err(EventError::Broken(_)) => "broken".to_string(),
                Err(error) => error.to_string(),
            };
            let found: Vec<String> = unsupported_if_empty(stream::iter(items)).map(text).collect().await;
            assert_eq!(found, expected);
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
