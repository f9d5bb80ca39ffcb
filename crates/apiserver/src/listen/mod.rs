//! Listens for TLS connections, and authenticates the client certificate of each.

mod in_process;
#[cfg(test)]
mod tests;

pub use in_process::InProcess;

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use hyper::body::Incoming;
use knarr_listen::{BoxError, Limits, Peer};
use rustls_pki_types::UnixTime;
use tokio::net::TcpListener;

use crate::authenticate::ClientConnection;
use crate::pki::Serving;
use crate::state::ApiServer;

/// Serves connections until `stop` turns true, then lets running requests finish.
pub async fn serve(
    server: Arc<ApiServer>,
    listener: TcpListener,
    serving: Arc<Serving>,
    stop: tokio::sync::watch::Receiver<bool>,
) {
    serve_with_limits(server, listener, serving, stop, Limits::default()).await;
}

async fn serve_with_limits(
    server: Arc<ApiServer>,
    listener: TcpListener,
    serving: Arc<Serving>,
    stop: tokio::sync::watch::Receiver<bool>,
    limits: Limits,
) {
    let tls = serving.config();
    let connected = move |peer: Peer<'_>| {
        let connected = Arc::new(ClientConnection::new(serving.clients(), peer.certificates, UnixTime::now()));
        let server = server.clone();
        move |mut request: Request<Incoming>| {
            let (server, sender) = (server.clone(), connected.sender(UnixTime::now()));
            request.extensions_mut().insert(connected.clone());
            async move { server.handle(request, &sender).await }
        }
    };
    knarr_listen::serve(listener, tls, limits, stop, connected).await;
}

/// The request type of in-process clients.
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;
