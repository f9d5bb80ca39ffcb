//! The body of an answer, as it goes out.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Response};
use http_body::{Body, Frame, SizeHint};

use crate::activity::Running;

/// Keeps the request that it answers counted until it is sent. The answer to HEAD is none: it has the head that GET
/// would have, and HTTP/2 clients take a body for an error of the stream.
pub struct Answer<B> {
    body: Option<B>,
    _running: Running,
}

impl<B: Body<Data = Bytes>> Answer<B> {
    pub fn to(method: &Method, response: Response<B>, running: Running) -> Response<Self> {
        let (mut head, body) = response.into_parts();
        let mut body = Some(body);
        if *method == Method::HEAD {
            let length = body.take().and_then(|body| body.size_hint().exact());
            if let Some(length) = length
                && !head.headers.contains_key(TRANSFER_ENCODING)
            {
                head.headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
            }
        }
        Response::from_parts(head, Answer { body, _running: running })
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Answer<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
