//! The kubelet's HTTPS endpoints: logs, exec, attach, port-forward, statistics and metrics.
//!
//! Every request is authenticated by client certificate or token and authorized by the API server before anything else, unless
//! the settings say otherwise.

mod auth;
mod cadvisor;
mod certificate_files;
mod checkpoint;
mod client_certificate;
mod configuration;
pub mod health;
mod log_query;
mod logs;
pub mod metrics;
mod node_metrics;
mod own_certificate;
mod query;
mod read_only;
mod route;
mod stats;
mod streams;
mod system_logs;
pub mod tls;
mod zpages;

pub use auth::Access;
pub use certificate_files::watch_files;
pub use own_certificate::keep_certificate;
pub use tls::ServingCertificate;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::OptionFuture;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use knarr_listen::{Limits, Peer};
use rustls_pki_types::UnixTime;
use tokio::net::TcpListener;

use crate::context::Context;
use crate::pods::Pods;
use tls::{ClientAuthorities, ClientCertificate};

/// Clients are the API servers and a few monitoring agents. A client of a stream may close its side first.
const LIMITS: Limits = Limits { connections: 2048, half_close: true, ..Limits::DEFAULT };

pub type Body = BoxBody<Bytes, std::io::Error>;

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
}

/// What a request handler needs.
pub struct Server {
    pub context: Arc<Context>,
    pub pods: Arc<Pods>,
    pub access: Access,
    /// Previous CPU samples, for rates.
    pub samples: stats::Samples,
    pub log: Arc<health::LogCheck>,
    /// The components of this process.
    pub components: knarr_supervisor::Registry,
}

/// Listens, and returns the bound port with the task that serves.
pub async fn serve(
    server: Arc<Server>,
    certificate: ServingCertificate,
) -> Result<(u16, impl Future<Output = ()> + Send + 'static), ServeError> {
    let settings = &server.context.settings;
    let address = settings.serving;
    let clients = settings.client_ca.as_deref().map(ClientAuthorities::from_file);
    let clients = clients.transpose().map_err(tls::TlsError::from)?;
    let watched = clients.clone().zip(settings.client_ca.clone()).map(|(clients, path)| clients.watch(path));
    let config = tls::server_config(certificate, clients.as_ref(), &settings.algorithms)?;
    let listener = TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })?;
    let read_only = settings.read_only_port.map(|port| SocketAddr::new(address.ip(), port));
    let open = read_only.map(|address| read_only::serve(server.clone(), address));
    let port = listener.local_addr().map(|address| address.port()).unwrap_or(address.port());
    let connected = move |peer: Peer<'_>| {
        let client_certificate = Arc::new(ClientCertificate::new(clients.clone(), peer.certificates));
        let server = server.clone();
        move |request: Request<Incoming>| {
            let (server, client_certificate) = (server.clone(), client_certificate.clone());
            async move {
                let caller = Caller::Authorized(client_certificate.certificate(UnixTime::now()));
                handle(&server, request, caller).await
            }
        }
    };
    Ok((port, async move {
        // The endpoints are served until the process exits.
        let (_never, stop) = tokio::sync::watch::channel(false);
        let secured = knarr_listen::serve(listener, config, LIMITS, stop, connected);
        futures::future::join3(secured, OptionFuture::from(open), OptionFuture::from(watched)).await;
    }))
}

/// The callers of an endpoint.
enum Caller<'a> {
    /// Callers that are authorized, with the certificate of the connection.
    Authorized(Option<&'a rustls_pki_types::CertificateDer<'static>>),
    Everybody,
}

async fn handle(server: &Arc<Server>, request: Request<Incoming>, caller: Caller<'_>) -> Response<Body> {
    let started = std::time::Instant::now();
    let (method, path) = (method_label(request.method()), route::family(request.uri().path()));
    let is_long_running = matches!(path, "exec" | "attach" | "portForward" | "containerLogs");
    let labels = [
        ("long_running", if is_long_running { "true" } else { "false" }),
        ("method", method),
        ("path", path),
        ("server_type", if matches!(caller, Caller::Everybody) { "readonly" } else { "readwrite" }),
    ];
    let in_flight = InFlight::start(&server.context.metrics, &labels);
    if route::upgrades_to_websocket(&request) && matches!(path, "exec" | "attach" | "portForward") {
        let subresource = [("subresource", if path == "portForward" { "portforward" } else { path })];
        server.context.metrics.count("kubelet_websocket_streaming_requests_total", &subresource);
    }
    let denied = match caller {
        Caller::Authorized(certificate) => server.access.check(&request, certificate).await.err(),
        Caller::Everybody => None,
    };
    let response = match denied {
        None => {
            let mut span = crate::traces::request(method, path, request.headers());
            let response = route::route(server, request).await;
            if let Some(span) = &mut span {
                span.number("http.response.status_code", response.status().as_u16().into());
            }
            response
        }
        Some(denied) => denied,
    };
    drop(in_flight);
    server.context.metrics.count("kubelet_http_requests_total", &labels);
    server.context.metrics.observe("kubelet_http_requests_duration_seconds", &labels, started.elapsed());
    response
}

/// Unauthenticated clients may send any method: only standard ones become labels.
fn method_label(method: &http::Method) -> &'static str {
    const KNOWN: [&str; 9] = ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];
    KNOWN.into_iter().find(|known| method == *known).unwrap_or("other")
}

/// Counts a request as in flight until it is dropped, also if its client disconnects early.
struct InFlight<'a>(&'a crate::counters::Counters, &'a [(&'static str, &'a str)]);

const IN_FLIGHT_REQUESTS: &str = "kubelet_http_inflight_requests";

impl<'a> InFlight<'a> {
    fn start(metrics: &'a crate::counters::Counters, labels: &'a [(&'static str, &'a str)]) -> Self {
        metrics.add(IN_FLIGHT_REQUESTS, labels, 1.0);
        Self(metrics, labels)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.add(IN_FLIGHT_REQUESTS, self.1, -1.0);
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
