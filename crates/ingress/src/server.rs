//! Accepting connections, plain and secure, HTTP/1 and HTTP/2.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::certificates::Certificates;
use crate::forwarded::Origin;
use crate::proxy::Proxy;
use crate::{IngressError, Settings, Timeouts};

const BACKLOG: i32 = 4096;
const HANDSHAKE: Duration = Duration::from_secs(10);

pub struct Listeners {
    http: Vec<TcpListener>,
    https: Vec<TcpListener>,
}

pub fn bind(settings: &Settings) -> Result<Listeners, IngressError> {
    let all = |addresses: &[SocketAddr]| -> Result<Vec<TcpListener>, IngressError> {
        addresses
            .iter()
            .map(|address| bind_one(*address).map_err(|error| IngressError::Listen(*address, error)))
            .collect()
    };
    Ok(Listeners { http: all(&settings.http)?, https: all(&settings.https)? })
}

fn bind_one(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    // A new process may listen before the old one is gone, so that no connection is refused in between.
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Serves until dropped.
pub async fn serve(listeners: Listeners, proxy: Arc<Proxy>, certificates: Arc<Certificates>, timeouts: Timeouts) {
    let mut tasks = JoinSet::new();
    for listener in listeners.http {
        tasks.spawn(accept(listener, None, Arc::clone(&proxy), timeouts));
    }
    match certificates.server_config() {
        Ok(config) => {
            let acceptor = TlsAcceptor::from(Arc::new(config));
            for listener in listeners.https {
                tasks.spawn(accept(listener, Some(acceptor.clone()), Arc::clone(&proxy), timeouts));
            }
        }
        Err(error) => tracing::error!(%error, "ingress cannot speak TLS"),
    }
    while tasks.join_next().await.is_some() {}
}

async fn accept(listener: TcpListener, acceptor: Option<TlsAcceptor>, proxy: Arc<Proxy>, timeouts: Timeouts) {
    let port = listener.local_addr().map_or(0, |address| address.port());
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                let origin = Origin { client: client.ip().to_canonical(), is_secure: acceptor.is_some(), port };
                tokio::spawn(connection(stream, acceptor.clone(), origin, Arc::clone(&proxy), timeouts));
            }
            Err(error) => {
                // Out of files, most likely: others must end first.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    origin: Origin,
    proxy: Arc<Proxy>,
    timeouts: Timeouts,
) {
    let service = service_fn(move |request| {
        let proxy = Arc::clone(&proxy);
        async move { Ok::<_, Infallible>(proxy.handle(request, origin).await) }
    });
    let _ = stream.set_nodelay(true);
    let ended: Result<(), String> = match acceptor {
        None => {
            let mut builder = auto::Builder::new(TokioExecutor::new());
            builder.http1().timer(TokioTimer::new()).header_read_timeout(timeouts.head).pipeline_flush(true);
            builder.http2().timer(TokioTimer::new());
            let served = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
            served.await.map_err(|error| error.to_string())
        }
        Some(acceptor) => match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
            Err(_) => Err("the handshake takes too long".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Ok(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                let served = builder.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
                served.await.map_err(|error| error.to_string())
            }
            Ok(Ok(stream)) => {
                let mut builder = http1::Builder::new();
                builder.timer(TokioTimer::new()).header_read_timeout(timeouts.head);
                let served = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
                served.await.map_err(|error| error.to_string())
            }
        },
    };
    if let Err(error) = ended {
        tracing::trace!(client = %origin.client, error, "a client's connection ended");
    }
}
