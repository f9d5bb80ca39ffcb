//! The node's HTTPS endpoints: logs, streams into containers, statistics and metrics.
//!
//! Every request is authenticated by client certificate or token and authorized by the API server before anything else.

mod auth;
mod cadvisor;
mod configuration;
pub mod health;
mod log_query;
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
use knarr_listen::{Limits, Peer};
use rustls_pki_types::UnixTime;
use tokio::net::TcpListener;

use crate::context::Context;
use crate::pods::Pods;
use tls::Shown;

/// The API servers and a few monitors connect. A client of a stream may close its side before the other has ended.
const LIMITS: Limits = Limits { connections: 2048, half_close: true, ..Limits::DEFAULT };

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
    let clients = settings.client_ca.as_deref().map(tls::client_authorities).transpose()?;
    let config = tls::server_config(certificate, clients.as_ref())?;
    let listener = TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })?;
    let port = listener.local_addr().map(|address| address.port()).unwrap_or(address.port());
    let connected = move |peer: Peer<'_>| {
        let shown = Arc::new(Shown::new(clients.clone(), peer.certificates, UnixTime::now()));
        let server = server.clone();
        move |request: Request<Incoming>| {
            let (server, shown) = (server.clone(), shown.clone());
            async move { answer(&server, request, shown.certificate(UnixTime::now())).await }
        }
    };
    Ok((port, async move {
        // The endpoints last as long as the process.
        let (_never, stop) = tokio::sync::watch::channel(false);
        knarr_listen::serve(listener, config, LIMITS, stop, connected).await;
    }))
}

async fn answer(
    server: &Arc<Server>,
    request: Request<Incoming>,
    certificate: Option<&rustls_pki_types::CertificateDer<'static>>,
) -> Response<Body> {
    let begun = std::time::Instant::now();
    let (method, path) = (method_label(request.method()), route::family(request.uri().path()));
    let lasts = matches!(path, "exec" | "attach" | "portForward" | "containerLogs");
    let labels = [
        ("long_running", if lasts { "true" } else { "false" }),
        ("method", method),
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

/// Clients may make up methods before anybody knows who they are: only those that exist become labels.
fn method_label(method: &http::Method) -> &'static str {
    const KNOWN: [&str; 9] = ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];
    KNOWN.into_iter().find(|known| method == *known).unwrap_or("other")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_methods_share_a_label() {
        let label = |method: &str| method_label(&http::Method::from_bytes(method.as_bytes()).expect("a method"));
        assert_eq!([label("GET"), label("get"), label("MADE-UP"), label("POST")], ["GET", "other", "other", "POST"]);
    }
}
