//! The node's HTTPS endpoints: logs, streams into containers, statistics and metrics.
//!
//! Every request is authenticated by client certificate or token and authorized by the API server before anything else.

mod auth;
mod cadvisor;
mod configuration;
pub mod health;
mod log_query;
pub mod logs;
pub mod metrics;
mod node_metrics;
mod route;
mod stats;
mod streams;
mod system_logs;
mod tls;
mod zpages;

pub use auth::Access;
pub use tls::ServingCertificate;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

use crate::context::Context;
use crate::pods::Pods;

/// How long a connection may be silent before its peer is asked whether it is still there.
const SILENCE: std::time::Duration = std::time::Duration::from_secs(15);

pub type Body = BoxBody<Bytes, std::io::Error>;

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("{address} can't be listened on")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
}

/// What a request handler needs.
pub struct Server {
    pub context: Arc<Context>,
    pub pods: Arc<Pods>,
    pub access: Access,
    /// What was used at the last look, for rates.
    pub samples: stats::Samples,
    pub log: Arc<health::LogCheck>,
}

/// Listens, and returns the bound port with the task that serves.
pub async fn serve(
    server: Arc<Server>,
    certificate: ServingCertificate,
) -> Result<(u16, impl Future<Output = ()> + Send + 'static), ServeError> {
    let settings = &server.context.settings;
    let address = settings.serving;
    let config = tls::server_config(certificate, settings.client_ca.as_deref())?;
    let listener = TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })?;
    let port = listener.local_addr().map(|address| address.port()).unwrap_or(address.port());
    let acceptor = tokio_rustls::TlsAcceptor::from(config);
    Ok((port, accept(listener, acceptor, server)))
}

async fn accept(listener: TcpListener, acceptor: tokio_rustls::TlsAcceptor, server: Arc<Server>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection can't be accepted");
                // Out of descriptors, most likely: others must end first.
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                continue;
            }
        };
        let (acceptor, server) = (acceptor.clone(), server.clone());
        tokio::spawn(async move {
            // Keystrokes of a terminal must not wait for more of them, and a peer that is gone without a word must not be
            // waited for by a stream that has nothing to send.
            let _ = stream.set_nodelay(true);
            let probes = socket2::TcpKeepalive::new().with_time(SILENCE).with_interval(SILENCE);
            let _ = socket2::SockRef::from(&stream).set_tcp_keepalive(&probes);
            let handshake = tokio::time::timeout(std::time::Duration::from_secs(10), acceptor.accept(stream)).await;
            let Ok(Ok(stream)) = handshake else { return };
            let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).cloned();
            let certificate = Arc::new(certificate);
            let service = service_fn(move |request: Request<Incoming>| {
                let (server, certificate) = (server.clone(), certificate.clone());
                async move {
                    Ok::<_, std::convert::Infallible>(answer(&server, request, certificate.as_ref().as_ref()).await)
                }
            });
            let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            builder.http1().half_close(true);
            if let Err(error) = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await {
                tracing::debug!(%error, "a connection broke");
            }
        });
    }
}

async fn answer(
    server: &Arc<Server>,
    request: Request<Incoming>,
    certificate: Option<&rustls_pki_types::CertificateDer<'static>>,
) -> Response<Body> {
    let begun = std::time::Instant::now();
    let (method, path) = (request.method().as_str().to_string(), route::family(request.uri().path()));
    let lasts = matches!(path, "exec" | "attach" | "portForward" | "containerLogs");
    let labels = [
        ("long_running", if lasts { "true" } else { "false" }),
        ("method", method.as_str()),
        ("path", path),
        ("server_type", "readwrite"),
    ];
    let under_way = UnderWay::begin(&server.context.metrics, &labels);
    if route::upgrades_to_websocket(&request) && matches!(path, "exec" | "attach" | "portForward") {
        let subresource = [("subresource", if path == "portForward" { "portforward" } else { path })];
        server.context.metrics.count("kubelet_websocket_streaming_requests_total", &subresource);
    }
    let answer = match server.access.check(&request, certificate).await {
        Ok(()) => route::route(server, request).await,
        Err(denied) => denied,
    };
    drop(under_way);
    server.context.metrics.count("kubelet_http_requests_total", &labels);
    server.context.metrics.observe("kubelet_http_requests_duration_seconds", &labels, begun.elapsed());
    answer
}

/// Counts a request as being answered, also when its client goes before the answer comes.
struct UnderWay<'a>(&'a crate::counters::Counters, &'a [(&'static str, &'a str)]);

const UNDER_WAY: &str = "kubelet_http_inflight_requests";

impl<'a> UnderWay<'a> {
    fn begin(metrics: &'a crate::counters::Counters, labels: &'a [(&'static str, &'a str)]) -> Self {
        metrics.add(UNDER_WAY, labels, 1.0);
        Self(metrics, labels)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.add(UNDER_WAY, self.1, -1.0);
    }
}

pub fn text(status: StatusCode, body: impl Into<String>) -> Response<Body> {
    let mut response = Response::new(full(body.into()));
    *response.status_mut() = status;
    let kind = http::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

pub fn json<T: serde::Serialize>(value: &T) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(body) => {
            let mut response = Response::new(full(body));
            let kind = http::HeaderValue::from_static("application/json");
            response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
            response
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

pub fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).map_err(|never| match never {}).boxed()
}
