//! The method CONNECT: asks an HTTP proxy to open a connection, which the stream then is.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The largest response; a proxy must not fill the memory.
const MAX_RESPONSE: usize = 64 * 1024;

/// Asks the proxy on this stream for a connection to `target`.
pub async fn open(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), proxy: &str, target: &str) -> Result<(), String> {
    let failed =
        |why: String| format!("reading HTTP response from CONNECT to {target} via proxy {proxy} failed: {why}");
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(|error| failed(error.to_string()))?;
    stream.flush().await.map_err(|error| failed(error.to_string()))?;
    let head = read_head(stream).await.map_err(failed)?;
    let status = head.split("\r\n").next().unwrap_or_default();
    let Some((code, text)) = status_of(status) else {
        return Err(failed(format!("malformed HTTP response {status:?}")));
    };
    if code != 200 {
        return Err(format!("proxy error from {proxy} while dialing {target}, code {code}: {text}"));
    }
    Ok(())
}

/// Reads up to the empty line and not a byte more: what follows belongs to the connection.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Result<String, String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_RESPONSE {
            return Err(format!("the response is larger than {MAX_RESPONSE} bytes"));
        }
        head.push(stream.read_u8().await.map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => "unexpected EOF".to_owned(),
            _ => error.to_string(),
        })?);
    }
    String::from_utf8(head).map_err(|_| "malformed HTTP response".to_owned())
}

/// The code and the text of a status line.
fn status_of(line: &str) -> Option<(u16, &str)> {
    let (version, status) = line.split_once(' ')?;
    let code = status.split(' ').next()?.parse().ok()?;
    version.starts_with("HTTP/1.").then_some((code, status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn responses_of_proxies_are_checked() {
        for (response, outcome) in [
            ("HTTP/1.1 200 Connection established\r\nA: b\r\n\r\nrest", Ok(())),
            ("HTTP/1.0 200 OK\r\n\r\n", Ok(())),
            ("HTTP/1.1 403 Forbidden\r\n\r\n", Err("proxy error from p while dialing t:1, code 403: 403 Forbidden")),
            (
                "HTTP/1.1 200 OK\r\n",
                Err("reading HTTP response from CONNECT to t:1 via proxy p failed: unexpected EOF"),
            ),
            (
                "SSH-2.0-x\r\n\r\n",
                Err(
                    "reading HTTP response from CONNECT to t:1 via proxy p failed: malformed HTTP response \"SSH-2.0-x\"",
                ),
            ),
        ] {
            let (mut ours, mut theirs) = tokio::io::duplex(1 << 20);
            theirs.write_all(response.as_bytes()).await.unwrap();
            theirs.shutdown().await.unwrap();
            let opened = open(&mut ours, "p", "t:1").await;
            assert_eq!(opened, outcome.map_err(str::to_owned), "{response}");
            if response.ends_with("rest") {
                let mut rest = String::new();
                ours.read_to_string(&mut rest).await.unwrap();
                assert_eq!(rest, "rest");
            }
        }
        let (mut ours, mut theirs) = tokio::io::duplex(1 << 20);
        theirs.write_all(&vec![b'a'; MAX_RESPONSE + 1]).await.unwrap();
        assert!(open(&mut ours, "p", "t:1").await.unwrap_err().ends_with("larger than 65536 bytes"));
    }
}
