//! The tunnels of nodes at a server.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use crate::timed_connection::TimedConnection;
use crate::{DIAL_TIMEOUT, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT};

/// A node that reconnects may have two for a moment; more would be an attempt to use up the server.
const MAX_TUNNELS: usize = 2;
/// Why a node could not open a connection; longer messages are cut.
const MAX_MESSAGE_BYTES: usize = 1024;

/// A connection, direct or not.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The outcome of an attempt to connect through a tunnel.
pub enum Dial {
    Open(Box<dyn Stream>),
    /// The node tried and failed, for this reason.
    Failed(String),
    /// There is no tunnel, or it does not lead there: connect directly.
    None,
}

/// The tunnels of all nodes to this server.
#[derive(Default)]
pub struct Tunnels {
    nodes: Mutex<HashMap<String, Vec<Tunnel>>>,
    next: AtomicU64,
}

struct Tunnel {
    id: u64,
    sender: SendRequest<Empty<Bytes>>,
}

impl Tunnels {
    /// Uses a connection that a node opened, until it or the time that `end` waits for ends. The caller has authenticated the
    /// node.
    pub async fn run(
        self: Arc<Self>,
        node: &str,
        connection: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        end: impl Future<Output = ()> + Send + 'static,
    ) {
        let connection = TimedConnection::new(connection, end);
        let handshake = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(connection));
        let (sender, driver) = match timeout(DIAL_TIMEOUT, handshake).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => return tracing::debug!(node, %error, "cannot use a node's tunnel"),
            Err(_) => return tracing::debug!(node, "a node's tunnel does not respond"),
        };
        let id = self.add(node, sender);
        tracing::debug!(node, "a node opened a tunnel");
        if let Err(error) = driver.await {
            tracing::debug!(node, %error, "a node's tunnel failed");
        }
        self.remove(node, id);
    }

    fn add(&self, node: &str, sender: SendRequest<Empty<Bytes>>) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut nodes = self.nodes.lock();
        let tunnels = nodes.entry(node.to_owned()).or_default();
        // New connections use the newest tunnel. Those through older ones continue until they are closed.
        tunnels.insert(0, Tunnel { id, sender });
        tunnels.truncate(MAX_TUNNELS);
        id
    }

    fn remove(&self, node: &str, id: u64) {
        let mut nodes = self.nodes.lock();
        if let Some(tunnels) = nodes.get_mut(node) {
            tunnels.retain(|tunnel| tunnel.id != id);
            if tunnels.is_empty() {
                nodes.remove(node);
            }
        }
    }

    /// Whether a node has a tunnel to this server.
    pub fn has(&self, node: &str) -> bool {
        self.count(node) > 0
    }

    /// How many tunnels a node has to this server.
    pub fn count(&self, node: &str) -> usize {
        self.nodes.lock().get(node).map_or(0, Vec::len)
    }

    /// Connects to an address from a node.
    pub async fn dial(&self, node: &str, address: SocketAddr) -> Dial {
        let senders: Vec<_> = match self.nodes.lock().get(node) {
            Some(tunnels) => tunnels.iter().map(|tunnel| tunnel.sender.clone()).collect(),
            None => return Dial::None,
        };
        for sender in senders {
            match timeout(DIAL_TIMEOUT, connect(sender, address)).await {
                Ok(Some(dialed)) => return dialed,
                Ok(None) => {}
                Err(_) => return Dial::Failed("i/o timeout".to_owned()),
            }
        }
        Dial::None
    }
}

/// Connects through one tunnel; `None` if it is broken.
async fn connect(mut sender: SendRequest<Empty<Bytes>>, address: SocketAddr) -> Option<Dial> {
    let request = Request::builder().method(Method::CONNECT).uri(address.to_string()).body(Empty::new()).ok()?;
    sender.ready().await.ok()?;
    let response = sender.send_request(request).await.ok()?;
    match response.status() {
        StatusCode::OK => match hyper::upgrade::on(response).await {
            Ok(stream) => Some(Dial::Open(Box::new(TokioIo::new(stream)))),
            Err(error) => Some(Dial::Failed(error.to_string())),
        },
        StatusCode::BAD_GATEWAY => {
            let message = Limited::new(response.into_body(), MAX_MESSAGE_BYTES).collect().await;
            let message = message.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned());
            Some(Dial::Failed(message.unwrap_or_else(|_| "the node cannot connect".to_owned())))
        }
        _ => Some(Dial::None),
    }
}
