//! Requests of components in this process, without a network connection.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use tower_service::Service;

use crate::request::{Sender, User};
use crate::response::Body;
use crate::state::ApiServer;

/// A `tower` service that handles requests of one trusted user.
#[derive(Clone)]
pub struct InProcess {
    server: Arc<ApiServer>,
    sender: Sender,
}

impl InProcess {
    /// A client of the server as a trusted user.
    pub fn new(server: Arc<ApiServer>, user: User) -> InProcess {
        InProcess { server, sender: Sender::Trusted(Arc::new(user)) }
    }
}

impl<B> Service<Request<B>> for InProcess
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (server, sender) = (self.server.clone(), self.sender.clone());
        Box::pin(async move { Ok(server.handle(request, &sender).await) })
    }
}
