//! A connection that fails when a future resolves. All streams through it fail then, whereas a graceful close would wait until
//! they have finished.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub struct TimedConnection<S> {
    stream: S,
    /// `None` once the future has resolved.
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<S: Unpin> TimedConnection<S> {
    pub fn new(stream: S, end: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { stream, end: Some(Box::pin(end)) }
    }

    /// The stream; an error once the future has resolved.
    fn stream(&mut self, context: &mut Context<'_>) -> io::Result<Pin<&mut S>> {
        if self.end.as_mut().is_some_and(|end| end.as_mut().poll(context).is_ready()) {
            self.end = None;
        }
        match self.end {
            Some(_) => Ok(Pin::new(&mut self.stream)),
            None => Err(io::Error::new(io::ErrorKind::TimedOut, "the time of the connection is over")),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedConnection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream(context)?.poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedConnection<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream(context)?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream(context)?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
