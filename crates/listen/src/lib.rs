//! The connection layer of an HTTPS server: TLS, HTTP/1.1 and HTTP/2, with limits against hostile clients.

mod activity;
mod admission;
mod clients;
mod preface;
mod response_body;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Version};
pub use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rustls_pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;

use activity::Activity;
pub use admission::{Admission, Permit};
pub use clients::{ClientPermit, Clients, host_of};
use response_body::ResponseBody;

/// An error of any type.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Limits on the resources of clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum number of connections, of which one client gets three quarters; further ones are closed at once.
    pub connections: usize,
    /// The timeout of the TLS handshake.
    pub handshake: Duration,
    /// The timeout for a request's head, including the first one of a connection.
    pub head: Duration,
    /// A connection without a request for this long is closed.
    pub idle: Duration,
    /// How often an HTTP/2 connection is pinged.
    pub ping_interval: Duration,
    /// The timeout of a ping.
    pub ping: Duration,
    /// The maximum number of concurrent requests of one connection.
    pub streams: u32,
    /// The maximum size of a request's head.
    pub head_bytes: u32,
    /// The maximum number of header fields.
    pub head_fields: usize,
    /// How long active requests may take to finish when the server stops.
    pub shutdown_timeout: Duration,
    /// Whether an HTTP/1.1 client may close its side before it gets the response.
    pub half_close: bool,
}

impl Limits {
    /// The limits of the API server.
    pub const DEFAULT: Limits = Limits {
        connections: 16_384,
        handshake: Duration::from_secs(10),
        head: Duration::from_secs(30),
        idle: Duration::from_secs(90),
        ping_interval: Duration::from_secs(30),
        ping: Duration::from_secs(15),
        streams: 250,
        head_bytes: 256 * 1024,
        head_fields: 512,
        shutdown_timeout: Duration::from_secs(10),
        half_close: false,
    };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}

/// The maximum number of streams that a client resets before they are accepted; beyond it the connection is closed.
const MAX_PENDING_RESETS: usize = 20;
/// The maximum number of streams reset because of the client's errors; beyond it the connection is closed.
const MAX_ERROR_RESETS: usize = 1024;

/// An extension of a response: a client that has not read it by then is too slow. A connection with nothing else to send
/// is closed; one that carries other responses is left to the body, which ends with an error.
#[derive(Clone, Copy, Debug)]
pub struct SendBy(pub tokio::time::Instant);

/// An extension of a response: the connection is closed once all its requests have finished, so that the client opens another.
#[derive(Clone, Copy, Debug)]
pub struct CloseConnection;

/// The client of a connection.
pub struct Peer<'a> {
    /// Its address and port.
    pub address: SocketAddr,
    /// The certificate chain it presented in the handshake, its own certificate first.
    pub certificates: &'a [CertificateDer<'static>],
}

/// Serves connections until `stop` becomes true, then lets active requests finish. `connected` creates the request handler
/// of each connection.
pub async fn serve<C, H, F, B>(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    limits: Limits,
    mut stop: watch::Receiver<bool>,
    connected: C,
) where
    C: Fn(Peer<'_>) -> H + Clone + Send + Sync + 'static,
    H: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let acceptor = TlsAcceptor::from(tls);
    let admission = Admission::new(limits.connections);
    let mut is_full = false;
    // Closed once every connection has dropped its end.
    let (open, mut all_closed) = mpsc::channel::<Infallible>(1);
    let (abandon, abandoned) = watch::channel(false);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Probably out of file descriptors: wait for free ones instead of spinning.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(permit) = admission.admit(address.ip()) else {
            if !is_full {
                tracing::warn!(connections = limits.connections, %address, "too many connections; new ones are closed");
            }
            is_full = true;
            continue;
        };
        is_full = false;
        let (acceptor, connected, open, stop) = (acceptor.clone(), connected.clone(), open.clone(), stop.clone());
        let mut abandoned = abandoned.clone();
        knarr_supervisor::spawn(async move {
            tokio::select! {
                served = connection(stream, address, permit, acceptor, limits, stop, connected) => {
                    if let Err(error) = served {
                        tracing::debug!(%address, %error, "a connection failed");
                    }
                }
                Ok(_) = abandoned.wait_for(|abandoned| *abandoned) => {}
            }
            drop(open);
        });
    }
    drop(open);
    if tokio::time::timeout(limits.shutdown_timeout, all_closed.recv()).await.is_err() {
        tracing::warn!("some requests did not finish in time");
        // Handlers can still record how the requests ended.
        abandon.send_replace(true);
        all_closed.recv().await;
    }
}

async fn connection<C, H, F, B>(
    stream: TcpStream,
    address: SocketAddr,
    permit: Permit,
    acceptor: TlsAcceptor,
    limits: Limits,
    mut stop: watch::Receiver<bool>,
    connected: C,
) -> Result<(), BoxError>
where
    C: Fn(Peer<'_>) -> H,
    H: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    stream.set_nodelay(true)?;
    enable_tcp_keepalive(&stream)?;
    let stream = tokio::time::timeout(limits.handshake, acceptor.accept(stream)).await??;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let handler = connected(Peer { address, certificates });
    let stream = tokio::time::timeout(limits.head, preface::read(stream, permit)).await??;
    let activity = Arc::new(Activity::default());
    let requests = Arc::clone(&activity);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let active = requests.start_request();
        let (method, version, requests) = (request.method().clone(), request.version(), Arc::clone(&requests));
        request.extensions_mut().insert(address);
        let response = handler(request);
        // On the heap: hyper and tokio move the future of a request several times.
        Box::pin(async move {
            let response = response.await;
            if let Some(SendBy(deadline)) = response.extensions().get().filter(|_| version < Version::HTTP_2) {
                requests.send_by(*deadline);
            }
            if response.extensions().get::<CloseConnection>().is_some() {
                requests.close();
            }
            Ok::<_, Infallible>(ResponseBody::wrap(&method, response, active))
        })
    });
    let builder = builder(&limits);
    let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        result = serving.as_mut() => return result,
        _ = stop.wait_for(|stop| *stop) => {}
        () = activity.idle_for(limits.idle) => {}
        () = activity.closed() => {}
        () = activity.overdue() => return Err("a response was not read in time".into()),
    }
    serving.as_mut().graceful_shutdown();
    serving.await
}

fn builder(limits: &Limits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .keep_alive(true)
        .half_close(limits.half_close)
        .max_headers(limits.head_fields)
        .max_buf_size(limits.head_bytes as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_ERROR_RESETS)
        .max_header_list_size(limits.head_bytes)
        .keep_alive_interval(limits.ping_interval)
        .keep_alive_timeout(limits.ping)
        .initial_stream_window_size(512 * 1024)
        .initial_connection_window_size(2 * 1024 * 1024)
        // Limits the memory for each stream of a client that does not read.
        .max_send_buf_size(128 * 1024);
    builder
}

/// Lets the kernel probe silent peers: HTTP/1.1 has no pings.
fn enable_tcp_keepalive(stream: &TcpStream) -> std::io::Result<()> {
    let probes = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    socket2::SockRef::from(stream).set_tcp_keepalive(&probes)
}
