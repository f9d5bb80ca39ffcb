//! The body of a response.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use http_body::{Frame, SizeHint};

/// The body of a response. An error after the headers were sent can only end the body early.
pub enum Body {
    Empty,
    Chunks(VecDeque<Bytes>),
    /// Chunks that are encoded once the previous one is sent; `remaining` is the number of bytes to come.
    Lazy {
        chunks: Box<dyn Iterator<Item = Bytes> + Send>,
        remaining: usize,
    },
    Stream(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
}

impl Body {
    /// A body of these bytes.
    pub fn full(bytes: impl Into<Bytes>) -> Body {
        let bytes = bytes.into();
        if bytes.is_empty() { Body::Empty } else { Body::Chunks(VecDeque::from([bytes])) }
    }

    /// A body of a stream of chunks.
    pub fn stream(stream: impl Stream<Item = Bytes> + Send + 'static) -> Body {
        Body::Stream(Box::pin(stream))
    }

    /// The number of bytes to come, if it is known.
    pub fn length(&self) -> Option<usize> {
        match self {
            Body::Empty => Some(0),
            Body::Chunks(chunks) => Some(chunks.iter().map(Bytes::len).sum()),
            Body::Lazy { remaining, .. } => Some(*remaining),
            Body::Stream(_) => None,
        }
    }

    /// The whole body in one piece; `None` for a stream.
    pub fn gather(&mut self) -> Option<Vec<u8>> {
        if let Body::Lazy { chunks, .. } = self {
            *self = Body::Chunks(chunks.collect());
        }
        match self {
            Body::Empty => Some(Vec::new()),
            Body::Chunks(chunks) => Some(chunks.iter().flat_map(|chunk| chunk.iter().copied()).collect()),
            Body::Lazy { .. } | Body::Stream(_) => None,
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Body::Empty => Poll::Ready(None),
            Body::Chunks(chunks) => Poll::Ready(chunks.pop_front().map(|chunk| Ok(Frame::data(chunk)))),
            Body::Lazy { chunks, remaining } => Poll::Ready(chunks.next().map(|chunk| {
                *remaining = remaining.saturating_sub(chunk.len());
                Ok(Frame::data(chunk))
            })),
            Body::Stream(stream) => {
                stream.as_mut().poll_next(context).map(|next| next.map(|chunk| Ok(Frame::data(chunk))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Empty => true,
            Body::Chunks(chunks) => chunks.is_empty(),
            Body::Lazy { remaining, .. } => *remaining == 0,
            Body::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.length().map_or_else(SizeHint::default, |length| SizeHint::with_exact(length as u64))
    }
}
