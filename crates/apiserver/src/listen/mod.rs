//! Connections: TLS, HTTP/1.1 and HTTP/2, and who is at the other end.

#[cfg(test)]
mod abuse;
mod preface;
mod service;

pub use service::InProcess;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::authenticate::{is_front_proxy, user_of_certificate};
use crate::request::User;
use crate::server::{Sender, Server};

/// How long a client may take before it is no longer served.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For the TLS handshake.
    pub handshake: Duration,
    /// For the head of a request, the first one of a connection included.
    pub head: Duration,
    /// A connection whose other end does not answer a ping is half open and is closed. So often it is asked,
    pub ping_interval: Duration,
    /// and so long it may take to answer.
    pub ping: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(30),
            ping_interval: Duration::from_secs(30),
            ping: Duration::from_secs(15),
        }
    }
}

/// How many requests one connection may have open, watches included.
const STREAMS: u32 = 250;
/// How long requests may finish when the server stops.
const GOODBYE_TIME: Duration = Duration::from_secs(10);
/// The head of a request may be this large, and have this many fields.
const HEAD_BYTES: usize = 256 * 1024;
const HEAD_FIELDS: usize = 512;

/// Serves connections until `stop` turns true, then lets running requests finish.
pub async fn serve(
    server: Arc<Server>,
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    stop: tokio::sync::watch::Receiver<bool>,
) {
    serve_patiently(server, listener, tls, stop, Patience::default()).await;
}

async fn serve_patiently(
    server: Arc<Server>,
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    mut stop: tokio::sync::watch::Receiver<bool>,
    patience: Patience,
) {
    let acceptor = TlsAcceptor::from(tls);
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: wait for some to come free instead of spinning.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (server, acceptor) = (server.clone(), acceptor.clone());
        let watcher = graceful.watcher();
        tokio::spawn(async move {
            if let Err(error) = connection(server, acceptor, stream, peer, watcher, patience).await {
                tracing::debug!(%peer, %error, "a connection ended");
            }
        });
    }
    if tokio::time::timeout(GOODBYE_TIME, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests did not finish in time");
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

async fn connection(
    server: Arc<Server>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    peer: SocketAddr,
    watcher: hyper_util::server::graceful::Watcher,
    patience: Patience,
) -> Result<(), BoxError> {
    stream.set_nodelay(true)?;
    notice_absence(&stream)?;
    let stream = tokio::time::timeout(patience.handshake, acceptor.accept(stream)).await??;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let sender = match certificate {
        Some(leaf) if is_front_proxy(leaf, &server.front_proxy_authority) => Sender::FrontProxy,
        leaf => {
            let user: Option<Arc<User>> = leaf.and_then(|leaf| user_of_certificate(leaf)).map(Arc::new);
            Sender::Remote(user)
        }
    };
    let stream = tokio::time::timeout(patience.head, preface::begin(stream)).await??;
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (server, sender) = (server.clone(), sender.clone());
        request.extensions_mut().insert(peer);
        async move { Ok::<_, std::convert::Infallible>(server.handle(request, &sender).await) }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(patience.head)
        .keep_alive(true)
        .max_headers(HEAD_FIELDS)
        .max_buf_size(HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD_BYTES as u32)
        .keep_alive_interval(patience.ping_interval)
        .keep_alive_timeout(patience.ping)
        .initial_stream_window_size(512 * 1024)
        .initial_connection_window_size(2 * 1024 * 1024)
        .max_send_buf_size(1024 * 1024);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
    watcher.watch(connection).await?;
    Ok(())
}

/// Lets the kernel ask a silent peer whether it is still there: over HTTP/1.1 nobody else does.
fn notice_absence(stream: &TcpStream) -> std::io::Result<()> {
    let probes = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    socket2::SockRef::from(stream).set_tcp_keepalive(&probes)
}

/// The request type of in-process clients.
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;
