//! Accepting connections, plain and secure, HTTP/1 and HTTP/2.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::activity::Activity;
use crate::again::Again;
use crate::certificates::Certificates;
use crate::connections::Connections;
use crate::counted::Counted;
use crate::forwarded::Origin;
use crate::proxy::Proxy;
use crate::{Addresses, IngressError, Timeouts, quick, worker};

const BACKLOG: i32 = 4096;
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long an idle client that was told to go may take.
const GOODBYE: Duration = Duration::from_secs(5);
const LONGEST_HEAD: usize = 64 * 1024;
const LONGEST_HEAD_LIST: u32 = 64 * 1024;
/// Requests that one HTTP/2 connection may have under way.
const MOST_STREAMS: u32 = 128;
/// Streams that a client may open and reset at once before it is sent away.
const MOST_RESETS: usize = 20;
const MOST_BROKEN_STREAMS: usize = 128;
/// What waits on one stream for a client that does not read.
const MOST_UNSENT: usize = 256 * 1024;

/// All addresses, once for each worker: the kernel spreads connections over them.
pub struct Listeners(Vec<Share>);

/// One worker's share of all addresses.
struct Share {
    http: Vec<std::net::TcpListener>,
    https: Vec<std::net::TcpListener>,
}

impl Listeners {
    pub(crate) fn bind(to: &Addresses) -> Result<Self, IngressError> {
        let all = |addresses: &[SocketAddr]| -> Result<Vec<std::net::TcpListener>, IngressError> {
            addresses
                .iter()
                .map(|address| bind_one(*address).map_err(|error| IngressError::Listen(*address, error)))
                .collect()
        };
        let share = |_| Ok(Share { http: all(&to.http)?, https: all(&to.https)? });
        (0..worker::count()).map(share).collect::<Result<_, _>>().map(Listeners)
    }
}

fn bind_one(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    // Workers listen on the same address, and so may a new process before the old one is gone.
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    // Connections have it from their listener.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Serves until dropped; secure connections wait until `is_secure` tells that certificates are known.
pub async fn serve(
    workers: Listeners,
    proxy: Arc<Proxy>,
    certificates: Arc<Certificates>,
    is_secure: watch::Receiver<bool>,
    connections: Arc<Connections>,
) {
    let timeouts = proxy.timeouts;
    let acceptor = match certificates.server_config() {
        Ok(config) => Some(TlsAcceptor::from(Arc::new(config))),
        Err(error) => {
            tracing::error!(%error, "ingress cannot speak TLS");
            None
        }
    };
    // Workers end when this end of the channel is gone.
    let (_serving, ended) = watch::channel(());
    for (number, listeners) in workers.0.into_iter().enumerate() {
        let (proxy, acceptor, mut ended) = (Arc::clone(&proxy), acceptor.clone(), ended.clone());
        let (is_secure, connections) = (is_secure.clone(), Arc::clone(&connections));
        let work = move || {
            worker::become_worker(number);
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return tracing::error!(%error, "an ingress worker cannot start"),
            };
            runtime.block_on(async {
                tokio::select! {
                    () = accept_all(listeners, acceptor, proxy, is_secure, connections, timeouts) => {}
                    _ = ended.changed() => {}
                }
            });
        };
        if let Err(error) = std::thread::Builder::new().name(format!("ingress-{number}")).spawn(work) {
            tracing::error!(%error, "an ingress worker cannot start");
        }
    }
    std::future::pending::<()>().await;
}

async fn accept_all(
    listeners: Share,
    acceptor: Option<TlsAcceptor>,
    proxy: Arc<Proxy>,
    is_secure: watch::Receiver<bool>,
    connections: Arc<Connections>,
    timeouts: Timeouts,
) {
    let plain = listeners.http.into_iter().map(|listener| (listener, None));
    let secure =
        listeners.https.into_iter().filter(|_| acceptor.is_some()).map(|listener| (listener, acceptor.clone()));
    let mut tasks = JoinSet::new();
    for (listener, acceptor) in plain.chain(secure) {
        match TcpListener::from_std(listener) {
            Ok(listener) => {
                let (proxy, connections) = (Arc::clone(&proxy), Arc::clone(&connections));
                let mut is_secure = is_secure.clone();
                tasks.spawn(async move {
                    if acceptor.is_some() && is_secure.wait_for(|is_secure| *is_secure).await.is_err() {
                        return;
                    }
                    accept(listener, acceptor, proxy, connections, timeouts).await;
                });
            }
            Err(error) => tracing::error!(%error, "an ingress worker cannot listen"),
        }
    }
    while tasks.join_next().await.is_some() {}
}

