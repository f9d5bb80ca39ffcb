//! Calls to a cluster of etcd servers: one member is asked until it fails, then the next.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prost::Message;
use tokio::time::{Instant, sleep, timeout};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::Tls;
use super::wire::{WatchCreate, WatchRequest, WatchResponse};
use crate::contract::Error;

/// How long a call may take with all its attempts: longer than an election of a new leader.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
const ATTEMPT: Duration = Duration::from_secs(4);
const CONNECT: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
const WINDOW: u32 = 4 << 20;

pub(super) struct Client {
    members: Vec<Channel>,
    current: AtomicUsize,
}

/// An answer, and whether an earlier attempt may have been carried out unnoticed.
pub(super) struct Answer<T> {
    pub answer: T,
    pub repeated: bool,
}

impl Client {
    pub(super) fn new(endpoints: &[String], tls: Option<&Tls>) -> Result<Self, Error> {
        let members = endpoints.iter().map(|endpoint| connect(endpoint, tls)).collect::<Result<Vec<_>, _>>()?;
        if members.is_empty() {
            return Err(Error::Open("no etcd endpoint is given".to_owned()));
        }
        Ok(Self { members, current: AtomicUsize::new(0) })
    }

    /// Asks one member after the other until one answers. The request must be one that does no harm when it is carried
    /// out twice.
    pub(super) async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<Answer<A>, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut repeated = false;
        loop {
            let member = self.current();
            let attempt = timeout(ATTEMPT, unary(self.members[member].clone(), path, request.clone())).await;
            let status = match attempt {
                Ok(Ok(answer)) => return Ok(Answer { answer, repeated }),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("etcd does not answer"),
            };
            if !is_passing(&status) || begun.elapsed() + pause > PATIENCE {
                return Err(status);
            }
            self.leave(member);
            repeated = true;
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Opens a watch at the present member, whose number is answered with it.
    pub(super) async fn watch(
        &self,
        create: WatchCreate,
    ) -> Result<(usize, Streaming<WatchResponse>), (usize, Status)> {
        let member = self.current();
        let opened = timeout(ATTEMPT, open_watch(self.members[member].clone(), create)).await;
        match opened {
            Ok(Ok(stream)) => Ok((member, stream)),
            Ok(Err(status)) => Err((member, status)),
            Err(_) => Err((member, Status::deadline_exceeded("etcd does not answer"))),
        }
    }

    fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed) % self.members.len()
    }

    /// Turns to the next member, unless that has been done already.
    pub(super) fn leave(&self, member: usize) {
        let next = (member + 1) % self.members.len();
        // Another call may have left it at the same time: then there is nothing to do.
        self.current.compare_exchange(member, next, Ordering::Relaxed, Ordering::Relaxed).unwrap_or_default();
    }
}

fn connect(endpoint: &str, tls: Option<&Tls>) -> Result<Channel, Error> {
    let wrong =
        |error: tonic::transport::Error| Error::Open(format!("the etcd endpoint {endpoint}: {}", describe(&error)));
    let mut builder = Endpoint::from_shared(endpoint.to_owned())
        .map_err(wrong)?
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(5));
    if let Some(tls) = tls {
        let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.authority));
        if let Some((certificate, key)) = &tls.identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        builder = builder.tls_config(config).map_err(wrong)?;
    }
    Ok(builder.connect_lazy())
}

async fn unary<Q, A>(channel: Channel, path: &'static str, request: Q) -> Result<A, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel).max_decoding_message_size(usize::MAX);
    grpc.ready().await.map_err(|error| Status::unavailable(describe(&error)))?;
    let codec = ProstCodec::<Q, A>::default();
    let answer = grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec).await?;
    Ok(answer.into_inner())
}

async fn open_watch(channel: Channel, create: WatchCreate) -> Result<Streaming<WatchResponse>, Status> {
    let mut grpc = Grpc::new(channel).max_decoding_message_size(usize::MAX);
    grpc.ready().await.map_err(|error| Status::unavailable(describe(&error)))?;
    // The stream of requests stays open for as long as the watch.
    let create = WatchRequest { create: Some(create) };
    let requests = futures::StreamExt::chain(futures::stream::iter([create]), futures::stream::pending());
    let mut request = Request::new(requests);
    // A member that is cut off from its leader ends the watch instead of falling silent.
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
    let answer = grpc.streaming(request, path, ProstCodec::<WatchRequest, WatchResponse>::default()).await?;
    Ok(answer.into_inner())
}

/// Whether another member, or the same one a little later, may do better.
fn is_passing(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Aborted | Code::Unknown | Code::Internal
    )
}

/// An error with all its causes, which alone say what is wrong with a connection.
pub(super) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
