//! UDP and TCP sockets: several UDP sockets per address share the load, and TCP serves responses that do not fit.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use knarr_listen::{ClientPermit, Clients};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::DnsError;
use crate::clients::{self, client_of};
use crate::metrics;
use crate::resolver::{Handled, Resolver};

/// A client must read a response within this time.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Responses sent before the task yields its thread.
const BURST: usize = 64;
const RECEIVE_BUFFER: usize = 4 << 20;

pub struct Sockets {
    datagrams: Vec<UdpSocket>,
    streams: Vec<TcpListener>,
}

pub fn bind(listen: &[SocketAddr]) -> Result<Sockets, DnsError> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let mut sockets = Sockets { datagrams: Vec::new(), streams: Vec::new() };
    for address in listen {
        let failed = |error| DnsError::Listen(*address, error);
        for _ in 0..workers {
            sockets.datagrams.push(bind_datagrams(*address).map_err(failed)?);
        }
        sockets.streams.push(bind_stream(*address).map_err(failed)?);
    }
    Ok(sockets)
}

fn bind_datagrams(address: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_port(true)?;
    // Best effort: the kernel may grant less.
    let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    UdpSocket::from_std(socket.into())
}

fn bind_stream(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
}

/// Limits the queries that await a response of another server; further ones are dropped.
struct Forwarded {
    room: Arc<Semaphore>,
    clients: Arc<Clients>,
}

impl Forwarded {
    fn acquire(&self, client: IpAddr) -> Option<(ClientPermit, OwnedSemaphorePermit)> {
        let of_client = self.clients.acquire(client_of(client))?;
        Some((of_client, Arc::clone(&self.room).try_acquire_owned().ok()?))
    }
}

/// Serves until dropped.
pub async fn serve(sockets: Sockets, resolver: Arc<Resolver>) {
    let forwarded = Arc::new(Forwarded {
        room: Arc::new(Semaphore::new(clients::MAX_FORWARDED)),
        clients: clients::with_forwarded_queries(),
    });
    let mut tasks = JoinSet::new();
    for socket in sockets.datagrams {
        let serving = serve_datagrams(Arc::new(socket), Arc::clone(&resolver), Arc::clone(&forwarded));
        tasks.spawn(knarr_supervisor::inherit(serving));
    }
    let streams = Arc::new(Semaphore::new(clients::MAX_CONNECTIONS));
    let clients = clients::with_connections();
    for listener in sockets.streams {
        let serving = serve_streams(listener, Arc::clone(&resolver), Arc::clone(&streams), Arc::clone(&clients));
        tasks.spawn(knarr_supervisor::inherit(serving));
    }
    knarr_supervisor::join_all(tasks).await;
}

async fn serve_datagrams(socket: Arc<UdpSocket>, resolver: Arc<Resolver>, forwarded: Arc<Forwarded>) {
    let mut request = vec![0; 4096];
    let mut response = Vec::with_capacity(4096);
    loop {
        if socket.readable().await.is_err() {
            return;
        }
        for _ in 0..BURST {
            let Ok((length, client)) = socket.try_recv_from(&mut request) else { break };
            knarr_supervisor::fault::point("request");
            let measured = metrics::Request::start(&request[..length], "udp", client);
            match resolver.handle(&request[..length], None, &mut response) {
                Handled::Nothing => {}
                Handled::Answered => {
                    measured.finish(&response, false);
                    // A full send buffer drops a response, as any network may; the client retries.
                    let _ = socket.try_send_to(&response, client);
                }
                Handled::Later(pending) => {
                    let Some(permit) = forwarded.acquire(client.ip()) else { continue };
                    let (socket, resolver) = (Arc::clone(&socket), Arc::clone(&resolver));
                    let request = request[..length].to_vec();
                    knarr_supervisor::spawn(async move {
                        let response = resolver.resolve_upstream(&request, &pending, None).await;
                        measured.finish(&response, true);
                        let _ = socket.send_to(&response, client).await;
                        drop(permit);
                    });
                }
            }
        }
        tokio::task::consume_budget().await;
    }
}

async fn serve_streams(listener: TcpListener, resolver: Arc<Resolver>, room: Arc<Semaphore>, clients: Arc<Clients>) {
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, client)) => {
                // A client over its limit loses the new connection.
                let Some(held) = clients.acquire(client_of(client.ip())) else { continue };
                let (resolver, room) = (Arc::clone(&resolver), Arc::clone(&room));
                knarr_supervisor::spawn(async move {
                    if let Err(error) = serve_stream(stream, &resolver, &room).await {
                        tracing::trace!(%error, "a DNS client's connection closed");
                    }
                    drop((held, permit));
                });
            }
            Err(error) => {
                // Probably out of file descriptors: other connections must close first.
                tracing::warn!(%error, "cannot accept a DNS connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve_stream(mut stream: TcpStream, resolver: &Resolver, room: &Semaphore) -> std::io::Result<()> {
    const MAX_MESSAGE: usize = 65_535;
    let client = stream.peer_addr()?;
    let mut response = Vec::new();
    loop {
        let whole = async {
            let length = stream.read_u16().await?;
            // Memory grows with the bytes received, not with the announced length.
            let mut request = Vec::new();
            (&mut stream).take(u64::from(length)).read_to_end(&mut request).await?;
            let is_whole = request.len() == usize::from(length);
            is_whole.then_some(request).ok_or(std::io::Error::from(std::io::ErrorKind::UnexpectedEof))
        };
        let idle = clients::idle_timeout(room.available_permits());
        let Ok(request) = tokio::time::timeout(idle, whole).await else { return Ok(()) };
        let request = request?;
        let measured = metrics::Request::start(&request, "tcp", client);
        let is_forwarded = match resolver.handle(&request, Some(MAX_MESSAGE), &mut response) {
            Handled::Nothing => return Ok(()),
            Handled::Answered => false,
            Handled::Later(pending) => {
                response = resolver.resolve_upstream(&request, &pending, Some(MAX_MESSAGE)).await;
                true
            }
        };
        measured.finish(&response, is_forwarded);
        let length = u16::try_from(response.len()).unwrap_or(u16::MAX);
        let mut framed = Vec::with_capacity(response.len() + 2);
        framed.extend_from_slice(&length.to_be_bytes());
        framed.extend_from_slice(&response);
        tokio::time::timeout(WRITE_TIMEOUT, stream.write_all(&framed)).await??;
    }
}
