//! Bytes of a client that does not keep to HTTP/2, for fuzzing.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::connection::{FRAME_HEADER, Frames, HEADERS, MAX_FRAME, PREFACE};
use crate::{Registration, Server};

/// How many turns the server has for the requests of a connection.
const TURNS: usize = 32;

/// A plugin that refuses every call, once its message was decoded.
struct Refusing;

impl Registration for Refusing {}

/// What a server reads of a client's bytes, which arrive in pieces of some size: as many bytes as were sent, and the same ones
/// outside header blocks, however they arrive.
pub fn frames(piece: usize, sent: &[u8]) {
    let (whole, held) = read(sent.len().max(1), sent);
    assert_eq!(read(piece.max(1), sent), (whole.clone(), held));
    assert_eq!(whole.len() + held, sent.len(), "bytes are neither lost nor added");
    assert!(held < FRAME_HEADER + MAX_FRAME, "a client decides how much is held back");
    // The frames as a server finds them.
    let mut at = PREFACE.min(whole.len());
    assert_eq!(whole[..at], sent[..at]);
    while let Some(header) = sent.get(at..at + FRAME_HEADER).filter(|_| at + FRAME_HEADER <= whole.len()) {
        assert_eq!(whole[at..at + FRAME_HEADER], *header);
        at += FRAME_HEADER;
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let end = (at + length).min(whole.len());
        assert!(header[3] == HEADERS || whole[at..end] == sent[at..end], "other frames pass as they are");
        at = end;
    }
    assert_eq!(at, whole.len());
    assert_eq!(read(piece.max(1), &whole).0, whole, "what was overwritten needs no change");
}

/// What a server reads, and how many bytes are held back.
fn read(piece: usize, sent: &[u8]) -> (Vec<u8>, usize) {
    let (mut frames, mut output) = (Frames::default(), Vec::new());
    for bytes in sent.chunks(piece) {
        frames.push(bytes, &mut output);
    }
    (output, frames.held())
}

/// Sends bytes to a server on a unix socket, and closes the connection.
pub async fn connection(bytes: &[u8]) {
    let Ok((near, mut far)) = UnixStream::pair() else { return };
    let client = async {
        let (mut read, mut write) = far.split();
        let send = async {
            // The server may close first.
            let _ = write.write_all(bytes).await;
            // A server that has read the end of a connection handles no request of it any more.
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
            let _ = write.shutdown().await;
        };
        let mut response = Vec::new();
        let (received, ()) = tokio::join!(read.read_to_end(&mut response), send);
        drop(received);
    };
    tokio::join!(Server::new().registration(Arc::new(Refusing)).serve_connection(near), client);
}
