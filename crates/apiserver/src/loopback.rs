//! The loopback client: requests of the server itself, handled like those of every client.

use std::sync::{Arc, OnceLock, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{Empty, Full};
use knarr_api::status::Status;
use serde_json::Value;
use tokio::sync::watch;

use crate::object_reader::ObjectReader;
use crate::provided::ProvidingServer;
use crate::request::{GROUP_MASTERS, Sender, User};
use crate::response::Body;
use crate::state::ApiServer;

/// The server that a component is part of, once it is built: for components that send requests of their own.
#[derive(Clone, Default)]
pub struct OwnServer(Arc<OnceLock<Weak<ApiServer>>>);

impl OwnServer {
    pub fn set(&self, server: &Arc<ApiServer>) {
        // A component is part of one server.
        let _ = self.0.set(Arc::downgrade(server));
    }

    pub fn get(&self) -> Option<Arc<ApiServer>> {
        self.0.get().and_then(Weak::upgrade)
    }
}

#[async_trait]
impl ProvidingServer for ApiServer {
    fn objects(&self) -> &dyn ObjectReader {
        &*self.backend.objects
    }

    fn stopping(&self) -> watch::Receiver<bool> {
        self.backend.stopping.clone()
    }

    async fn send(self: Arc<Self>, request: Request<Empty<Bytes>>, user: User) -> Response<Body> {
        self.handle(request, &Sender::Trusted(Arc::new(user))).await
    }
}

/// The path of an object.
pub struct ObjectPath<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub plural: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
}

/// Sends an object, or a patch of one. A conflict with an existing object is no failure.
pub async fn send(server: &Arc<ApiServer>, method: Method, at: &ObjectPath<'_>, object: &Value) -> Result<(), Status> {
    let mut path = if at.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", at.group) };
    path.push_str(&format!("/{}", at.version));
    if !at.namespace.is_empty() {
        path.push_str(&format!("/namespaces/{}", at.namespace));
    }
    path.push_str(&format!("/{}", at.plural));
    if method != Method::POST {
        path.push_str(&format!("/{}", at.name));
    }
    let media_type = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let body = serde_json::to_vec(object).map_err(Status::internal)?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", media_type)
        .header("user-agent", "kube-apiserver")
        .body(Full::new(Bytes::from(body)))
        .map_err(Status::internal)?;
    let sender = Sender::Trusted(Arc::new(User::named("system:apiserver", &[GROUP_MASTERS])));
    let mut response = server.handle(request, &sender).await;
    let code = response.status().as_u16();
    if response.status().is_success() || code == 409 {
        return Ok(());
    }
    let body = response.body_mut().gather().unwrap_or_default();
    Err(Status::new(code, "", message(&body)))
}

/// The message of a Status.
fn message(body: &[u8]) -> String {
    let status = serde_json::from_slice::<Value>(body).unwrap_or_default();
    status["message"].as_str().map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned)
}
