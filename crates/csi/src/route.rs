//! A request on its way to the method of a service.

use std::future::Future;
use std::pin::Pin;

use http::{Request, Response};
use hyper::body::Incoming;
use tonic::Status;
use tonic::server::{Grpc, UnaryService};
use tonic_prost::ProstCodec;

pub(crate) type Reply = Response<tonic::body::Body>;
/// A call on its way to its handler.
pub(crate) type Routed = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// A request on the way to its method.
pub(crate) struct Route {
    pub(crate) method: String,
    pub(crate) request: Request<Incoming>,
}

impl Route {
    pub(crate) async fn unary<Q, A, H, F>(self, method: &'static str, handler: H) -> Reply
    where
        Q: prost::Message + Default + std::fmt::Debug + 'static,
        A: prost::Message + Default + 'static,
        H: FnOnce(Q) -> F + Send + 'static,
        F: Future<Output = Result<A, Status>> + Send + 'static,
    {
        let service = Unary { method, handler: Some(handler) };
        Grpc::new(ProstCodec::<A, Q>::default()).unary(service, self.request).await
    }
}

struct Unary<H> {
    method: &'static str,
    handler: Option<H>,
}

impl<Q, A, H, F> UnaryService<Q> for Unary<H>
where
    Q: prost::Message + Default + std::fmt::Debug + 'static,
    A: prost::Message + Default + 'static,
    H: FnOnce(Q) -> F + Send + 'static,
    F: Future<Output = Result<A, Status>> + Send + 'static,
{
    type Response = A;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<A>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        let method = self.method;
        let Some(handler) = self.handler.take() else {
            return Box::pin(async { Err(Status::internal("the handler was called twice")) });
        };
        let request = request.into_inner();
        tracing::debug!(method, ?request, "CSI request");
        // In a task of its own: a client that hangs up must not stop an operation half way, and a panic is an error.
        let task = tokio::spawn(handler(request));
        Box::pin(async move {
            let result = task.await.unwrap_or_else(|error| Err(Status::internal(format!("{method} failed: {error}"))));
            if let Err(status) = &result {
                tracing::debug!(method, code = ?status.code(), message = status.message(), "CSI request failed");
            }
            result.map(tonic::Response::new)
        })
    }
}
