//! Copies data between two connections in both directions.
//!
//! All received data is delivered, however the sender closes: `tokio::io::copy_bidirectional` drops its buffer when a
//! connection is reset or closed without a TLS close notification, which loses the last lines of a command's output.

use std::io::{self, ErrorKind};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};

const BUFFER_BYTES: usize = 16 << 10;

/// Copies until both sides have closed their sending direction, or one of them fails.
pub async fn relay<A, B>(one: A, other: B) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let (one_read, one_write) = split(one);
    let (other_read, other_write) = split(other);
    tokio::try_join!(copy_one_way(one_read, other_write), copy_one_way(other_read, one_write)).map(drop)
}

async fn copy_one_way(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let result = loop {
        match from.read(&mut buffer).await {
            Ok(0) => break Ok(()),
            Ok(count) => {
                to.write_all(&buffer[..count]).await?;
                to.flush().await?;
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    // Fails only when the receiver is gone; the other direction reads what it still sent.
    let _ = to.shutdown().await;
    result
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::{DuplexStream, ReadBuf, duplex};

    use super::*;

    /// A connection that ends with an error after what was sent over it.
    struct Broken(DuplexStream, ErrorKind);

    impl AsyncRead for Broken {
        fn poll_read(mut self: Pin<&mut Self>, context: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
            let before = buffer.filled().len();
            match Pin::new(&mut self.0).poll_read(context, buffer) {
                Poll::Ready(Ok(())) if buffer.filled().len() == before => Poll::Ready(Err(self.1.into())),
                polled => polled,
            }
        }
    }

    impl AsyncWrite for Broken {
        fn poll_write(mut self: Pin<&mut Self>, context: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(context)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(context)
        }
    }

    #[tokio::test]
    async fn data_sent_before_the_close_arrives_however_it_closes() {
        for (kind, is_clean) in [(ErrorKind::UnexpectedEof, true), (ErrorKind::ConnectionReset, false)] {
            let (mut sender, ours) = duplex(1 << 20);
            let (mut receiver, theirs) = duplex(64);
            let joined = tokio::spawn(relay(Broken(ours, kind), theirs));
            let sent: Vec<u8> = (0..300_000).map(|at| at as u8).collect();
            sender.write_all(&sent).await.expect("room for all");
            drop(sender);
            let mut received = Vec::new();
            receiver.read_to_end(&mut received).await.expect("end of stream");
            assert!(received == sent, "{kind}: {} of {} bytes", received.len(), sent.len());
            drop(receiver);
            assert_eq!(joined.await.expect("finished").is_ok(), is_clean, "{kind}");
        }
    }

    #[tokio::test]
    async fn closing_one_direction_leaves_the_other_open() {
        let (mut client, ours) = duplex(64);
        let (mut server, theirs) = duplex(64);
        let joined = tokio::spawn(relay(ours, theirs));
        client.write_all(b"request").await.expect("written");
        client.shutdown().await.expect("ended");
        let mut received = String::new();
        server.read_to_string(&mut received).await.expect("end of stream");
        server.write_all(b"response").await.expect("written");
        drop(server);
        let mut response = String::new();
        client.read_to_string(&mut response).await.expect("end of stream");
        assert_eq!((received.as_str(), response.as_str()), ("request", "response"));
        joined.await.expect("finished").expect("no error");
    }
}
