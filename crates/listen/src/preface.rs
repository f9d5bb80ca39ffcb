//! Reads the first bytes of a connection before it is served: they distinguish HTTP/2 from HTTP/1.1, and reading them here
//! puts a timeout on clients that send nothing.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::admission::Permit;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection whose first bytes have been read and are replayed.
pub struct PrefacedStream<T> {
    first: [u8; PREFACE.len()],
    length: usize,
    /// How many of the first bytes have been replayed.
    replayed: usize,
    stream: T,
    /// Counts the connection as long as it exists, also after an upgrade to another protocol.
    _permit: Permit,
}

/// Reads until the client's protocol is certain.
pub async fn read<T: AsyncRead + Unpin>(mut stream: T, permit: Permit) -> io::Result<PrefacedStream<T>> {
    let mut first = [0; PREFACE.len()];
    let mut length = 0;
    while length < PREFACE.len() && PREFACE.starts_with(&first[..length]) {
        match stream.read(&mut first[length..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => length += read,
        }
    }
    Ok(PrefacedStream { first, length, replayed: 0, stream, _permit: permit })
}

impl<T: AsyncRead + Unpin> AsyncRead for PrefacedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.replayed < self.length {
            let upto = self.length.min(self.replayed + buffer.remaining());
            buffer.put_slice(&self.first[self.replayed..upto]);
            self.replayed = upto;
            return Poll::Ready(Ok(()));
        }
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for PrefacedStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_bytes_are_replayed() {
        for text in ["GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nrest", "PRIVATE", "P"] {
            // One byte at a time, as the slowest client sends.
            let stream = byte_by_byte(text.as_bytes());
            let permit = crate::admission::Admission::new(1).admit(std::net::Ipv4Addr::LOCALHOST.into()).unwrap();
            let received = match read(stream, permit).await {
                Ok(mut prefaced) => {
                    let mut all = String::new();
                    prefaced.read_to_string(&mut all).await.unwrap();
                    Some(all)
                }
                Err(_) => None,
            };
            assert_eq!(received.as_deref(), (text != "P").then_some(text));
        }
    }

    fn byte_by_byte(bytes: &'static [u8]) -> impl AsyncRead + Unpin {
        bytes.chunks(1).fold(Box::new(tokio::io::empty()) as Box<dyn AsyncRead + Unpin>, |before, byte| {
            Box::new(before.chain(byte))
        })
    }
}
