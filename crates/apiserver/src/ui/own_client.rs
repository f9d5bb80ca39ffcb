//! Requests that the server sends to itself as a user, through the same checks as all others.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use knarr_api::status::Status;

use crate::request::{Sender, User};
use crate::state::ApiServer;

pub struct Client<'a> {
    server: &'a Arc<ApiServer>,
    sender: Sender,
}

impl<'a> Client<'a> {
    pub fn new(server: &'a Arc<ApiServer>, user: &User) -> Client<'a> {
        Client { server, sender: Sender::Trusted(Arc::new(user.clone())) }
    }

    /// The body of a response to GET.
    pub async fn get(&self, path: &str) -> Result<Bytes, Status> {
        let request = Request::get(path).body(Empty::<Bytes>::new()).map_err(Status::internal)?;
        // The request passes the whole pipeline again, so its future is boxed.
        let response = Box::pin(self.server.handle(request, &self.sender)).await;
        let code = response.status();
        let body = response.into_body().collect().await.map_err(Status::internal)?.to_bytes();
        if code.is_success() { Ok(body) } else { Err(Status::new(code.as_u16(), "", String::from_utf8_lossy(&body))) }
    }
}
