//! Health-check node ports: a load balancer asks each node whether it has an endpoint of a service with an external traffic
//! policy of Local.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::fronts::Front;

#[derive(Default)]
pub struct HealthPorts {
    by_service: HashMap<String, Listening>,
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
    /// Opens, updates or closes the port of a service.
    pub fn set(&mut self, service: &str, fronts: &[Front]) {
        let wanted = fronts.iter().find_map(|front| front.health_port.map(|port| (port, front.local_ready)));
        let Some((port, local)) = wanted else {
            self.by_service.remove(service);
            return;
        };
        if let Some(listening) = self.by_service.get(service).filter(|listening| listening.port == port) {
            listening.local.store(local, Ordering::Relaxed);
            return;
        }
        let local = Arc::new(AtomicUsize::new(local));
        let task = tokio::spawn(serve(service.to_owned(), port, Arc::clone(&local))).abort_handle();
        self.by_service.insert(service.to_owned(), Listening { port, local, task });
    }
}

async fn serve(service: String, port: u16, local: Arc<AtomicUsize>) {
    let listener = match TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], port))).await {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(service, port, %error, "the health-check port cannot be opened");
            return;
        }
    };
    while let Ok((stream, _)) = listener.accept().await {
        let text = answer(&service, local.load(Ordering::Relaxed));
        tokio::spawn(reply(stream, text));
    }
}

async fn reply(mut stream: TcpStream, text: String) {
    let mut request = [0u8; 1024];
    // Whatever is asked, the answer is the same; a client that sends nothing gets nothing.
    if matches!(stream.read(&mut request).await, Ok(read) if read > 0) {
        let _ = stream.write_all(text.as_bytes()).await;
        let _ = stream.shutdown().await;
    }
}

fn answer(service: &str, local: usize) -> String {
    let (namespace, name) = service.split_once('/').unwrap_or_default();
    let status = if local > 0 { "200 OK" } else { "503 Service Unavailable" };
    let body = serde_json::json!({
        "service": {"namespace": namespace, "name": name}, "localEndpoints": local, "serviceProxyHealthy": true,
    });
    let body = body.to_string();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         X-Load-Balancing-Endpoint-Weight: {local}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::answer;

    #[test]
    fn a_node_without_endpoints_is_unhealthy() {
        assert!(answer("n/s", 2).starts_with("HTTP/1.1 200"));
        assert!(answer("n/s", 0).starts_with("HTTP/1.1 503"));
    }
}
