//! Proxies one request to a pod and its response back, for everything that the fast path does not serve.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Method, Request, Response, StatusCode, Version};
use http_body::Body;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use crate::Timeouts;
use crate::backends::{Backend, Connection, Pod};
use crate::forwarded::{self, Origin};
use crate::forwarded_body::ForwardedBody;
use crate::metrics;
use crate::payload::Payload;
use crate::progress::{Progress, SentBody};
use crate::routes::{self, Table};

/// Response body: the pod's, or an error of our own.
pub type ResponseBody = Either<ForwardedBody, Full<Bytes>>;

/// Maximum number of attempts per request.
pub const ATTEMPTS: usize = 3;

pub struct Proxy {
    pub routes: Arc<ArcSwap<Table<Backend>>>,
    pub timeouts: Timeouts,
}

impl Proxy {
    pub async fn handle(&self, request: Request<Incoming>, origin: &Origin) -> Response<ResponseBody> {
        let started = Instant::now();
        let _under_way = metrics::request_started();
        let response = match self.forward(request, origin).await {
            Ok(response) => response,
            Err(problem) => problem.response(),
        };
        metrics::record_response(response.status().as_u16(), started.elapsed());
        response
    }

    async fn forward(
        &self,
        mut request: Request<Incoming>,
        origin: &Origin,
    ) -> Result<Response<ResponseBody>, Problem> {
        check(&request)?;
        let host = host_of(&request).ok_or(Problem::NoHost)?;
        let backend = {
            let routes = self.routes.load();
            let name = without_port(host.to_str().map_err(|_| Problem::NoHost)?);
            Arc::clone(routes.find(name, request.uri().path()).ok_or(Problem::NoRule)?)
        };
        let upgrade = wants_upgrade(&request).then(|| hyper::upgrade::on(&mut request));
        forwarded::remove_hop_by_hop(request.headers_mut(), upgrade.is_some());
        forwarded::set(request.headers_mut(), origin, Some(host.clone()));
        let progress = Progress::new();
        let request = request.map(|body| Either::Left(SentBody::new(body, &progress)));
        let response = self.send(&backend, request, &host, origin.client(), &progress).await?;
        Ok(finish(response, upgrade, origin))
    }

    /// Sends to one pod after another until one responds. A request that a pod may have started to process is repeated
    /// only if that is safe.
    async fn send(
        &self,
        backend: &Backend,
        mut request: Request<Payload>,
        host: &HeaderValue,
        client: IpAddr,
        progress: &Progress,
    ) -> Result<Response<ForwardedBody>, Problem> {
        let spare = is_repeatable(&request).then(|| head_of(&request));
        let mut pod = backend.next().ok_or(Problem::NoPods)?;
        for attempt in 1..=ATTEMPTS {
            let error = match pod.connection(client, attempt > 1).await {
                Ok(connection) => {
                    address_to(&mut request, &connection, host);
                    let exchange = exchange(connection, request, &pod);
                    let failed = tokio::select! {
                        exchanged = exchange => match exchanged {
                            Ok(response) => return Ok(response),
                            Err(failed) => failed,
                        },
                        () = progress.stopped_for(self.timeouts.response) => return Err(Problem::TooSlow),
                    };
                    request = match (failed.unsent, &spare) {
                        (Some(unsent), _) => unsent,
                        (None, Some(spare)) => head_of(spare),
                        (None, None) => return Err(Problem::Unreachable),
                    };
                    failed.error.to_string()
                }
                Err(error) => error.to_string(),
            };
            tracing::debug!(pod = %pod.address, error, attempt, "a pod did not respond");
            metrics::retried();
            pod = backend.other_than(&pod).ok_or(Problem::NoPods)?;
        }
        Err(Problem::Unreachable)
    }
}

/// Why there is no response from a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    NoHost,
    Ambiguous,
    ClimbingPath,
    Connect,
    NoRule,
    NoPods,
    Unreachable,
    TooSlow,
}

impl Problem {
    pub fn status(self) -> StatusCode {
        match self {
            Problem::NoHost | Problem::Ambiguous | Problem::ClimbingPath => StatusCode::BAD_REQUEST,
            Problem::Connect => StatusCode::METHOD_NOT_ALLOWED,
            Problem::NoRule => StatusCode::NOT_FOUND,
            Problem::NoPods => StatusCode::SERVICE_UNAVAILABLE,
            Problem::Unreachable => StatusCode::BAD_GATEWAY,
            Problem::TooSlow => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            Problem::NoHost => "the request names no host\n",
            Problem::Ambiguous => "the request is ambiguous\n",
            Problem::ClimbingPath => "the path of the request contains '..'\n",
            Problem::Connect => "this is no forward proxy\n",
            Problem::NoRule => "no ingress rule matches this request\n",
            Problem::NoPods => "no pod is ready behind this address\n",
            Problem::Unreachable => "the pod behind this address does not respond\n",
            Problem::TooSlow => "the pod behind this address takes too long\n",
        }
    }

    fn response(self) -> Response<ResponseBody> {
        let mut response = Response::new(Either::Right(Full::new(Bytes::from_static(self.text().as_bytes()))));
        *response.status_mut() = self.status();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    }
}

struct Failed {
    error: hyper::Error,
    /// The request, if none of it was sent.
    unsent: Option<Request<Payload>>,
}

async fn exchange(
    connection: Connection,
    request: Request<Payload>,
    pod: &Arc<Pod>,
) -> Result<Response<ForwardedBody>, Failed> {
    let sent = match connection {
        Connection::One(line) => line.exchange(request).await,
        Connection::Shared(mut sender) => sender.try_send_request(request).await.map(|response| (response, None)),
    };
    match sent {
        Ok((response, line)) => {
            // After an upgrade the connection is no longer HTTP.
            let line = match line {
                Some(line) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    line.detach();
                    None
                }
                line => line.map(|line| (line, Arc::clone(pod))),
            };
            Ok(response.map(|body| ForwardedBody::new(body, line)))
        }
        Err(mut error) => Err(Failed { unsent: error.take_message(), error: error.into_error() }),
    }
}

