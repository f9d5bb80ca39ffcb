//! A connection on a unix socket, whose client may name the socket's path as host.
//!
//! gRPC libraries that are given a path as address send it as `:authority`: so do the kubelet when a plugin registers, and older
//! device plugins. A path is not a host name, and the HTTP/2 library resets such a request. On a unix socket the host has no
//! meaning, so that it is overwritten before it is parsed.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

/// A unix socket that an HTTP/2 server can read whatever host the client names.
pub struct UnixConnection {
    stream: UnixStream,
    frames: Frames,
    /// Bytes for the reader, of which `delivered` were read.
    output: Vec<u8>,
    delivered: usize,
}

impl UnixConnection {
    /// Wraps a connection from which nothing has been read yet.
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, frames: Frames::default(), output: Vec::new(), delivered: 0 }
    }
}

impl AsyncRead for UnixConnection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.delivered == this.output.len() {
            this.output.clear();
            this.delivered = 0;
            let mut bytes = [0; 8192];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.frames.push(read.filled(), &mut this.output);
        }
        let rest = &this.output[this.delivered..];
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..count]);
        this.delivered += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for UnixConnection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

/// The connection preface of HTTP/2, which a client sends before its first frame.
pub(crate) const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
pub(crate) const FRAME_HEADER: usize = 9;
/// The server announces no larger frames, and refuses them.
pub(crate) const MAX_FRAME: usize = 16 << 10;
pub(crate) const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// The frames of a client. Those of type HEADERS are held back until they are complete.
pub(crate) struct Frames {
    held: Vec<u8>,
    /// How many bytes pass unread.
    passing: usize,
}

impl Default for Frames {
    fn default() -> Self {
        Self { held: Vec::new(), passing: PREFACE }
    }
}

impl Frames {
    pub(crate) fn push(&mut self, mut bytes: &[u8], output: &mut Vec<u8>) {
        loop {
            if self.passing > 0 {
                let (pass, rest) = bytes.split_at(self.passing.min(bytes.len()));
                output.extend_from_slice(pass);
                self.passing -= pass.len();
                bytes = rest;
            }
            if bytes.is_empty() || !self.complete(FRAME_HEADER, &mut bytes) {
                return;
            }
            let length = u32::from_be_bytes([0, self.held[0], self.held[1], self.held[2]]) as usize;
            if self.held[3] == HEADERS && length <= MAX_FRAME {
                if !self.complete(FRAME_HEADER + length, &mut bytes) {
                    return;
                }
                let (header, payload) = self.held.split_at_mut(FRAME_HEADER);
                let block = block_of(header[4], payload);
                overwrite_authority(&mut payload[block]);
            } else {
                self.passing = length;
            }
            output.append(&mut self.held);
        }
    }

    /// How many bytes are held back.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Holds back bytes until there are `count`.
    fn complete(&mut self, count: usize, bytes: &mut &[u8]) -> bool {
        let (missing, rest) = bytes.split_at(count.saturating_sub(self.held.len()).min(bytes.len()));
        self.held.extend_from_slice(missing);
        *bytes = rest;
        self.held.len() >= count
    }
}

/// Where the header block is in the payload of a HEADERS frame.
fn block_of(flags: u8, payload: &[u8]) -> Range<usize> {
    let (mut start, mut end) = (0, payload.len());
    if flags & PADDED != 0 {
        start = 1;
        end = end.saturating_sub(payload.first().copied().unwrap_or(0).into());
    }
    if flags & PRIORITY != 0 {
        start += 5;
    }
    start.min(end)..end
}

/// The index of `:authority` in the static table of HPACK (RFC 7541).
const AUTHORITY: usize = 1;

/// Replaces the value of `:authority` by letters. Stops at what it cannot read, which the HTTP/2 library refuses.
///
/// The dynamic table of the client stays valid: clients use Huffman's code only where it is shorter, so that the new value is not
/// longer than theirs, and no entry is evicted before they evict it. Later requests name the entry by its index.
fn overwrite_authority(block: &mut [u8]) -> Option<()> {
    let mut at = 0;
    while at < block.len() {
        // Indexed fields and changes of the table's size have no value of their own.
        let (prefix_bits, has_value) = match block[at] {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let (index, next) = integer(block, at, prefix_bits)?;
        at = next;
        if !has_value {
            continue;
        }
        if index == 0 {
            at = text(block, at)?.end;
        }
        let value = text(block, at)?;
        if index == AUTHORITY {
            block[at] &= !HUFFMAN;
            block[value.clone()].fill(b'a');
        }
        at = value.end;
    }
    Some(())
}

/// The bit of a text's length that says that it is in Huffman's code.
const HUFFMAN: u8 = 0x80;

/// Where the text is whose length is at `at`.
fn text(block: &[u8], at: usize) -> Option<Range<usize>> {
    let (length, start) = integer(block, at, 7)?;
    let end = start.checked_add(length)?;
    (end <= block.len()).then_some(start..end)
}

/// An integer with a prefix of some bits, and where it ends.
fn integer(block: &[u8], at: usize, prefix_bits: u32) -> Option<(usize, usize)> {
    let limit = (1 << prefix_bits) - 1;
    let mut value = usize::from(*block.get(at)?) & limit;
    let mut next = at + 1;
    if value < limit {
        return Some((value, next));
    }
    // No length in a frame needs more.
    for shift in [0, 7, 14, 21] {
        let byte = usize::from(*block.get(next)?);
        value += (byte & 0x7f) << shift;
        next += 1;
        if byte & 0x80 == 0 {
            return Some((value, next));
        }
    }
    None
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
