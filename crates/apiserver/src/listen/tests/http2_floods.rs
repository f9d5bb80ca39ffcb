//! Floods of HTTP/2 frames: the connection is closed or costs little, and the next client is served.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::listening_server::{ListeningServer, TEST_TIMEOUT, is_closed};
use crate::request_tests::MAPS;

#[tokio::test]
async fn rapidly_reset_requests_do_no_harm() {
    let listening = ListeningServer::new().await;
    for _ in 0..5 {
        let mut sender = listening.http2().await;
        for _ in 0..2_000 {
            if sender.ready().await.is_err() {
                break;
            }
            let response = sender.send_request(listening.request("GET", MAPS, vec![]));
            // Dropping the response resets the stream.
            drop(response);
            tokio::task::yield_now().await;
        }
    }
    listening.check_alive().await;
    listening.stop().await;
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Sends frames of HTTP/2 until the server closes the connection. Returns how many were sent.
async fn flood(listening: &ListeningServer, frames: impl Iterator<Item = Vec<u8>> + Send + 'static) -> usize {
    let (reader, mut writer) = tokio::io::split(listening.connect("h2").await);
    let writing = tokio::spawn(async move {
        writer.write_all(PREFACE).await.unwrap();
        let mut sent = 0;
        for frame in frames {
            if writer.write_all(&frame).await.is_err() {
                break;
            }
            sent += 1;
        }
        // An open connection must not close because of this client.
        (sent, writer)
    });
    assert!(is_closed(reader).await, "the connection stays open");
    writing.await.unwrap().0
}

/// CVE-2023-45288: headers without an end are not read for long.
#[tokio::test]
async fn endless_headers_close_the_connection() {
    let listening = ListeningServer::new().await;
    // A field that is not indexed: `a` with 120 bytes.
    let field = [&[0, 1, b'a', 120][..], &[b'x'; 120]].concat();
    let block = field.repeat(100);
    let first = frame(1, 0, 1, &[0x82, 0x87, 0x84]);
    let more = std::iter::repeat_with(move || frame(9, 0, 1, &block)).take(100_000);
    let sent = flood(&listening, std::iter::once(first).chain(more)).await;
    assert!(sent < 10_000, "{sent} frames of headers were read");
    listening.check_alive().await;
    listening.stop().await;
}

/// CVE-2022-41723: a few bytes of compressed headers that expand to many are refused.
#[tokio::test]
async fn headers_that_expand_are_refused() {
    let listening = ListeningServer::new().await;
    // One indexed field of 3,900 bytes, and references to it: each byte stands for all of it.
    let mut block = vec![0x82, 0x87, 0x84, 0x40, 1, b'a', 0x7f];
    block.extend([0xbd, 0x1d]);
    block.extend([b'x'; 127 + 0x3d + 0x1d * 128]);
    block.extend([0xbe; 4_000]);
    let started = std::time::Instant::now();
    let requests = (0..200_u32).map(move |index| frame(1, 5, 2 * index + 1, &block));
    let (mut reader, mut writer) = tokio::io::split(listening.connect("h2").await);
    let writing = tokio::spawn(async move {
        let _ = writer.write_all(PREFACE).await;
        for request in requests {
            if writer.write_all(&request).await.is_err() {
                break;
            }
        }
        writer
    });
    let mut response = Vec::new();
    let _ = tokio::time::timeout(TEST_TIMEOUT, reader.read_to_end(&mut response)).await.expect("it is closed");
    drop(writing.await);
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    listening.check_alive().await;
    listening.stop().await;
}

/// CVE-2019-9514: a flood of invalid requests closes the connection.
#[tokio::test]
async fn a_flood_of_broken_requests_closes_the_connection() {
    let listening = ListeningServer::new().await;
    // A header in capitals is malformed, and resets its stream.
    let block = [&[0x82, 0x87, 0x84, 0, 1, b'A', 1, b'x'][..]].concat();
    let frames = (0..1_000_000_u32).map(move |index| frame(1, 5, 2 * index + 1, &block));
    let sent = flood(&listening, frames).await;
    assert!(sent < 1_000_000, "all were read");
    listening.check_alive().await;
    listening.stop().await;
}
