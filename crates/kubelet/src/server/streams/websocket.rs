//! The server side of a WebSocket (RFC 6455), reduced to what streams into containers need.

use std::io;
use std::time::Duration;

use base64::Engine;
use bytes::{Buf, BytesMut};
use http::{HeaderMap, HeaderValue, header};
use sha1::{Digest, Sha1};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Larger than any message of a real client.
const MAX_MESSAGE_SIZE: usize = 8 << 20;
/// How long to wait for the client's close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// The subprotocols that the client offers, in order; none if this is not a WebSocket request.
pub fn offered(headers: &HeaderMap) -> Option<Vec<String>> {
    let upgrade = headers.get(header::UPGRADE)?.to_str().ok()?;
    if !upgrade.eq_ignore_ascii_case("websocket") {
        return None;
    }
    let lists = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    Some(lists.flat_map(|list| list.split(',')).map(|name| name.trim().to_string()).collect())
}

/// The headers that accept the upgrade with this subprotocol.
pub fn accept_headers(headers: &HeaderMap, protocol: &str) -> Option<HeaderMap> {
    let key = headers.get(header::SEC_WEBSOCKET_KEY)?.to_str().ok()?;
    let digest = Sha1::digest(format!("{key}{MAGIC}"));
    let accept = base64::engine::general_purpose::STANDARD.encode(digest);
    let mut response = HeaderMap::new();
    response.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    response.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    response.insert(header::SEC_WEBSOCKET_ACCEPT, HeaderValue::from_str(&accept).ok()?);
    response.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(protocol).ok()?);
    Some(response)
}

#[derive(Debug, PartialEq, Eq)]
pub enum Message {
    Data(Vec<u8>),
    Ping(Vec<u8>),
    Close,
}

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Assembles messages from the client's frames.
pub struct Reader<R> {
    stream: R,
    buffer: BytesMut,
    partial: Vec<u8>,
}

struct Frame {
    last: bool,
    kind: u8,
    payload: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub fn new(stream: R) -> Self {
        Self { stream, buffer: BytesMut::new(), partial: Vec::new() }
    }

    /// None when the client is gone. Cancel safe: no data is lost if the future is dropped.
    pub async fn next(&mut self) -> io::Result<Option<Message>> {
        loop {
            while let Some(frame) = self.frame()? {
                match frame.kind {
                    CONTINUATION | TEXT | BINARY => {
                        self.partial.extend_from_slice(&frame.payload);
                        if self.partial.len() > MAX_MESSAGE_SIZE {
                            return Err(io::Error::other("a message is too large"));
                        }
                        if frame.last {
                            return Ok(Some(Message::Data(std::mem::take(&mut self.partial))));
                        }
                    }
                    PING => return Ok(Some(Message::Ping(frame.payload))),
                    CLOSE => return Ok(Some(Message::Close)),
                    _ => {}
                }
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// A whole frame from the buffer, or none until more has come.
    fn frame(&mut self) -> io::Result<Option<Frame>> {
        let bytes = &self.buffer[..];
        let [first, second, ..] = *bytes else { return Ok(None) };
        let short = usize::from(second & 0x7f);
        let (length, mut offset) = match short {
            126 if bytes.len() >= 4 => (usize::from(u16::from_be_bytes([bytes[2], bytes[3]])), 4),
            127 if bytes.len() >= 10 => {
                let mut long = [0; 8];
                long.copy_from_slice(&bytes[2..10]);
                (usize::try_from(u64::from_be_bytes(long)).unwrap_or(usize::MAX), 10)
            }
            126 | 127 => return Ok(None),
            short => (short, 2),
        };
        if length > MAX_MESSAGE_SIZE {
            return Err(io::Error::other("a frame is too large"));
        }
        if second & 0x80 == 0 {
            return Err(io::Error::other("a client must mask its frames"));
        }
        if bytes.len() < offset + 4 + length {
            return Ok(None);
        }
        let mask = [bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]];
        offset += 4;
        let masked = bytes[offset..offset + length].iter().zip(mask.iter().cycle());
        let payload = masked.map(|(byte, mask)| byte ^ mask).collect();
        self.buffer.advance(offset + length);
        Ok(Some(Frame { last: first & 0x80 != 0, kind: first & 0x0f, payload }))
    }
}

pub async fn send<W: AsyncWrite + Unpin>(stream: &mut W, payload: &[&[u8]]) -> io::Result<()> {
    write_frame(stream, BINARY, payload).await
}

pub async fn send_pong<W: AsyncWrite + Unpin>(stream: &mut W, payload: &[u8]) -> io::Result<()> {
    write_frame(stream, PONG, &[payload]).await
}

/// Sends a normal close frame and waits for the client's: closing a connection with unread input would discard output
/// that the client has not read yet.
pub async fn finish<R, W>(mut messages: Reader<R>, mut stream: W) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    write_frame(&mut stream, CLOSE, &[&1000u16.to_be_bytes()]).await?;
    stream.shutdown().await?;
    let close = async { while !matches!(messages.next().await, Ok(Some(Message::Close) | None) | Err(_)) {} };
    tokio::time::timeout(CLOSE_TIMEOUT, close).await.map_err(io::Error::other)
}

async fn write_frame<W: AsyncWrite + Unpin>(stream: &mut W, kind: u8, parts: &[&[u8]]) -> io::Result<()> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut frame = Vec::with_capacity(length + 10);
    frame.push(0x80 | kind);
    match length {
        0..=125 => frame.push(length as u8),
        126..=0xffff => {
            frame.push(126);
            frame.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            frame.push(127);
            frame.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    parts.iter().for_each(|part| frame.extend_from_slice(part));
    stream.write_all(&frame).await?;
    stream.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [1, 2, 3, 4];
        let mut frame = vec![first, 0x80 | payload.len() as u8];
        frame.extend_from_slice(&mask);
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        frame
    }

    #[tokio::test]
    async fn messages_are_put_together() {
        let mut bytes = masked(0x02, b"he");
        bytes.extend(masked(0x89, b"p"));
        bytes.extend(masked(0x80, b"llo"));
        bytes.extend(masked(0x88, b""));
        let mut reader = Reader::new(bytes.as_slice());
        let mut seen = Vec::new();
        while let Some(message) = reader.next().await.expect("readable") {
            seen.push(message);
        }
        assert_eq!(seen, [Message::Ping(b"p".to_vec()), Message::Data(b"hello".to_vec()), Message::Close]);
    }

    #[test]
    fn the_response_to_the_key_is_that_of_the_standard() {
        let mut headers = HeaderMap::new();
        headers.insert(header::SEC_WEBSOCKET_KEY, HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ=="));
        let response = accept_headers(&headers, "p").expect("headers");
        assert_eq!(response[header::SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
