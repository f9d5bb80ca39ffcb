//! An HTTP/1 connection to a pod, for one request at a time.
//!
//! The task that serves the client also drives this connection: a request then wakes no other task, in either direction.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

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
        !self.drive(&mut nobody) && self.sender.is_ready()
    }

    /// Moves bytes in both directions. Returns whether the connection has closed.
    pub fn drive(&mut self, context: &mut Context<'_>) -> bool {
        self.connection.as_mut().poll(context).is_ready()
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
