//! Health check node ports: a load balancer checks whether a node has an endpoint of a Service with
//! `externalTrafficPolicy: Local`.

use std::collections::HashMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::TcpListener;

use super::frontends::Frontend;
use super::http::{self, HttpRequest, HttpResponse};
use super::status::Status;

pub struct HealthPorts {
    by_service: HashMap<String, Listening>,
    /// A node whose rules are out of date is no better than one without endpoints.
    status: Arc<Status>,
}

struct Listening {
    port: u16,
    local: Arc<AtomicUsize>,
    task: tokio::task::AbortHandle,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HealthPorts {
    pub fn new(status: Arc<Status>) -> Self {
        Self { by_service: HashMap::new(), status }
    }

    /// Opens, updates or closes the port of a Service.
    pub fn set(&mut self, service: &str, frontends: &[Frontend]) {
        let desired =
            frontends.iter().find_map(|frontend| frontend.health_port.map(|port| (port, frontend.local_ready)));
        let Some((port, local)) = desired else {
            self.by_service.remove(service);
            return;
        };
        if let Some(listening) = self.by_service.get(service).filter(|listening| listening.port == port) {
            listening.local.store(local, Ordering::Relaxed);
            return;
        }
        let local = Arc::new(AtomicUsize::new(local));
        let serving = serve(service.to_owned(), port, Arc::clone(&local), Arc::clone(&self.status));
        let task = knarr_supervisor::spawn_linked("health-check-node-port", serving);
        self.by_service.insert(service.to_owned(), Listening { port, local, task });
    }
}

async fn serve(service: String, port: u16, local: Arc<AtomicUsize>, status: Arc<Status>) {
    match listen_everywhere(port).await {
        Ok(listener) => {
            let handler = move |_: &HttpRequest<'_>| {
                health_response(&service, local.load(Ordering::Relaxed), status.is_syncing())
            };
            http::serve(listener, handler).await;
        }
        Err(error) => tracing::error!(service, port, %error, "cannot open the health check port"),
    }
}

/// Both families on one socket; only IPv4 if the kernel has no IPv6.
async fn listen_everywhere(port: u16) -> std::io::Result<TcpListener> {
    match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await {
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], port))).await
        }
        result => result,
    }
}

fn health_response(service: &str, local: usize, is_syncing: bool) -> HttpResponse {
    let (namespace, name) = service.split_once('/').unwrap_or_default();
    let body = serde_json::json!({
        "service": {"namespace": namespace, "name": name}, "localEndpoints": local, "serviceProxyHealthy": is_syncing,
    });
    HttpResponse {
        status: if local > 0 && is_syncing { "200 OK" } else { "503 Service Unavailable" },
        content_type: "application/json",
        headers: format!("X-Load-Balancing-Endpoint-Weight: {local}\r\n"),
        body: body.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::health_response;

    #[test]
    fn a_node_without_endpoints_is_unhealthy() {
        assert!(health_response("n/s", 2, true).status.starts_with("200"));
        assert!(health_response("n/s", 0, true).status.starts_with("503"));
        assert!(health_response("n/s", 2, false).status.starts_with("503"), "its rules are out of date");
    }
}
