//! A body that takes time to be sent, with the metrics of its request, which end with it.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body as _, Frame};

use super::body::{Body, BodyError};
use crate::request_metrics::InFlightRequest;

pub struct Measured {
    body: Box<Body>,
    sent: usize,
    /// Its request and the code of the response, until it is finished.
    request: Option<(InFlightRequest, u16)>,
}

/// Finishes the metrics of a request when its response is sent: now if it is in memory.
pub fn measure(response: Response<Body>, request: InFlightRequest) -> Response<Body> {
    let code = response.status().as_u16();
    if response.body().is_encoded() {
        let length = response.body().length();
        request.finish(code, length);
        return response;
    }
    response.map(|body| Body::Measured(Measured { body: Box::new(body), sent: 0, request: Some((request, code)) }))
}

impl Measured {
    pub fn length(&self) -> Option<usize> {
        self.body.length()
    }

    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let next = std::pin::Pin::new(&mut *self.body).poll_frame(context);
        match &next {
            Poll::Ready(Some(Ok(frame))) => self.sent += frame.data_ref().map_or(0, Bytes::len),
            Poll::Ready(_) => self.finish(),
            Poll::Pending => {}
        }
        next
    }

    fn finish(&mut self) {
        if let Some((request, code)) = self.request.take() {
            request.finish(code, Some(self.sent));
        }
    }
}

impl Drop for Measured {
    /// A client that goes away before the end has been served until then.
    fn drop(&mut self) {
        self.finish();
    }
}
