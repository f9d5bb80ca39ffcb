//! Accepts the tunnels of nodes: connections that nodes open, over which this server reaches their kubelets and pods.
//!
//! A tunnel ends when the certificate that opened it expires. The node opens another one with its next certificate before that.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use knarr_api::status::Status;
use rustls_pki_types::UnixTime;

use crate::authenticate::ClientConnection;
use crate::authorized_request::AuthorizedRequest;
use crate::request::User;
use crate::response::Body;
use crate::state::ApiServer;

const NODE_USER: &str = "system:node:";
const NODE_GROUP: &str = "system:nodes";
/// How often the clock is read while a certificate is valid.
const CLOCK_INTERVAL: Duration = Duration::from_secs(60);

/// Makes the connection of a request the tunnel of the node that sent it.
pub fn accept(server: &Arc<ApiServer>, request: &mut AuthorizedRequest<'_>) -> Result<Response<Body>, Status> {
    let node = node_of(request.user).ok_or_else(|| Status::bad_request("only a node can open a tunnel"))?.to_owned();
    let client = request.parts.extensions.get::<Arc<ClientConnection>>().filter(|client| client.has_certificate());
    let client = client.cloned().ok_or_else(|| Status::bad_request("a tunnel is opened with a client certificate"))?;
    let is_tunnel = request.parts.headers.get(UPGRADE).is_some_and(|value| value == knarr_tunnel::PROTOCOL);
    let upgrade = request.parts.extensions.remove::<hyper::upgrade::OnUpgrade>().filter(|_| is_tunnel);
    let upgrade = upgrade.ok_or_else(|| Status::bad_request("the connection must be upgraded to knarr-tunnel"))?;
    let tunnels = server.kubelets.tunnels.clone();
    let mut stopping = server.stopping.clone();
    knarr_supervisor::spawn(async move {
        match upgrade.await {
            Ok(connection) => tokio::select! {
                () = tunnels.run(&node, TokioIo::new(connection), expired(client, UnixTime::now)) => {}
                // Nodes open another one where they are served.
                _ = stopping.wait_for(|stopping| *stopping) => {}
            },
            Err(error) => tracing::debug!(%error, "cannot upgrade the connection of a tunnel"),
        }
    });
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static(knarr_tunnel::PROTOCOL));
    Ok(response)
}

/// Waits until the certificate of a connection is no longer accepted.
async fn expired(client: Arc<ClientConnection>, now: impl Fn() -> UnixTime) {
    while let Some(left) = client.valid_for(now()) {
        // The clock may be set meanwhile.
        tokio::time::sleep(left.min(CLOCK_INTERVAL)).await;
    }
}

/// The node that a user is.
fn node_of(user: &User) -> Option<&str> {
    let is_node = user.groups.iter().any(|group| group == NODE_GROUP);
    user.name.strip_prefix(NODE_USER).filter(|name| is_node && !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_belongs_to_the_node_that_opened_it() {
        for (name, group, node) in [
            ("system:node:a", "system:nodes", Some("a")),
            ("system:node:a", "system:masters", None),
            ("system:node:", "system:nodes", None),
            ("kubernetes-admin", "system:masters", None),
            ("knarr:node-network:a", "system:nodes", None),
        ] {
            assert_eq!(node_of(&User::named(name, &[group])), node, "{name} {group}");
        }
    }
}
