//! A connection to a pod for the fast path, which carries one request after another.

use std::future::poll_fn;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub struct RawConnection {
    stream: TcpStream,
    read: Vec<u8>,
    /// How much of `read` has been consumed.
    consumed: usize,
}

impl RawConnection {
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, read: Vec::new(), consumed: 0 }
    }

    /// Whether the connection is open, as far as is known without sending.
    pub fn is_open(&self) -> bool {
        matches!(self.stream.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Whether no unsolicited bytes have arrived.
    pub fn is_clean(&self) -> bool {
        self.read().is_empty()
    }

    pub async fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.write_all(request).await
    }

    /// Bytes that have arrived and are not consumed.
    pub fn read(&self) -> &[u8] {
        self.read.get(self.consumed..).unwrap_or_default()
    }

    pub fn consume(&mut self, count: usize) {
        self.consumed += count;
        if self.consumed >= self.read.len() {
            self.read.clear();
            self.consumed = 0;
        }
    }

    pub async fn read_more(&mut self) -> io::Result<usize> {
        read_some(&mut self.stream, &mut self.read).await
    }

    /// Reads more, into `room` bytes of spare capacity.
    pub async fn read_piece(&mut self, room: usize) -> io::Result<usize> {
        read_piece(&mut self.stream, &mut self.read, room).await
    }

    /// Releases memory that only a long response needed.
    pub fn shrink(&mut self) {
        if self.read.is_empty() && self.read.capacity() > 4096 {
            self.read = Vec::new();
        }
    }
}

/// Reads what is available through a buffer that all connections of a thread share: an idle connection needs none.
pub async fn read_some<S: AsyncRead + Unpin>(stream: &mut S, into: &mut Vec<u8>) -> io::Result<usize> {
    use std::cell::RefCell;
    use std::pin::Pin;
    use std::task::Poll;
    use tokio::io::ReadBuf;
    thread_local! {
        static SHARED: RefCell<Vec<u8>> = RefCell::new(vec![0; 16 * 1024]);
    }
    poll_fn(|context| {
        SHARED.with_borrow_mut(|shared| {
            let mut buffer = ReadBuf::new(shared);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) => {
                    into.extend_from_slice(buffer.filled());
                    Poll::Ready(Ok(buffer.filled().len()))
                }
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Pending => Poll::Pending,
            }
        })
    })
    .await
}

/// Reads directly into the buffer's spare capacity.
async fn read_piece<S: AsyncRead + Unpin>(stream: &mut S, into: &mut Vec<u8>, room: usize) -> io::Result<usize> {
    into.reserve(room);
    stream.read_buf(into).await
}