/// Prepares the response for the client; after an upgrade on both sides, copies bytes in both directions.
fn finish(
    mut response: Response<ForwardedBody>,
    upgrade: Option<OnUpgrade>,
    origin: &Origin,
) -> Response<ResponseBody> {
    let is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if is_upgrade && let Some(client) = upgrade {
        let pod = hyper::upgrade::on(&mut response);
        metrics::upgraded();
        // It counts as a connection of the client until it closes.
        let permit = origin.permit();
        knarr_supervisor::spawn(async move {
            let _permit = permit;
            if let (Ok(client), Ok(pod)) = tokio::join!(client, pod) {
                // Either side may close at any time.
                let _ = knarr_relay::relay(TokioIo::new(client), TokioIo::new(pod)).await;
            }
        });
    }
    forwarded::remove_hop_by_hop(response.headers_mut(), is_upgrade);
    *response.version_mut() = Version::HTTP_11;
    response.map(Either::Left)
}

/// Refuses what pods could read as another request: the fast path checks only requests before the connection is handed over.
/// hyper leaves one end of a body, of a length beside chunks.
fn check<T>(request: &Request<T>) -> Result<(), Problem> {
    if request.headers().get_all(header::HOST).iter().nth(1).is_some() {
        return Err(Problem::Ambiguous);
    }
    if request.method() == Method::CONNECT {
        return Err(Problem::Connect);
    }
    if routes::climbs(request.uri().path()) { Err(Problem::ClimbingPath) } else { Ok(()) }
}

fn host_of<T>(request: &Request<T>) -> Option<HeaderValue> {
    match request.uri().authority() {
        Some(authority) => HeaderValue::from_str(authority.as_str()).ok(),
        None => request.headers().get(header::HOST).cloned(),
    }
}

pub fn without_port(host: &str) -> &str {
    match host.rfind(':') {
        Some(colon) if !host[colon..].contains(']') => &host[..colon],
        _ => host,
    }
}

/// Whether the client wants another protocol. HTTP/2 is none: over such a connection it could send requests past the rules.
fn wants_upgrade<T>(request: &Request<T>) -> bool {
    let words = |name: header::HeaderName| {
        let values = request.headers().get_all(name).iter().map(|value| value.to_str().unwrap_or("h2c"));
        values.flat_map(|value| value.split(',')).map(str::trim)
    };
    let is_http = |word: &str| {
        word.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("h2"))
            || word.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("http"))
    };
    request.version() == Version::HTTP_11
        && request.headers().contains_key(header::UPGRADE)
        && words(header::CONNECTION).any(|word| word.eq_ignore_ascii_case("upgrade"))
        && !words(header::UPGRADE).any(is_http)
}

/// Whether the request is safe to repeat, and no part of its body can be lost.
fn is_repeatable(request: &Request<Payload>) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE)
        && request.body().is_end_stream()
        && !request.headers().contains_key(header::UPGRADE)
}

/// The same request without a body.
fn head_of(request: &Request<Payload>) -> Request<Payload> {
    let mut head = Request::new(Either::Right(Full::default()));
    *head.method_mut() = request.method().clone();
    *head.uri_mut() = request.uri().clone();
    *head.headers_mut() = request.headers().clone();
    head
}

/// Sets the request target: HTTP/1 needs the path and a Host header, HTTP/2 the full URI.
fn address_to(request: &mut Request<Payload>, connection: &Connection, host: &HeaderValue) {
    let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    match connection {
        Connection::One(_) => {
            *request.uri_mut() = Uri::from(path);
            *request.version_mut() = Version::HTTP_11;
            request.headers_mut().insert(header::HOST, host.clone());
        }
        Connection::Shared(_) => {
            let mut parts = http::uri::Parts::default();
            parts.scheme = Some(Scheme::HTTP);
            parts.authority = Authority::try_from(host.as_bytes()).ok();
            parts.path_and_query = Some(path);
            if let Ok(uri) = Uri::from_parts(parts) {
                *request.uri_mut() = uri;
            }
            *request.version_mut() = Version::HTTP_2;
            request.headers_mut().remove(header::HOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_removed_from_host_names() {
        for (host, name) in [("a.b:80", "a.b"), ("a.b", "a.b"), ("[::1]:80", "[::1]"), ("[::1]", "[::1]")] {
            assert_eq!(without_port(host), name);
        }
    }

    #[test]
    fn connections_become_other_protocols_but_not_http() {
        for (connection, upgrade, expected) in [
            ("Upgrade", "websocket", true),
            ("keep-alive, upgrade", "WebSocket", true),
            ("keep-alive", "websocket", false),
            ("Upgrade, HTTP2-Settings", "h2c", false),
            ("upgrade", "websocket, H2C", false),
            ("upgrade", "HTTP/2.0", false),
        ] {
            let request = Request::builder().header("connection", connection).header("upgrade", upgrade);
            assert_eq!(wants_upgrade(&request.body(()).unwrap()), expected, "{connection} {upgrade}");
        }
    }

    #[test]
    fn only_safe_requests_are_repeated() {
        for (method, expected) in
            [(Method::GET, true), (Method::HEAD, true), (Method::POST, false), (Method::PUT, false)]
        {
            let mut request = Request::new(Either::Right(Full::default()));
            *request.method_mut() = method;
            assert_eq!(is_repeatable(&request), expected);
        }
    }
}
