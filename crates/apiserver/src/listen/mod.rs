//! Connections: TLS, HTTP/1.1 and HTTP/2, and who is at the other end.

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

use crate::authenticate::user_of_certificate;
use crate::request::User;
use crate::server::{Sender, Server};

/// A client that has not finished its handshake by now is not served.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// A client must send the head of a request within this time.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// A connection whose other end does not answer a ping for this long is half open and is closed.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIME: Duration = Duration::from_secs(15);
/// How many requests one connection may have open, watches included.
const STREAMS: u32 = 250;
/// How long requests may finish when the server stops.
const GOODBYE_TIME: Duration = Duration::from_secs(10);

/// Serves connections until `stop` turns true, then lets running requests finish.
pub async fn serve(
    server: Arc<Server>,
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    mut stop: tokio::sync::watch::Receiver<bool>,
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
            if let Err(error) = connection(server, acceptor, stream, peer, watcher).await {
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
) -> Result<(), BoxError> {
    stream.set_nodelay(true)?;
    let stream = tokio::time::timeout(HANDSHAKE_TIME, acceptor.accept(stream)).await??;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let user: Option<Arc<User>> = certificate.and_then(|leaf| user_of_certificate(leaf)).map(Arc::new);
    let sender = Sender::Remote(user);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (server, sender) = (server.clone(), sender.clone());
        request.extensions_mut().insert(peer);
        async move { Ok::<_, std::convert::Infallible>(server.handle(request, &sender).await) }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).keep_alive(true).max_buf_size(256 * 1024);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIME)
        .initial_stream_window_size(512 * 1024)
        .initial_connection_window_size(2 * 1024 * 1024)
        .max_send_buf_size(1024 * 1024);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
    watcher.watch(connection).await?;
    Ok(())
}

/// The request type of in-process clients.
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;
