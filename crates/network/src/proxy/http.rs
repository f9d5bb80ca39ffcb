//! A minimal HTTP server for health checks and metrics.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Longer request heads are rejected.
const MAX_HEAD: usize = 8 * 1024;
const TIMEOUT: Duration = Duration::from_secs(10);
/// More connections wait: the port is open to the network.
const MAX_CONNECTIONS: usize = 256;

pub struct HttpResponse {
    pub status: &'static str,
    pub content_type: &'static str,
    /// Further header lines, each with its line ending.
    pub headers: String,
    pub body: String,
}

impl HttpResponse {
    pub fn not_found() -> Self {
        Self {
            status: "404 Not Found",
            content_type: "text/plain; charset=utf-8",
            headers: String::new(),
            body: "404 page not found\n".to_owned(),
        }
    }

    fn text(&self) -> String {
        format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nX-Content-Type-Options: nosniff\r\n{}Content-Length: {}\r\n\
             Connection: close\r\n\r\n{}",
            self.status,
            self.content_type,
            self.headers,
            self.body.len(),
            self.body
        )
    }
}

/// What a handler needs of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct HttpRequest<'a> {
    /// Without the query.
    pub path: &'a str,
    /// The Accept header, or nothing.
    pub accept: &'a str,
}

impl<'a> HttpRequest<'a> {
    fn parse(head: &'a [u8]) -> Self {
        let mut lines =
            head.split(|byte| *byte == b'\n').map(|line| std::str::from_utf8(line).unwrap_or_default().trim());
        let target = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
        let path = target.split('?').next().unwrap_or_default();
        let mut headers = lines.filter_map(|line| line.split_once(':'));
        let accept = headers.find(|(name, _)| name.eq_ignore_ascii_case("accept"));
        Self { path, accept: accept.map_or("", |(_, value)| value.trim()) }
    }
}

/// Serves requests until dropped.
pub async fn serve(
    listener: TcpListener,
    handler: impl Fn(&HttpRequest<'_>) -> HttpResponse + Clone + Send + Sync + 'static,
) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // Never closed.
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let handler = handler.clone();
                knarr_supervisor::spawn(async move {
                    let _slot = slot;
                    if let Ok(Err(error)) = tokio::time::timeout(TIMEOUT, reply(stream, handler)).await {
                        tracing::trace!(%error, "a health check was not served");
                    }
                });
            }
            Err(error) => {
                // Probably out of file descriptors: other connections must close first.
                tracing::warn!(%error, "cannot accept a health check connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn reply(mut stream: TcpStream, handler: impl Fn(&HttpRequest<'_>) -> HttpResponse) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > MAX_HEAD || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    stream.write_all(handler(&HttpRequest::parse(&head)).text().as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::HttpRequest;

    #[test]
    fn path_and_format_are_read_from_the_head() {
        for (head, path, accept) in [
            ("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "/healthz", ""),
            ("GET /metrics?x=1 HTTP/1.1\r\nACCEPT:  text/plain \r\n\r\n", "/metrics", "text/plain"),
            ("GET\r\n\r\n", "", ""),
            ("", "", ""),
        ] {
            assert_eq!(HttpRequest::parse(head.as_bytes()), HttpRequest { path, accept }, "{head:?}");
        }
    }
}
