//! Calls to a cluster of etcd servers: uses one member until it fails, then the next.

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

/// The timeout of a call with all its attempts: longer than the election of a new leader.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(4);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const INITIAL_BACKOFF: Duration = Duration::from_millis(20);
const MAX_BACKOFF: Duration = Duration::from_millis(500);
const FLOW_CONTROL_WINDOW: u32 = 4 << 20;

pub(super) struct Client {
    members: Vec<Channel>,
    current: AtomicUsize,
}

/// A reply, and whether a previous attempt may have been executed without a reply.
pub(super) struct Reply<T> {
    pub body: T,
    pub retried: bool,
}

impl Client {
    pub(super) fn new(endpoints: &[String], tls: Option<&Tls>) -> Result<Self, Error> {
        let members = endpoints.iter().map(|endpoint| connect(endpoint, tls)).collect::<Result<Vec<_>, _>>()?;
        if members.is_empty() {
            return Err(Error::Open("no etcd endpoint is given".to_owned()));
        }
        Ok(Self { members, current: AtomicUsize::new(0) })
    }

    /// Sends the request to one member after the other until one replies. It must be safe to execute the request twice.
    pub(super) async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<Reply<A>, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let started = Instant::now();
        let mut backoff = INITIAL_BACKOFF;
        let mut retried = false;
        loop {
            let member = self.current();
            let attempt = timeout(ATTEMPT_TIMEOUT, unary(self.members[member].clone(), path, request.clone())).await;
            let status = match attempt {
                Ok(Ok(body)) => return Ok(Reply { body, retried }),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("etcd does not respond"),
            };
            if !is_transient(&status) || started.elapsed() + backoff > CALL_TIMEOUT {
                return Err(status);
            }
            self.switch_from(member);
            retried = true;
            sleep(backoff).await;
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
    }

    /// Opens a watch at the current member; returns the member's number with it.
    pub(super) async fn watch(
        &self,
        create: WatchCreate,
    ) -> Result<(usize, Streaming<WatchResponse>), (usize, Status)> {
        let member = self.current();
        let opened = timeout(ATTEMPT_TIMEOUT, open_watch(self.members[member].clone(), create)).await;
        match opened {
            Ok(Ok(stream)) => Ok((member, stream)),
            Ok(Err(status)) => Err((member, status)),
            Err(_) => Err((member, Status::deadline_exceeded("etcd does not respond"))),
        }
    }

    fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed) % self.members.len()
    }

    /// Switches from a failed member to the next, unless another call already has.
    pub(super) fn switch_from(&self, member: usize) {
        let next = (member + 1) % self.members.len();
        // Fails only when another call has switched at the same time.
        self.current.compare_exchange(member, next, Ordering::Relaxed, Ordering::Relaxed).unwrap_or_default();
    }
}

fn connect(endpoint: &str, tls: Option<&Tls>) -> Result<Channel, Error> {
    let wrong =
        |error: tonic::transport::Error| Error::Open(format!("the etcd endpoint {endpoint}: {}", describe(&error)));
    let mut builder = Endpoint::from_shared(endpoint.to_owned())
        .map_err(wrong)?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(FLOW_CONTROL_WINDOW)
        .initial_connection_window_size(FLOW_CONTROL_WINDOW)
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
    let response = grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec).await?;
    Ok(response.into_inner())
}

async fn open_watch(channel: Channel, create: WatchCreate) -> Result<Streaming<WatchResponse>, Status> {
    let mut grpc = Grpc::new(channel).max_decoding_message_size(usize::MAX);
    grpc.ready().await.map_err(|error| Status::unavailable(describe(&error)))?;
    // The stream of requests stays open for as long as the watch.
    let create = WatchRequest { create: Some(create) };
    let requests = futures::StreamExt::chain(futures::stream::iter([create]), futures::stream::pending());
    let mut request = Request::new(requests);
    // Makes a member without a leader cancel the watch instead of falling silent.
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
    let response = grpc.streaming(request, path, ProstCodec::<WatchRequest, WatchResponse>::default()).await?;
    Ok(response.into_inner())
}

/// Whether a retry, at another member or later, may succeed.
fn is_transient(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Aborted | Code::Unknown | Code::Internal
    )
}

/// An error with all its causes; for connections only the causes are specific.
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
