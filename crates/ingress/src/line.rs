//! An HTTP/1 connection to a pod, for one request at a time.
//!
//! The task that serves the client also drives the connection to the pod: a request then needs no other task to be woken,
//! neither for what goes there nor for what comes back.

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
use crate::proxy::Payload;

pub struct Line {
    sender: http1::SendRequest<Payload>,
    /// Moves bytes in both directions when polled; ends when the pod or hyper closes.
    connection: Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>,
}

impl Line {
    pub async fn new(stream: TcpStream) -> hyper::Result<Self> {
        let (sender, connection) = http1::Builder::new().handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, connection: Box::pin(connection.with_upgrades()) })
    }

    /// Whether the pod still listens, as far as is known without asking it.
    pub fn is_open(&mut self) -> bool {
        let mut nobody = Context::from_waker(Waker::noop());
        self.connection.as_mut().poll(&mut nobody).is_pending() && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of its answer. The line is given back unless it has ended.
    pub async fn exchange(
        mut self,
        request: Request<Payload>,
    ) -> Result<(Response<Incoming>, Option<Line>), TrySendError<Request<Payload>>> {
        let mut is_ended = false;
        let answer = {
            let mut answer = pin!(self.sender.try_send_request(request));
            let connection = &mut self.connection;
            poll_fn(|context| {
                is_ended = is_ended || connection.as_mut().poll(context).is_ready();
                // Only what was just done can have brought the answer, so it need not wake anybody.
                answer.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            })
            .await?
        };
        Ok((answer, (!is_ended).then_some(self)))
    }

    /// Goes on by itself, once it no longer speaks HTTP.
    pub fn let_go(self) {
        tokio::spawn(async move {
            if let Err(error) = self.connection.await {
                tracing::trace!(%error, "a connection to a pod ended");
            }
        });
    }
}

/// An answer's body on its way through. When it has passed, the line is free for the next request.
pub struct Through {
    body: Incoming,
    line: Option<(Line, Arc<Pod>)>,
}

impl Through {
    pub fn new(body: Incoming, line: Option<(Line, Arc<Pod>)>) -> Self {
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

impl Body for Through {
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
                // Only the line brings more, and it is driven right here.
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
