//! Small answers over HTTP: enough for load balancers that ask for health and for collectors of metrics.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A head longer than this is not a question for us.
const LONGEST_HEAD: usize = 8 * 1024;
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Answer {
    pub status: &'static str,
    pub content_type: &'static str,
    /// Further header lines, each with its end.
    pub headers: String,
    pub body: String,
}

impl Answer {
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

/// Answers each question by its path, until dropped.
pub async fn serve(listener: TcpListener, answer: impl Fn(&str) -> Answer + Clone + Send + Sync + 'static) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let answer = answer.clone();
                tokio::spawn(async move {
                    if let Ok(Err(error)) = tokio::time::timeout(PATIENCE, reply(stream, answer)).await {
                        tracing::trace!(%error, "a question about health was not answered");
                    }
                });
            }
            Err(error) => {
                // Out of files, most likely: others must end first.
                tracing::warn!(%error, "a question about health could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn reply(mut stream: TcpStream, answer: impl Fn(&str) -> Answer) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > LONGEST_HEAD || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    stream.write_all(answer(path(&head)).text().as_bytes()).await?;
    stream.shutdown().await
}

/// The path that a request's first line names, without its query.
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
