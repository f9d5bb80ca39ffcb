//! Metrics of requests to the API server, by Kubernetes' names.

use std::sync::Arc;
use std::time::Instant;

use http::{Request, Response};
use hyper::body::{Body as HttpBody, Bytes};
use knarr_metrics::{Counter, Family, Histogram, register};
use kube::Client;
use kube::client::Body;
use tower::{BoxError, Service, ServiceExt as _};

const DURATION_BOUNDS: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
const SIZE_BOUNDS: &[f64] =
    &[64.0, 256.0, 512.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0];
/// The host of a server in the same process.
const IN_PROCESS: &str = "in-process";

static REQUESTS: Counter = Counter::new(
    "rest_client_requests_total",
    "[ALPHA] Requests to the API server, by code.",
    &["code", "host", "method"],
);
static DURATION: Histogram = Histogram::new(
    "rest_client_request_duration_seconds",
    "[ALPHA] Time until the API server's response starts.",
    &["host", "verb"],
    DURATION_BOUNDS,
);
static REQUEST_SIZE: Histogram = Histogram::new(
    "rest_client_request_size_bytes",
    "[ALPHA] Bytes of requests to the API server.",
    &["host", "verb"],
    SIZE_BOUNDS,
);
static RESPONSE_SIZE: Histogram = Histogram::new(
    "rest_client_response_size_bytes",
    "[ALPHA] Bytes of the API server's responses of known length.",
    &["host", "verb"],
    SIZE_BOUNDS,
);

/// What a process with clients exposes.
pub const FAMILIES: &[&dyn Family] = &[&REQUESTS, &DURATION, &REQUEST_SIZE, &RESPONSE_SIZE];

/// A request that is being sent.
pub(crate) struct Measured {
    method: http::Method,
    host: String,
    started: Instant,
}

impl Measured {
    pub(crate) fn start(request: &Request<Body>) -> Measured {
        Measured::start_at(request, IN_PROCESS)
    }

    /// The same for a request whose URL may lack the server.
    fn start_at(request: &Request<Body>, server: &str) -> Measured {
        let host = request.uri().authority().map_or(server, |authority| authority.as_str()).to_owned();
        let method = request.method().clone();
        if cfg!(debug_assertions) && method != http::Method::GET && request.uri().path().ends_with("/status") {
            knarr_supervisor::fault::point("status");
        }
        if let Some(size) = request.body().size_hint().exact() {
            REQUEST_SIZE.observe(&[&host, method.as_str()], size as f64);
        }
        Measured { method, host, started: Instant::now() }
    }

    pub(crate) fn finish<B: HttpBody, E>(self, response: &Result<Response<B>, E>) {
        let (host, method) = (self.host.as_str(), self.method.as_str());
        DURATION.observe(&[host, method], self.started.elapsed().as_secs_f64());
        let code = response.as_ref().ok().map(Response::status);
        REQUESTS.add(&[code.as_ref().map_or("<error>", http::StatusCode::as_str), host, method], 1);
        if let Some(size) = response.as_ref().ok().and_then(|response| response.body().size_hint().exact()) {
            RESPONSE_SIZE.observe(&[host, method], size as f64);
        }
    }
}

/// A client of a server in this process, whose requests are measured.
pub fn in_process_client<S, B>(service: S) -> Client
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    measured_client(service, IN_PROCESS)
}

/// A client of `server`, whose requests are measured. It measures the service itself: each client has a queue of its own.
pub fn measured_client<S, B>(service: S, server: &str) -> Client
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    register(FAMILIES);
    let server: Arc<str> = server.into();
    let send = tower::service_fn(move |request: Request<Body>| {
        let (service, server) = (service.clone(), server.clone());
        async move {
            let measured = Measured::start_at(&request, &server);
            let response = service.oneshot(request).await;
            measured.finish(&response);
            response
        }
    });
    Client::new(send, "default")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_are_counted_by_code() {
        let respond = tower::service_fn(|_: Request<Body>| async {
            let response = Response::builder().status(418).body(Body::from(b"short".to_vec()));
            Ok::<_, std::convert::Infallible>(response.expect("a response"))
        });
        let request = || Request::post("/x").body(Body::from(b"{}".to_vec())).expect("a request");
        in_process_client(respond).send(request()).await.expect("a response");
        measured_client(respond, "a:6443").send(request()).await.expect("a response");
        let mut page = String::new();
        FAMILIES.iter().for_each(|family| family.write(&mut page));
        let line = "rest_client_requests_total{code=\"418\",host=\"in-process\",method=\"POST\"} 1\n";
        assert!(page.contains(line), "{page}");
        assert!(page.contains(&line.replace("in-process", "a:6443")), "{page}");
        assert!(page.contains("rest_client_request_size_bytes_sum{host=\"in-process\",verb=\"POST\"} 2\n"), "{page}");
    }
}
