//! Calls to a cluster of etcd servers: uses the first member, and others while it fails.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use knarr_traces::{Kind, Span, child_of_current};
use parking_lot::{Mutex, RwLock};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep, timeout};
use tonic::client::Grpc;
use tonic::codegen::http::Uri;
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
/// Shorter than etcd's own timeout for a request that its leader lost: clients wait for the sum of two attempts.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(2500);
/// The timeout of reading many large values at once.
pub(super) const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a member that failed is used only if all others failed, too.
const FAILURE_MEMORY: Duration = Duration::from_secs(5);
pub(super) const INITIAL_BACKOFF: Duration = Duration::from_millis(20);
pub(super) const MAX_BACKOFF: Duration = Duration::from_millis(500);
/// The port of an endpoint without one.
const DEFAULT_PORT: u16 = 2379;
const FLOW_CONTROL_WINDOW: u32 = 4 << 20;

/// Opens a connection to a host and port.
pub type Dialer = Arc<dyn Fn(String, u16) -> BoxFuture<'static, std::io::Result<Box<dyn Connection>>> + Send + Sync>;

/// A connection, whatever carries it.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

pub(super) struct Client {
    tls: RwLock<Option<Tls>>,
    dialer: Option<Dialer>,
    /// In order of preference.
    members: RwLock<Arc<[Arc<Member>]>>,
}

/// A member and its connection.
pub(super) struct Member {
    endpoint: String,
    channel: Channel,
    /// When it failed last, unless it has responded since.
    failed: Mutex<Option<Instant>>,
}

/// A reply, and whether a previous attempt may have been executed without a reply.
pub(super) struct Reply<T> {
    pub body: T,
    pub retried: bool,
}

impl Client {
    pub(super) fn new(endpoints: &[String], tls: Option<&Tls>, dialer: Option<Dialer>) -> Result<Self, Error> {
        let client = Self { tls: RwLock::new(tls.cloned()), dialer, members: RwLock::new(Arc::new([])) };
        client.set_endpoints(endpoints)?;
        Ok(client)
    }

    /// Replaces the members; connections to those that stay are kept.
    pub(super) fn set_endpoints(&self, endpoints: &[String]) -> Result<(), Error> {
        if endpoints.is_empty() {
            return Err(Error::Open("no etcd endpoint is given".to_owned()));
        }
        let known = self.members.read().clone();
        let member = |endpoint: &String| match known.iter().find(|member| member.endpoint == *endpoint) {
            Some(member) => Ok(member.clone()),
            None => self.member(endpoint),
        };
        *self.members.write() = endpoints.iter().map(member).collect::<Result<_, Error>>()?;
        Ok(())
    }

    /// Uses other credentials for new connections. Requests and watches on present ones go on.
    pub(super) fn set_tls(&self, tls: Tls) -> Result<(), Error> {
        *self.tls.write() = Some(tls);
        let known = self.members.read().clone();
        *self.members.write() =
            known.iter().map(|member| self.member(&member.endpoint)).collect::<Result<_, Error>>()?;
        Ok(())
    }

    fn member(&self, endpoint: &str) -> Result<Arc<Member>, Error> {
        let channel = self.connect(endpoint)?;
        Ok(Arc::new(Member { endpoint: endpoint.to_owned(), channel, failed: Mutex::new(None) }))
    }

    fn connect(&self, endpoint: &str) -> Result<Channel, Error> {
        connect(endpoint, self.tls.read().as_ref(), self.dialer.as_ref())
    }

    /// Sends the request to one member after the other until one replies. It must be safe to execute the request twice.
    pub(super) async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<Reply<A>, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.call_within(path, request, ATTEMPT_TIMEOUT).await
    }

    /// The same with another timeout for each attempt.
    pub(super) async fn call_within<Q, A>(
        &self,
        path: &'static str,
        request: Q,
        attempt_timeout: Duration,
    ) -> Result<Reply<A>, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let started = Instant::now();
        let mut backoff = INITIAL_BACKOFF;
        let mut retried = false;
        loop {
            let status = match self.attempt(path, request.clone(), attempt_timeout).await {
                Ok(body) => return Ok(Reply { body, retried }),
                Err(status) => status,
            };
            if !is_transient(&status) || started.elapsed() + backoff > CALL_TIMEOUT {
                return Err(status);
            }
            retried = true;
            sleep(backoff).await;
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
    }

    /// Sends the request to one member, once. After a transient failure, the next request goes to another one.
    pub(super) async fn attempt<Q, A>(&self, path: &'static str, request: Q, limit: Duration) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let member = self.current();
        let reply = timeout(limit, unary(member.channel.clone(), path, request, true)).await;
        let reply = reply.unwrap_or_else(|_| Err(Status::deadline_exceeded("etcd does not respond")));
        match &reply {
            Ok(_) => *member.failed.lock() = None,
            Err(status) if is_transient(status) => member.mark_failed(),
            Err(_) => {}
        }
        reply
    }

    /// One attempt at one member, with its own timeout, whether it has a leader or not.
    pub(super) async fn call_member<Q, A>(
        &self,
        endpoint: &str,
        path: &'static str,
        request: Q,
        limit: Duration,
    ) -> Result<A, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let members = self.members.read().clone();
        let known = members.iter().find(|member| member.endpoint == endpoint).map(|member| member.channel.clone());
        let channel = match known {
            Some(channel) => channel,
            None => self.connect(endpoint).map_err(|error| Status::unavailable(error.to_string()))?,
        };
        timeout(limit, unary(channel, path, request, false))
            .await
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("etcd does not respond")))
    }

    /// Opens a watch at the current member, which is returned with it.
    pub(super) async fn watch(
        &self,
        create: WatchCreate,
    ) -> Result<(Arc<Member>, Streaming<WatchResponse>), (Arc<Member>, Status)> {
        let member = self.current();
        let opened = timeout(ATTEMPT_TIMEOUT, open_watch(member.channel.clone(), create)).await;
        match opened {
            Ok(Ok(stream)) => Ok((member, stream)),
            Ok(Err(status)) => Err((member, status)),
            Err(_) => Err((member, Status::deadline_exceeded("etcd does not respond"))),
        }
    }

    /// The first member that has not failed recently, or else the one that failed first.
    fn current(&self) -> Arc<Member> {
        let members = self.members.read().clone();
        let failures: Vec<Option<Instant>> = members.iter().map(|member| *member.failed.lock()).collect();
        members[choose(&failures, Instant::now())].clone()
    }
}

