//! Joins two connections, so that what comes from one goes to the other.
//!
//! Nothing that was received is lost, however the sender ends: tokio's own joining drops what it holds when a connection
//! is closed without the farewell of TLS or is reset, and the last lines of a command's output are gone.

use std::io::{self, ErrorKind};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};

const BUFFER: usize = 16 << 10;

/// Runs until both ends have nothing more to say, or one of them is broken.
pub async fn relay<A, B>(one: A, other: B) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let (one_read, one_write) = split(one);
    let (other_read, other_write) = split(other);
    tokio::try_join!(one_way(one_read, other_write), one_way(other_read, one_write)).map(drop)
}

async fn one_way(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    let ended = loop {
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
    // A receiver that is gone needs no farewell, and what it still said is read by the other way.
    let _ = to.shutdown().await;
    ended
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
    async fn what_was_said_before_an_end_arrives_however_it_ends() {
        for (kind, is_an_end) in [(ErrorKind::UnexpectedEof, true), (ErrorKind::ConnectionReset, false)] {
            let (mut sender, ours) = duplex(1 << 20);
            let (mut receiver, theirs) = duplex(64);
            let joined = tokio::spawn(relay(Broken(ours, kind), theirs));
            let said: Vec<u8> = (0..300_000).map(|at| at as u8).collect();
            sender.write_all(&said).await.expect("room for all");
            drop(sender);
            let mut heard = Vec::new();
            receiver.read_to_end(&mut heard).await.expect("an end");
            assert!(heard == said, "{kind}: {} of {} bytes", heard.len(), said.len());
            drop(receiver);
            assert_eq!(joined.await.expect("it ends").is_ok(), is_an_end, "{kind}");
        }
    }

    #[tokio::test]
    async fn an_end_of_one_way_leaves_the_other_open() {
        let (mut client, ours) = duplex(64);
        let (mut server, theirs) = duplex(64);
        let joined = tokio::spawn(relay(ours, theirs));
        client.write_all(b"question").await.expect("written");
        client.shutdown().await.expect("ended");
        let mut heard = String::new();
        server.read_to_string(&mut heard).await.expect("an end");
        server.write_all(b"answer").await.expect("written");
        drop(server);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("an end");
        assert_eq!((heard.as_str(), answer.as_str()), ("question", "answer"));
        joined.await.expect("it ends").expect("well");
    }
}
