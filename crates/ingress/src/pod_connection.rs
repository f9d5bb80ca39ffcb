//! An HTTP/1 connection to a pod, for one request at a time.
//!
//! The task that serves the client also drives this connection: a request then wakes no other task, in either direction.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::backends::Pod;
use crate::payload::Payload;

pub struct PodConnection {
    sender: http1::SendRequest<Payload>,
    /// Moves bytes in both directions when polled; completes when the pod or hyper closes.
    connection: Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>,
}

impl PodConnection {
    pub async fn new(stream: TcpStream) -> hyper::Result<Self> {
        let (sender, connection) = http1::Builder::new().handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, connection: Box::pin(connection.with_upgrades()) })
    }

    /// Whether the connection is open, as far as is known without sending.
    pub fn is_open(&mut self) -> bool {
        let mut nobody = Context::from_waker(Waker::noop());
        self.connection.as_mut().poll(&mut nobody).is_pending() && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of its response. Returns the connection unless it closed.
    pub async fn exchange(
        mut self,
        request: Request<Payload>,
    ) -> Result<(Response<Incoming>, Option<PodConnection>), TrySendError<Request<Payload>>> {
        let mut is_ended = false;
        let response = {
            let mut response = pin!(self.sender.try_send_request(request));
            let connection = &mut self.connection;
            poll_fn(|context| {
                is_ended = is_ended || connection.as_mut().poll(context).is_ready();
                // Only the poll above can have produced the response, so no waker is needed.
                response.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            })
            .await?
        };
        Ok((response, (!is_ended).then_some(self)))
    }

    /// Drives the connection in its own task, once it no longer speaks HTTP.
    pub fn detach(self) {
        knarr_supervisor::spawn(async move {
            if let Err(error) = self.connection.await {
                tracing::trace!(%error, "a connection to a pod closed");
            }
        });
    }
}

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
                    let is_ended = line.connection.as_mut().poll(context).is_ready();
                    if is_ended {
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