impl Member {
    /// Prefers the other members for a while.
    pub(super) fn mark_failed(&self) {
        *self.failed.lock() = Some(Instant::now());
    }
}

/// The member to use, by the time of each one's last failure.
fn choose(failures: &[Option<Instant>], now: Instant) -> usize {
    let is_trusted =
        |failed: &Option<Instant>| failed.is_none_or(|failed| now.duration_since(failed) >= FAILURE_MEMORY);
    let oldest = || (0..failures.len()).min_by_key(|index| failures[*index]).unwrap_or_default();
    failures.iter().position(is_trusted).unwrap_or_else(oldest)
}

fn connect(endpoint: &str, tls: Option<&Tls>, dialer: Option<&Dialer>) -> Result<Channel, Error> {
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
    Ok(match dialer.cloned() {
        None => builder.connect_lazy(),
        Some(dialer) => builder.connect_with_connector_lazy(tower::service_fn(move |uri: Uri| {
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            let dialed = dialer(host, uri.port_u16().unwrap_or(DEFAULT_PORT));
            async move { dialed.await.map(TokioIo::new) }
        })),
    })
}

async fn unary<Q, A>(channel: Channel, path: &'static str, request: Q, needs_leader: bool) -> Result<A, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel).max_decoding_message_size(usize::MAX);
    grpc.ready().await.map_err(|error| Status::unavailable(describe(&error)))?;
    let codec = ProstCodec::<Q, A>::default();
    let mut request = Request::new(request);
    if needs_leader {
        require_leader(&mut request);
    }
    let mut span = child_of_current(path.trim_start_matches('/'), Kind::Client);
    if let Some(span) = &span {
        add_trace(&mut request, span);
    }
    let response = grpc.unary(request, PathAndQuery::from_static(path), codec).await;
    if let (Some(span), Err(status)) = (&mut span, &response) {
        span.failed(status.message());
    }
    Ok(response?.into_inner())
}

/// Makes what etcd traces of a request part of the same trace.
fn add_trace<T>(request: &mut Request<T>, span: &Span) {
    if let Ok(context) = MetadataValue::try_from(span.context().header().as_bytes()) {
        request.metadata_mut().insert("traceparent", context);
    }
}

async fn open_watch(channel: Channel, create: WatchCreate) -> Result<Streaming<WatchResponse>, Status> {
    let mut grpc = Grpc::new(channel).max_decoding_message_size(usize::MAX);
    grpc.ready().await.map_err(|error| Status::unavailable(describe(&error)))?;
    // The stream of requests stays open for as long as the watch.
    let create = WatchRequest { create: Some(create) };
    let requests = futures::StreamExt::chain(futures::stream::iter([create]), futures::stream::pending());
    let mut request = Request::new(requests);
    require_leader(&mut request);
    let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
    let response = grpc.streaming(request, path, ProstCodec::<WatchRequest, WatchResponse>::default()).await?;
    Ok(response.into_inner())
}

/// Makes a member without a leader refuse a request and cancel a watch instead of falling silent.
fn require_leader<T>(request: &mut Request<T>) {
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
}

/// Whether a retry, at another member or later, may succeed.
pub(super) fn is_transient(status: &Status) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_carry_the_place_of_their_span() {
        let tracer = knarr_traces::Tracer::without_collector(1_000_000);
        let span = tracer.span("call", Kind::Client, knarr_traces::Parent::None).unwrap();
        let mut request = Request::new(());
        add_trace(&mut request, &span);
        let carried = request.metadata().get("traceparent").and_then(|value| value.to_str().ok());
        assert_eq!(carried.and_then(knarr_traces::TraceContext::parse), Some(span.context()));
    }

    #[test]
    fn a_member_that_failed_is_avoided_for_a_while() {
        let now = Instant::now();
        let ago = |seconds: u64| Some(now - Duration::from_secs(seconds));
        for (failures, chosen) in [
            (vec![None, None], 0),
            (vec![ago(1), None], 1),
            (vec![ago(5), None], 0),
            (vec![ago(1), ago(2), ago(3)], 2),
            (vec![ago(4), ago(2), ago(3)], 0),
        ] {
            assert_eq!(choose(&failures, now), chosen, "{failures:?}");
        }
    }
}
