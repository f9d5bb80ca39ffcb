//! The body of a response.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use http_body::{Frame, SizeHint};
use knarr_api::status::Status;

use super::held::Held;
use super::measured::Measured;
use super::produced::{Chunks, Produced};

/// Why a body ended early. The client notices: its stream is reset, or its connection closed.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the response was not read in time")]
    Timeout,
    #[error("the response cannot be encoded: {0}")]
    Encode(String),
}

/// The body of a response.
pub enum Body {
    Empty,
    Chunks(VecDeque<Bytes>),
    /// Chunks that cost little to encode, and are encoded once the previous one is sent.
    Lazy(Lazy),
    /// Chunks that encoder threads produce once the previous one is sent.
    Produced(Produced),
    Stream(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
    /// A body with what its request holds until it is sent.
    Held(Held),
    /// A body with the metrics of its request.
    Measured(Measured),
}

/// Chunks of a known total length.
pub struct Lazy {
    chunks: Box<dyn Iterator<Item = Bytes> + Send>,
    /// The number of bytes to come.
    remaining: usize,
    /// Whether other tasks get their turn before the next chunk: a connection that is read fast would go on for long.
    yields: bool,
}

impl Body {
    /// A body of these bytes.
    pub fn full(bytes: impl Into<Bytes>) -> Body {
        let bytes = bytes.into();
        if bytes.is_empty() { Body::Empty } else { Body::Chunks(VecDeque::from([bytes])) }
    }

    /// A body of chunks with a known total length.
    pub fn lazy(chunks: impl Iterator<Item = Bytes> + Send + 'static, length: usize) -> Body {
        Body::Lazy(Lazy { chunks: Box::new(chunks), remaining: length, yields: false })
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
            Body::Lazy(lazy) => Some(lazy.remaining),
            Body::Produced(produced) => produced.remaining(),
            Body::Stream(_) => None,
            Body::Held(held) => held.length(),
            Body::Measured(measured) => measured.length(),
        }
    }

    /// Whether the body is in memory already.
    pub fn is_encoded(&self) -> bool {
        matches!(self, Body::Empty | Body::Chunks(_))
    }

    /// The whole body in one piece, encoded now; `None` for a stream, or if it cannot be encoded.
    pub fn gather(&mut self) -> Option<Vec<u8>> {
        if !self.is_encoded() {
            let chunks: Result<VecDeque<Bytes>, Status> = match std::mem::replace(self, Body::Empty).into_chunks() {
                Ok(chunks) => chunks.collect(),
                Err(stream) => {
                    *self = stream;
                    return None;
                }
            };
            *self = Body::Chunks(chunks.ok()?);
        }
        match self {
            Body::Chunks(chunks) => Some(chunks.iter().flat_map(|chunk| chunk.iter().copied()).collect()),
            _ => Some(Vec::new()),
        }
    }

    /// The chunks of a body that needs nothing but time to be encoded; the body itself if it is a stream.
    pub fn into_chunks(self) -> Result<Box<dyn Chunks>, Body> {
        match self {
            Body::Empty => Ok(Box::new(std::iter::empty())),
            Body::Chunks(chunks) => Ok(Box::new(chunks.into_iter().map(Ok))),
            Body::Lazy(lazy) => Ok(Box::new(lazy.chunks.map(Ok))),
            Body::Produced(produced) => produced.into_chunks().map_err(Body::Produced),
            other => Err(other),
        }
    }
}

impl Lazy {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if std::mem::replace(&mut self.yields, true) && self.remaining > 0 {
            self.yields = false;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let chunk = self.chunks.next();
        self.remaining = self.remaining.saturating_sub(chunk.as_ref().map_or(0, Bytes::len));
        Poll::Ready(chunk)
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let data = |chunk: Option<Bytes>| chunk.map(|chunk| Ok(Frame::data(chunk)));
        match self.get_mut() {
            Body::Empty => Poll::Ready(None),
            Body::Chunks(chunks) => Poll::Ready(data(chunks.pop_front())),
            Body::Lazy(lazy) => lazy.poll(context).map(data),
            Body::Produced(produced) => produced.poll(context).map(|next| next.map(|next| next.map(Frame::data))),
            Body::Stream(stream) => stream.as_mut().poll_next(context).map(data),
            Body::Held(held) => held.poll(context),
            Body::Measured(measured) => measured.poll(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Empty => true,
            Body::Chunks(chunks) => chunks.is_empty(),
            Body::Lazy(lazy) => lazy.remaining == 0,
            Body::Produced(produced) => produced.remaining() == Some(0),
            Body::Stream(_) | Body::Held(_) | Body::Measured(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.length().map_or_else(SizeHint::default, |length| SizeHint::with_exact(length as u64))
    }
}
