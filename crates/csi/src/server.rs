//! The server: the services of a driver or a plugin's registration on a unix socket.

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tonic::Status;

use crate::connection::UnixConnection;
use crate::route::{Reply, Route};
use crate::services::{
    Controller, Identity, Node, Registration, route_controller, route_identity, route_node, route_registration,
};

/// The services on one socket. Calls of services that are not there respond `Unimplemented`.
#[derive(Clone, Default)]
pub struct Server {
    identity: Option<Arc<dyn Identity>>,
    controller: Option<Arc<dyn Controller>>,
    node: Option<Arc<dyn Node>>,
    registration: Option<Arc<dyn Registration>>,
}

impl Server {
    /// A server without services.
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves Identity.
    #[must_use]
    pub fn identity(mut self, service: Arc<dyn Identity>) -> Self {
        self.identity = Some(service);
        self
    }

    /// Serves Controller.
    #[must_use]
    pub fn controller(mut self, service: Arc<dyn Controller>) -> Self {
        self.controller = Some(service);
        self
    }

    /// Serves Node.
    #[must_use]
    pub fn node(mut self, service: Arc<dyn Node>) -> Self {
        self.node = Some(service);
        self
    }

    /// Serves the plugin registration.
    #[must_use]
    pub fn registration(mut self, service: Arc<dyn Registration>) -> Self {
        self.registration = Some(service);
        self
    }

    /// Serves until the future is dropped. Calls that have started run to their end even then.
    pub async fn serve(self, listener: UnixListener) -> io::Result<()> {
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let (stream, _) = tokio::select! {
                accepted = listener.accept() => accepted?,
                Some(_) = connections.join_next() => continue,
            };
            connections.spawn(self.clone().serve_connection(stream));
        }
    }

    /// Serves one connection until it ends.
    pub(crate) async fn serve_connection(self, stream: UnixStream) {
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let server = self.clone();
            async move { Ok::<_, Infallible>(server.respond(request).await) }
        });
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(UnixConnection::new(stream)), service);
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to the CSI socket broke");
        }
    }

    async fn respond(self, request: Request<Incoming>) -> Reply {
        let method = request.uri().path().to_string();
        let service = method.split('/').nth(1).unwrap_or_default();
        let route = Route { method: method.clone(), request };
        let routed = match service {
            "csi.v1.Identity" => self.identity.and_then(|service| route_identity(service, route)),
            "csi.v1.Controller" => self.controller.and_then(|service| route_controller(service, route)),
            "csi.v1.Node" => self.node.and_then(|service| route_node(service, route)),
            "pluginregistration.Registration" => {
                self.registration.and_then(|service| route_registration(service, route))
            }
            _ => None,
        };
        match routed {
            Some(reply) => reply.await,
            None => Status::unimplemented(format!("unknown method {method}")).into_http(),
        }
    }
}

/// Listens on a socket that only root may use. Replaces the socket of a process that was killed.
pub fn listen(socket: &Path) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(socket) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(socket)?,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists and is not a socket")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}
