//! Bodies that cost time to encode. Encoder threads do it, one chunk at a time, so that no other request waits for it, and
//! only when the previous chunk was sent, so that a slow reader holds one chunk in memory.

use std::task::{Context, Poll};

use bytes::Bytes;
use futures::FutureExt;
use knarr_api::status::Status;
use tokio::sync::oneshot;

use super::body::BodyError;
use super::encoder_pool;

/// Chunks that are encoded one after another.
pub trait Chunks: Iterator<Item = Result<Bytes, Status>> + Send {}

impl<T: Iterator<Item = Result<Bytes, Status>> + Send> Chunks for T {}

type Produce = (Option<Result<Bytes, Status>>, Box<dyn Chunks>);

pub struct Produced {
    /// A chunk that was encoded before the response started.
    first: Option<Bytes>,
    state: State,
    remaining: Option<usize>,
}

enum State {
    Idle(Box<dyn Chunks>),
    Encoding(oneshot::Receiver<Produce>),
    Done,
}

impl Produced {
    /// Encodes the first chunk, so that a failure can still become a response of its own.
    pub async fn start(chunks: impl Chunks + 'static, length: Option<usize>) -> Result<Produced, Status> {
        let (first, chunks) = produce(Box::new(chunks)).await.map_err(|_| Status::internal("the encoder failed"))?;
        let first = first.transpose()?;
        Ok(Produced { first, state: State::Idle(chunks), remaining: length })
    }

    /// Encodes every chunk when it is sent.
    pub fn new(chunks: impl Chunks + 'static) -> Produced {
        Produced { first: None, state: State::Idle(Box::new(chunks)), remaining: None }
    }

    /// The number of bytes to come, if it is known.
    pub fn remaining(&self) -> Option<usize> {
        self.remaining
    }

    pub fn into_chunks(self) -> Result<Box<dyn Chunks>, Produced> {
        match self.state {
            State::Idle(chunks) => Ok(Box::new(self.first.map(Ok).into_iter().chain(chunks))),
            state => Err(Produced { state, ..self }),
        }
    }

    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        if let Some(first) = self.first.take() {
            self.count(&first);
            return Poll::Ready(Some(Ok(first)));
        }
        loop {
            match std::mem::replace(&mut self.state, State::Done) {
                State::Idle(chunks) => self.state = State::Encoding(produce(chunks)),
                State::Encoding(mut encoding) => {
                    let produced = match encoding.poll_unpin(context) {
                        Poll::Pending => {
                            self.state = State::Encoding(encoding);
                            return Poll::Pending;
                        }
                        Poll::Ready(produced) => produced,
                    };
                    return Poll::Ready(match produced {
                        Ok((Some(Ok(chunk)), chunks)) => {
                            self.state = State::Idle(chunks);
                            self.count(&chunk);
                            Some(Ok(chunk))
                        }
                        Ok((None, _)) => None,
                        Ok((Some(Err(status)), _)) => Some(Err(BodyError::Encode(status.message))),
                        Err(_) => Some(Err(BodyError::Encode("the encoder failed".to_owned()))),
                    });
                }
                State::Done => return Poll::Ready(None),
            }
        }
    }

    fn count(&mut self, chunk: &Bytes) {
        self.remaining = self.remaining.map(|remaining| remaining.saturating_sub(chunk.len()));
    }
}

fn produce(mut chunks: Box<dyn Chunks>) -> oneshot::Receiver<Produce> {
    encoder_pool::run(move || {
        let next = chunks.next();
        (next, chunks)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::Body;
    use http_body_util::BodyExt;

    fn numbered(count: usize, then: Option<Status>) -> impl Chunks + 'static {
        let chunks = (0..count).map(|at| Ok(Bytes::from(format!("{at},"))));
        chunks.chain(then.map(Err))
    }

    #[tokio::test]
    async fn chunks_arrive_in_order() {
        let produced = Produced::start(numbered(100, None), None).await.unwrap();
        let body = Body::Produced(produced).collect().await.unwrap().to_bytes();
        let expected: String = (0..100).map(|at| format!("{at},")).collect();
        assert_eq!(body, expected);
    }

    #[tokio::test]
    async fn a_failure_at_the_start_is_a_response_and_a_later_one_ends_the_body() {
        let failed = Produced::start(numbered(0, Some(Status::internal("broken"))), None).await;
        assert_eq!(failed.err().map(|status| status.code), Some(500));
        let produced = Produced::start(numbered(3, Some(Status::internal("broken"))), None).await.unwrap();
        let failed = Body::Produced(produced).collect().await;
        assert!(matches!(failed, Err(BodyError::Encode(_))));
    }

    #[tokio::test]
    async fn an_encoder_that_panics_ends_the_body() {
        let chunks = std::iter::from_fn(|| panic!("as the test wants"));
        let failed = Body::Produced(Produced::new(chunks)).collect().await;
        assert!(matches!(failed, Err(BodyError::Encode(_))));
        assert!(Produced::start(numbered(1, None), None).await.is_ok(), "other threads go on");
    }
}
