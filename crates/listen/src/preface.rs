//! The first bytes of a connection, read before it is served: only they tell HTTP/2 from HTTP/1.1, and a client that sends
//! none is not waited for without end.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection whose first bytes are known.
pub struct Begun<T> {
    first: [u8; PREFACE.len()],
    length: usize,
    /// How many of the first bytes have been handed on.
    passed: usize,
    stream: T,
    /// Counts the connection for as long as it lives, also when it speaks another protocol by then.
    _permit: OwnedSemaphorePermit,
}

/// Reads until it is certain which protocol the client speaks.
pub async fn begin<T: AsyncRead + Unpin>(mut stream: T, permit: OwnedSemaphorePermit) -> io::Result<Begun<T>> {
    let mut first = [0; PREFACE.len()];
    let mut length = 0;
    while length < PREFACE.len() && PREFACE.starts_with(&first[..length]) {
        match stream.read(&mut first[length..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => length += read,
        }
    }
    Ok(Begun { first, length, passed: 0, stream, _permit: permit })
}

impl<T: AsyncRead + Unpin> AsyncRead for Begun<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.passed < self.length {
            let upto = self.length.min(self.passed + buffer.remaining());
            buffer.put_slice(&self.first[self.passed..upto]);
            self.passed = upto;
            return Poll::Ready(Ok(()));
        }
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Begun<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
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
    async fn what_was_read_is_handed_on() {
        for text in ["GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nrest", "PRIVATE", "P"] {
            // One byte at a time, as the slowest client sends.
            let stream = byte_by_byte(text.as_bytes());
            let permit = std::sync::Arc::new(tokio::sync::Semaphore::new(1)).try_acquire_owned().unwrap();
            let read = match begin(stream, permit).await {
                Ok(mut begun) => {
                    let mut all = String::new();
                    begun.read_to_string(&mut all).await.unwrap();
                    Some(all)
                }
                Err(_) => None,
            };
            assert_eq!(read.as_deref(), (text != "P").then_some(text));
        }
    }

    fn byte_by_byte(bytes: &'static [u8]) -> impl AsyncRead + Unpin {
        bytes.chunks(1).fold(Box::new(tokio::io::empty()) as Box<dyn AsyncRead + Unpin>, |before, byte| {
            Box::new(before.chain(byte))
        })
    }
}