async fn accept(
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    proxy: Arc<Proxy>,
    connections: Arc<Connections>,
    timeouts: Timeouts,
) {
    let port = listener.local_addr().map_or(0, |address| address.port());
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                let Some(held) = connections.hold(client.ip()) else {
                    tracing::debug!(client = %client.ip(), "a client has too many connections, or all have");
                    continue;
                };
                let origin = Origin::new(client.ip(), acceptor.is_some(), port);
                let serving = connection(stream, acceptor.clone(), Arc::new(origin), Arc::clone(&proxy), timeouts);
                tokio::spawn(async move {
                    serving.await;
                    drop(held);
                });
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
    origin: Arc<Origin>,
    proxy: Arc<Proxy>,
    timeouts: Timeouts,
) {
    let ended = match acceptor {
        None => serve_stream(stream, &origin, &proxy, timeouts).await,
        // A plain connection need not be as large as a secure one.
        Some(acceptor) => Box::pin(serve_secure(stream, acceptor, &origin, &proxy, timeouts)).await,
    };
    if let Err(error) = ended {
        tracing::trace!(client = %origin.client(), error, "a client's connection ended");
    }
}

async fn serve_secure(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    origin: &Arc<Origin>,
    proxy: &Arc<Proxy>,
    timeouts: Timeouts,
) -> Result<(), String> {
    let accepted = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await;
    let stream = accepted.map_err(|_| "the handshake takes too long")?.map_err(|error| error.to_string())?;
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        return Box::pin(serve_http(stream, origin, proxy, timeouts)).await;
    }
    serve_stream(stream, origin, proxy, timeouts).await
}

/// The quick way while requests are plain, then the way for all.
async fn serve_stream<S>(stream: S, origin: &Arc<Origin>, proxy: &Arc<Proxy>, timeouts: Timeouts) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    match quick::serve(stream, proxy, origin).await {
        None => Ok(()),
        // Few connections need it, so it takes memory only where it is needed.
        Some(left) => Box::pin(serve_http(Again::new(left.read, left.stream), origin, proxy, timeouts)).await,
    }
}

/// HTTP/1 or HTTP/2, whatever the client begins with.
async fn serve_http<S>(stream: S, origin: &Arc<Origin>, proxy: &Arc<Proxy>, timeouts: Timeouts) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (proxy, origin) = (Arc::clone(proxy), Arc::clone(origin));
    let activity = Activity::new();
    let counted = activity.clone();
    let service = service_fn(move |request| {
        let (proxy, origin, under_way) = (Arc::clone(&proxy), Arc::clone(&origin), counted.begin());
        async move {
            let answer = proxy.handle(request, &origin).await;
            Ok::<_, Infallible>(answer.map(|body| Counted::new(body, under_way)))
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // Its `pipeline_flush` would hold back the refusal of a request that cannot be read.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(timeouts.head);
    builder.http1().max_buf_size(LONGEST_HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MOST_STREAMS)
        .max_header_list_size(LONGEST_HEAD_LIST)
        .max_pending_accept_reset_streams(MOST_RESETS)
        .max_local_error_reset_streams(MOST_BROKEN_STREAMS)
        .max_send_buf_size(MOST_UNSENT)
        // A client that is gone without a word does not answer.
        .keep_alive_interval(timeouts.idle)
        .keep_alive_timeout(timeouts.head);
    let mut served = std::pin::pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = served.as_mut() => return ended.map_err(|error| error.to_string()),
        () = activity.idle_for(timeouts.idle) => {
            served.as_mut().graceful_shutdown();
            tokio::time::timeout(GOODBYE, served.as_mut()).await
        }
    };
    ended.map_err(|_| "idle, and does not go")?.map_err(|error| error.to_string())
}
