//! The body of a response while it is sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Response};
use http_body::{Body, Frame, SizeHint};

use crate::activity::ActiveRequest;

/// Keeps its request counted as active until it is sent. A response to HEAD has the head of GET and no body, which HTTP/2
/// clients would treat as a stream error.
pub struct ResponseBody<B> {
    body: Option<B>,
    _active: ActiveRequest,
}

impl<B: Body<Data = Bytes>> ResponseBody<B> {
    /// Wraps the body of a response to `method`.
    pub fn wrap(method: &Method, response: Response<B>, active: ActiveRequest) -> Response<Self> {
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
        Response::from_parts(head, ResponseBody { body, _active: active })
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for ResponseBody<B> {
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
