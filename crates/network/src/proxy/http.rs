//! A minimal HTTP server for health checks and metrics.

use std::time::Duration;

use knarr_listen::Admission;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Longer request heads are rejected.
const MAX_HEAD: usize = 8 * 1024;
const TIMEOUT: Duration = Duration::from_secs(10);
/// More connections, and more than three quarters of one client, are closed: the port is open to the network.
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

/// The parts of a request that handlers read.
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
    let admission = Admission::new(MAX_CONNECTIONS);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(permit) = admission.admit(peer.ip()) else { continue };
                let handler = handler.clone();
                knarr_supervisor::spawn(async move {
                    let _permit = permit;
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
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr};
    use tokio::net::TcpSocket;

    async fn connect(from: Ipv4Addr, server: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::from((from, 0))).expect("bound");
        socket.connect(server).await.expect("connected")
    }

    #[tokio::test]
    async fn silent_connections_of_one_client_do_not_block_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let server = listener.local_addr().expect("an address");
        let serving = tokio::spawn(serve(listener, |_| HttpResponse::not_found()));
        let mut silent = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            silent.push(connect(Ipv4Addr::new(127, 0, 0, 2), server).await);
        }
        let mut other = connect(Ipv4Addr::new(127, 0, 0, 3), server).await;
        other.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("sent");
        let mut response = String::new();
        other.read_to_string(&mut response).await.expect("a response");
        assert!(response.starts_with("HTTP/1.1 404 "), "{response}");
        serving.abort();
    }

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
