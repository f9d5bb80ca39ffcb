//! Accepts client connections: HTTP/1 and HTTP/2, with and without TLS.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use knarr_listen::Admission;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::activity::Activity;
use crate::certificates::Certificates;
use crate::counted_body::CountedBody;
use crate::forwarded::Origin;
use crate::proxy::Proxy;
use crate::replay::Replay;
use crate::{Addresses, IngressError, Timeouts, fast_path, worker};

const BACKLOG: i32 = 4096;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an idle client may take to close after a graceful shutdown started.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_HEAD: usize = 64 * 1024;
const MAX_HEADER_LIST: u32 = 64 * 1024;
/// Concurrent requests per HTTP/2 connection.
const MAX_STREAMS: u32 = 128;
/// Streams that a client may open and reset before its connection is closed.
const MAX_RESETS: usize = 20;
const MAX_BROKEN_STREAMS: usize = 128;
/// Maximum bytes buffered per stream for a client that does not read.
const MAX_UNSENT: usize = 256 * 1024;

/// Listeners on all addresses, one set per worker: the kernel distributes connections over them.
pub struct Listeners(Vec<Share>);

/// The listeners of one worker.
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
    // Workers listen on the same address, and so may a new process before the old one exits.
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    // Accepted connections inherit this from their listener.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Serves until dropped; TLS connections wait until `is_secure` signals that certificates are known.
pub async fn serve(
    workers: Listeners,
    proxy: Arc<Proxy>,
    certificates: Arc<Certificates>,
    is_secure: watch::Receiver<bool>,
    connections: Arc<Admission>,
) {
    let timeouts = proxy.timeouts;
    let acceptor = match certificates.server_config() {
        Ok(config) => Some(TlsAcceptor::from(Arc::new(config))),
        Err(error) => {
            tracing::error!(%error, "cannot configure TLS for ingress");
            None
        }
    };
    // Workers stop when this end of the channel is dropped.
    let (_serving, ended) = watch::channel(());
    let run = knarr_supervisor::current_run();
    for (number, listeners) in workers.0.into_iter().enumerate() {
        let (proxy, acceptor, mut ended) = (Arc::clone(&proxy), acceptor.clone(), ended.clone());
        let (is_secure, connections) = (is_secure.clone(), Arc::clone(&connections));
        let (own, reporting) = (run.clone(), run.clone());
        let work = move || {
            worker::become_worker(number);
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return tracing::error!(%error, "cannot start an ingress worker"),
            };
            runtime.block_on(knarr_supervisor::within(own, async {
                tokio::select! {
                    () = accept_all(listeners, acceptor, proxy, is_secure, connections, timeouts) => {}
                    _ = ended.changed() => {}
                }
            }));
        };
        let supervised = move || {
            if let (Err(panic), Some(run)) = (catch_unwind(AssertUnwindSafe(work)), reporting) {
                run.fail(format!("a worker panicked: {}", knarr_supervisor::panic_message(&*panic)));
            }
        };
        if let Err(error) = std::thread::Builder::new().name(format!("ingress-{number}")).spawn(supervised) {
            tracing::error!(%error, "cannot start an ingress worker");
        }
    }
    std::future::pending::<()>().await;
}

async fn accept_all(
    listeners: Share,
    acceptor: Option<TlsAcceptor>,
    proxy: Arc<Proxy>,
    is_secure: watch::Receiver<bool>,
    connections: Arc<Admission>,
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
                tasks.spawn(knarr_supervisor::inherit(async move {
                    if acceptor.is_some() && is_secure.wait_for(|is_secure| *is_secure).await.is_err() {
                        return;
                    }
                    accept(listener, acceptor, proxy, connections, timeouts).await;
                }));
            }
            Err(error) => tracing::error!(%error, "an ingress worker cannot listen"),
        }
    }
    knarr_supervisor::join_all(tasks).await;
}

async fn accept(
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    proxy: Arc<Proxy>,
    connections: Arc<Admission>,
    timeouts: Timeouts,
) {
    let port = listener.local_addr().map_or(0, |address| address.port());
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                knarr_supervisor::fault::point("accept");
                let Some(permit) = connections.admit(client.ip()) else {
                    tracing::debug!(client = %client.ip(), "connection limit reached");
                    continue;
                };
                let origin = Arc::new(Origin::new(client.ip(), acceptor.is_some(), port).holding(permit));
                knarr_supervisor::spawn(connection(stream, acceptor.clone(), origin, Arc::clone(&proxy), timeouts));
            }
            Err(error) => {
                // Probably out of file descriptors: other connections must close first.
                tracing::warn!(%error, "cannot accept a connection");
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
        // Boxed, so that plain connections do not pay for the size of TLS ones.
        Some(acceptor) => Box::pin(serve_secure(stream, acceptor, &origin, &proxy, timeouts)).await,
    };
    if let Err(error) = ended {
        tracing::trace!(client = %origin.client(), error, "a client connection closed");
    }
}

async fn serve_secure(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    origin: &Arc<Origin>,
    proxy: &Arc<Proxy>,
    timeouts: Timeouts,
) -> Result<(), String> {
    let accepted = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
    let stream = accepted.map_err(|_| "the TLS handshake timed out")?.map_err(|error| error.to_string())?;
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        return Box::pin(serve_http(stream, origin, proxy, timeouts)).await;
    }
    serve_stream(stream, origin, proxy, timeouts).await
}

/// Serves requests on the fast path while they are simple, then with hyper.
async fn serve_stream<S>(stream: S, origin: &Arc<Origin>, proxy: &Arc<Proxy>, timeouts: Timeouts) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    match fast_path::serve(stream, proxy, origin).await {
        None => Ok(()),
        // Boxed, as few connections need it.
        Some(left) => Box::pin(serve_http(Replay::new(left.read, left.stream), origin, proxy, timeouts)).await,
    }
}

/// Serves HTTP/1 or HTTP/2 with hyper, whichever the client starts with.
async fn serve_http<S>(stream: S, origin: &Arc<Origin>, proxy: &Arc<Proxy>, timeouts: Timeouts) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (proxy, origin) = (Arc::clone(proxy), Arc::clone(origin));
    let activity = Activity::new();
    let counted = activity.clone();
    let service = service_fn(move |request| {
        let (proxy, origin, in_flight) = (Arc::clone(&proxy), Arc::clone(&origin), counted.start_request());
        async move {
            let response = proxy.handle(request, &origin).await;
            Ok::<_, Infallible>(response.map(|body| CountedBody::new(body, in_flight)))
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // `pipeline_flush` would delay the error response to a request that cannot be parsed.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(timeouts.head);
    builder.http1().max_buf_size(MAX_HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_BROKEN_STREAMS)
        .max_send_buf_size(MAX_UNSENT)
        // Detects clients that are gone without closing.
        .keep_alive_interval(timeouts.idle)
        .keep_alive_timeout(timeouts.head);
    let mut served = std::pin::pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = served.as_mut() => return ended.map_err(|error| error.to_string()),
        () = activity.idle_for(timeouts.idle) => {
            served.as_mut().graceful_shutdown();
            tokio::time::timeout(SHUTDOWN_TIMEOUT, served.as_mut()).await
        }
    };
    ended.map_err(|_| "idle, and did not close in time")?.map_err(|error| error.to_string())
}
