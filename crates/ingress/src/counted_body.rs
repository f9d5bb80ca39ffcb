//! A response body that counts as a request in flight until it has been sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};

use crate::activity::InFlight;

pub struct CountedBody<B> {
    body: B,
    _under_way: InFlight,
}

impl<B> CountedBody<B> {
    pub fn new(body: B, in_flight: InFlight) -> Self {
        Self { body, _under_way: in_flight }
    }
}

impl<B: Body + Unpin> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
