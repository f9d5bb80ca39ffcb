//! The body of a pod's response on its way to the client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::backends::Pod;
use crate::pod_connection::PodConnection;

/// A response body that is forwarded. At its end, the connection returns to the pool.
pub struct ForwardedBody {
    body: Incoming,
    line: Option<(PodConnection, Arc<Pod>)>,
}

impl ForwardedBody {
    pub fn new(body: Incoming, line: Option<(PodConnection, Arc<Pod>)>) -> Self {
        let mut through = Self { body, line };
        if through.body.is_end_stream() {
            through.give_back();
        }
        through
    }

    fn give_back(&mut self) {
        if let Some((mut line, pod)) = self.line.take()
            && line.is_open()
        {
            pod.keep(line);
        }
    }
}

impl Body for ForwardedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let through = &mut *self;
        let frame = match &mut through.line {
            None => Pin::new(&mut through.body).poll_frame(context),
            Some((line, _)) => {
                // Only this connection produces data, and it is driven right here.
                let mut nobody = Context::from_waker(Waker::noop());
                let mut frame = Pin::new(&mut through.body).poll_frame(&mut nobody);
                if frame.is_pending() {
                    if line.drive(context) {
                        through.line = None;
                    }
                    frame = Pin::new(&mut through.body).poll_frame(context);
                }
                frame
            }
        };
        let is_over = match &frame {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(_))) => through.body.is_end_stream(),
            _ => false,
        };
        if is_over {
            through.give_back();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
