//! The end of a tunnel on a node: opens the connections that the server asks for.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::{DIAL_TIMEOUT, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, MAX_STREAMS};

/// Decides which addresses servers reach through the tunnel.
pub trait Gate: Send + Sync + 'static {
    fn allows(&self, address: SocketAddr) -> impl Future<Output = bool> + Send;
}

/// Serves a connection to a server until it ends.
pub async fn serve(
    connection: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    gate: Arc<impl Gate>,
) -> Result<(), hyper::Error> {
    let service = service_fn(move |request| open(request, gate.clone()));
    Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .serve_connection(TokioIo::new(connection), service)
        .await
}

async fn open(request: Request<Incoming>, gate: Arc<impl Gate>) -> Result<Response<Full<Bytes>>, Infallible> {
    let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
    let address: SocketAddr = match authority.parse() {
        Ok(address) if request.method() == Method::CONNECT => address,
        _ => return Ok(respond(StatusCode::BAD_REQUEST, String::new())),
    };
    if !gate.allows(address).await {
        return Ok(respond(StatusCode::FORBIDDEN, String::new()));
    }
    let failed = |why: String| Ok(respond(StatusCode::BAD_GATEWAY, why));
    let stream = match timeout(DIAL_TIMEOUT, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return failed(format!("dial tcp {address}: {error}")),
        Err(_) => return failed(format!("dial tcp {address}: i/o timeout")),
    };
    if let Err(error) = stream.set_nodelay(true) {
        return failed(error.to_string());
    }
    knarr_supervisor::spawn(async move {
        match hyper::upgrade::on(request).await {
            // How a connection ends is between its two ends.
            Ok(server) => drop(knarr_relay::relay(TokioIo::new(server), stream).await),
            Err(error) => tracing::debug!(%address, %error, "a connection through the tunnel failed"),
        }
    });
    Ok(respond(StatusCode::OK, String::new()))
}

fn respond(status: StatusCode, message: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(message)));
    *response.status_mut() = status;
    response
}
