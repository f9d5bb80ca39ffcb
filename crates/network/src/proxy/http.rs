//! A minimal HTTP server for health checks and metrics.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Longer request heads are rejected.
const MAX_HEAD: usize = 8 * 1024;
const TIMEOUT: Duration = Duration::from_secs(10);

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

/// Serves each request by its path, until dropped.
pub async fn serve(listener: TcpListener, handler: impl Fn(&str) -> HttpResponse + Clone + Send + Sync + 'static) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let handler = handler.clone();
                knarr_supervisor::spawn(async move {
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

async fn reply(mut stream: TcpStream, handler: impl Fn(&str) -> HttpResponse) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > MAX_HEAD || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    stream.write_all(handler(path(&head)).text().as_bytes()).await?;
    stream.shutdown().await
}

/// The path in the request line, without its query.
fn path(head: &[u8]) -> &str {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let target = line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let target = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    std::str::from_utf8(target).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn a_path_is_found_in_the_first_line() {
        for (head, expected) in [
            ("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "/healthz"),
            ("GET /metrics?x=1 HTTP/1.1\r\n\r\n", "/metrics"),
            ("GET\r\n\r\n", ""),
            ("", ""),
        ] {
            assert_eq!(path(head.as_bytes()), expected);
        }
    }
}
