//! Watches and logs over WebSocket, for clients such as browsers that cannot stream a response.

use std::pin::pin;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use http::header::{CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyStream;
use hyper_util::rt::TokioIo;
use knarr_api::status::Status;
use sha1::{Digest, Sha1};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::stream::Stream;
use crate::response::Body;

/// The GUID that RFC 6455 appends to the key of the handshake.
const HANDSHAKE_GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
/// The largest payload of a control frame, the only frames a client may send.
const MAX_CONTROL_PAYLOAD: usize = 125;

/// Whether a request asks for an upgrade to WebSocket.
pub fn is_requested(headers: &HeaderMap) -> bool {
    let has = |name, expected: &str| {
        headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .any(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(expected)))
    };
    has(UPGRADE, "websocket") && has(CONNECTION, "upgrade")
}

/// Completes the handshake and sends the watch, one message per event.
pub fn serve(parts: &mut Parts, stream: Stream, binary: bool) -> Result<Response<Body>, Status> {
    let framed = futures::stream::unfold(stream, move |mut stream| async move {
        let chunk = stream.next().await?;
        Some((messages(&chunk, binary), stream))
    });
    upgrade(parts, framed.boxed())
}

/// Completes the handshake and streams a body, in base64 if the client requests it.
pub fn serve_body(parts: &mut Parts, body: Body) -> Result<Response<Body>, Status> {
    let protocol = chosen_protocol(&parts.headers);
    let as_text = protocol.is_some_and(|protocol| protocol == "base64.binary.k8s.io");
    let framed = BodyStream::new(body).filter_map(move |piece| {
        let data = piece.ok().and_then(|piece| piece.into_data().ok());
        std::future::ready(data.map(|data| match as_text {
            true => frame(TEXT, STANDARD.encode(&data).as_bytes()),
            false => frame(BINARY, &data),
        }))
    });
    upgrade(parts, framed.boxed())
}

fn upgrade(parts: &mut Parts, messages: BoxStream<'static, Vec<u8>>) -> Result<Response<Body>, Status> {
    let key = parts
        .headers
        .get(SEC_WEBSOCKET_KEY)
        .ok_or_else(|| Status::bad_request("the WebSocket handshake has no key"))?;
    let accept = STANDARD.encode(Sha1::new().chain_update(key.as_bytes()).chain_update(HANDSHAKE_GUID).finalize());
    let upgrade = parts
        .extensions
        .remove::<hyper::upgrade::OnUpgrade>()
        .ok_or_else(|| Status::bad_request("the connection cannot be upgraded"))?;
    knarr_supervisor::spawn(async move {
        match upgrade.await {
            Ok(connection) => send(TokioIo::new(connection), messages).await,
            Err(error) => tracing::debug!(%error, "cannot upgrade a WebSocket connection"),
        }
    });
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Ok(accept) = HeaderValue::from_str(&accept) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    if let Some(protocol) = chosen_protocol(&parts.headers) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    Ok(response)
}

/// Whether a subprotocol carries a bearer token instead of naming a protocol.
pub fn is_token_protocol(name: &str) -> bool {
    name.starts_with("base64url.bearer.authorization")
}

fn chosen_protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let offered = headers.get(SEC_WEBSOCKET_PROTOCOL)?.to_str().ok()?;
    let first = offered.split(',').map(str::trim).find(|name| !is_token_protocol(name))?;
    HeaderValue::from_str(first).ok()
}

async fn send(
    connection: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    mut messages: BoxStream<'static, Vec<u8>>,
) {
    let (reader, mut writer) = tokio::io::split(connection);
    // The stream keeps a partly read frame while messages are sent.
    let mut frames = pin!(futures::stream::unfold(reader, |mut reader| async move {
        control(&mut reader).await.map(|message| (message, reader))
    }));
    loop {
        let wrote = tokio::select! {
            framed = messages.next() => match framed {
                Some(framed) => writer.write_all(&framed).await,
                None => break,
            },
            incoming = frames.next() => match incoming {
                Some((PING, payload)) => writer.write_all(&frame(PONG, &payload)).await,
                Some((CLOSE, _)) | None => break,
                Some(_) => Ok(()),
            },
        };
        if wrote.is_err() {
            return;
        }
    }
    // Errors do not matter: the peer may be gone already.
    let _ = writer.write_all(&frame(CLOSE, &1000u16.to_be_bytes())).await;
    let _ = writer.shutdown().await;
}

/// The events of a chunk, one message each.
fn messages(chunk: &Bytes, binary: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(chunk.len() + 64);
    if binary {
        let mut rest = &chunk[..];
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let length = (u32::from_be_bytes(*length) as usize).min(after.len());
            out.extend_from_slice(&frame(BINARY, &after[..length]));
            rest = &after[length..];
        }
    } else {
        for line in chunk.split_inclusive(|byte| *byte == b'\n') {
            out.extend_from_slice(&frame(TEXT, line));
        }
    }
    out
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len() + 10);
    out.push(0x80 | kind);
    match payload.len() {
        length @ 0..=125 => out.push(length as u8),
        length @ 126..=65_535 => {
            out.push(126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            out.push(127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
    out
}

/// Reads one control frame of the client.
async fn control(reader: &mut (impl tokio::io::AsyncRead + Unpin)) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    reader.read_exact(&mut head).await.ok()?;
    let length = (head[1] & 0x7f) as usize;
    if length > MAX_CONTROL_PAYLOAD || head[1] & 0x80 == 0 {
        return None;
    }
    let mut mask = [0; 4];
    reader.read_exact(&mut mask).await.ok()?;
    let mut payload = vec![0; length];
    reader.read_exact(&mut payload).await.ok()?;
    for (at, byte) in payload.iter_mut().enumerate() {
        *byte ^= mask[at % 4];
    }
    Some((head[0] & 0x0f, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_fragmented_ping_gets_a_pong_between_messages() {
        let (client, server) = tokio::io::duplex(1 << 10);
        let (sender, events) = futures::channel::mpsc::unbounded();
        let served = tokio::spawn(send(server, events.boxed()));
        let (mut reader, mut writer) = tokio::io::split(client);
        let mut next = async |length: usize| {
            let mut bytes = vec![0; length];
            reader.read_exact(&mut bytes).await.expect("a message");
            bytes
        };
        // A header, its mask and its payload, with an event after the first two.
        for (place, piece) in [&[0x89, 0x82][..], &[0; 4], b"hi"].into_iter().enumerate() {
            writer.write_all(piece).await.expect("written");
            if place < 2 {
                sender.unbounded_send(frame(TEXT, b"event")).expect("open");
                assert_eq!(next(7).await, frame(TEXT, b"event"));
            }
        }
        assert_eq!(next(4).await, frame(PONG, b"hi"));
        drop(sender);
        assert_eq!(next(4).await, frame(CLOSE, &1000u16.to_be_bytes()));
        served.await.expect("it ends");
    }

    #[test]
    fn each_event_is_one_message() {
        let sent = messages(&Bytes::from_static(b"{}\n{1}\n"), false);
        assert_eq!(sent, b"\x81\x03{}\n\x81\x04{1}\n");
        let sent = messages(&Bytes::from_static(b"\0\0\0\x02ab\0\0\0\x01c"), true);
        assert_eq!(sent, b"\x82\x02ab\x82\x01c");
    }

    #[test]
    fn long_messages_have_longer_length_fields() {
        assert_eq!(frame(TEXT, &[0; 300])[..4], [0x81, 126, 1, 44]);
        assert_eq!(frame(TEXT, &[0; 70_000])[..2], [0x81, 127]);
    }
}
