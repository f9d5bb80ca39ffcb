//! Listens for TLS connections, and authenticates the client certificate of each.

mod in_process;
#[cfg(test)]
mod tests;

pub use in_process::InProcess;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use hyper::body::Incoming;
use knarr_listen::{BoxError, Limits, Peer};
use rustls_pki_types::UnixTime;
use tokio::net::TcpListener;

use crate::authenticate::ClientConnection;
use crate::pki::Serving;
use crate::state::ApiServer;

/// How long requests may take to end once their connections are closed.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves connections until `stop` turns true, then lets running requests finish and has them recorded.
pub async fn serve(
    server: Arc<ApiServer>,
    listener: TcpListener,
    serving: Arc<Serving>,
    stop: tokio::sync::watch::Receiver<bool>,
) {
    serve_with_limits(server.clone(), listener, serving, stop, Limits::default()).await;
    finish(&server).await;
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

/// Waits for the end of requests whose connections are closed, and has the audit events of all requests written.
pub(crate) async fn finish(server: &ApiServer) {
    server.drain.finished(END_TIMEOUT).await;
    if let Some(audit) = server.telemetry.audit.get() {
        audit.close().await;
    }
}

/// The request type of in-process clients.
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;
