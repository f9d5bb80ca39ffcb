//! The read-only port: health, pods, statistics and metrics for everybody, without TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;

use super::{Caller, Server, handle, health, text};

/// Serves forever.
pub async fn serve(server: Arc<Server>, address: SocketAddr) {
    let respond = move |request: Request<Incoming>| {
        let server = server.clone();
        async move {
            match is_served(request.method(), request.uri().path()) {
                true => handle(&server, request, Caller::Everybody).await,
                false => text(StatusCode::NOT_FOUND, "404 page not found\n"),
            }
        }
    };
    health::accept(health::bound(address).await, respond).await;
}

/// What needs no authorization in Kubernetes.
fn is_served(method: &Method, path: &str) -> bool {
    let first = path.split('/').find(|part| !part.is_empty());
    matches!(*method, Method::GET | Method::HEAD) && matches!(first, Some("healthz" | "pods" | "stats" | "metrics"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_changes_a_pod_or_shows_its_output_is_served() {
        for path in ["/healthz", "/pods", "/stats/summary", "/metrics", "/metrics/cadvisor"] {
            assert!(is_served(&Method::GET, path) && !is_served(&Method::POST, path), "{path}");
        }
        for path in [
            "/",
            "/exec/a/b/c",
            "/run/a/b/c",
            "/attach/a/b/c",
            "/portForward/a/b",
            "/containerLogs/a/b/c",
            "/logs/",
            "/configz",
            "/runningpods",
            "/checkpoint/a/b/c",
            "/flagz",
            "/statusz",
            "/%65xec/a/b/c",
            "//exec/a/b/c",
        ] {
            assert!(!is_served(&Method::GET, path), "{path}");
        }
    }
}
