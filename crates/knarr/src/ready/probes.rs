//! Probes that use a component as its clients would.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use knarr_client::k8s_openapi::api::core::v1::Node;
use knarr_client::kube::{Api, Client};
use knarr_client::node::is_ready;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// A working component responds faster.
const TIMEOUT: Duration = Duration::from_millis(500);

/// A component and its probe.
pub struct Probe {
    pub name: &'static str,
    pub ask: Box<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>,
}

impl Probe {
    pub fn new<F>(name: &'static str, ask: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        Probe {
            name,
            ask: Box::new(move || {
                let attempt = ask();
                Box::pin(async move { tokio::time::timeout(TIMEOUT, attempt).await.unwrap_or(false) })
            }),
        }
    }

    /// The node is ready: its runtime works and its pods have a network.
    pub fn node(client: Client, name: String) -> Self {
        Self::new("node", move || {
            let (nodes, name) = (Api::<Node>::all(client.clone()), name.clone());
            async move { nodes.get_opt(&name).await.is_ok_and(|node| node.is_some_and(|node| is_ready(&node))) }
        })
    }

    /// A path of the API responds with success.
    pub fn path(name: &'static str, client: Client, path: String) -> Self {
        let path: Arc<str> = path.into();
        Self::new(name, move || {
            let (client, path) = (client.clone(), Arc::clone(&path));
            async move {
                let Ok(request) = http::Request::get(&*path).body(Vec::new()) else { return false };
                client.request_text(request).await.is_ok()
            }
        })
    }

    /// DNS resolves the API server's name.
    pub fn dns(address: IpAddr, domain: &str) -> Self {
        let question: Arc<[u8]> = question(&format!("kubernetes.default.svc.{domain}")).into();
        Self::new("DNS", move || resolves(SocketAddr::new(address, 53), Arc::clone(&question)))
    }

    /// A Service address accepts connections.
    pub fn connects(name: &'static str, address: SocketAddr) -> Self {
        Self::new(name, move || async move { TcpStream::connect(address).await.is_ok() })
    }

    /// An HTTP server responds, with any status.
    pub fn http(name: &'static str, address: SocketAddr) -> Self {
        Self::new(name, move || async move { responds_http(reachable(address)).await.unwrap_or(false) })
    }
}

/// The address at which a server that listens on all addresses can be reached from here.
pub fn reachable(listening: SocketAddr) -> SocketAddr {
    let address = match listening.ip() {
        IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) if address.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        address => address,
    };
    SocketAddr::new(address, listening.port())
}

async fn responds_http(address: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: ready.invalid\r\nconnection: close\r\n\r\n").await?;
    let mut start = [0; 5];
    stream.read_exact(&mut start).await?;
    Ok(&start == b"HTTP/")
}

/// A DNS query for a name: a header with one question, the name's labels, type and class.
fn question(name: &str) -> Vec<u8> {
    let mut message = vec![0x6b, 0x6e, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        message.push(u8::try_from(label.len()).unwrap_or(63));
        message.extend(label.bytes().take(63));
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

async fn resolves(server: SocketAddr, question: Arc<[u8]>) -> bool {
    let local: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let Ok(socket) = UdpSocket::bind(local).await else { return false };
    if socket.connect(server).await.is_err() || socket.send(&question).await.is_err() {
        return false;
    }
    let mut response = [0; 512];
    let Ok(length) = socket.recv(&mut response).await else { return false };
    // The same id, marked as a response without an error.
    length >= 12 && response[..2] == question[..2] && response[2] & 0x80 != 0 && response[3] & 0x0f == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_a_header_and_a_name() {
        let message = question("a.bc.");
        assert_eq!(&message[4..6], &[0, 1]);
        assert_eq!(&message[12..], b"\x01a\x02bc\x00\x00\x01\x00\x01");
    }

    #[test]
    fn a_listener_on_all_addresses_is_probed_on_loopback() {
        for (listening, expected) in
            [("0.0.0.0:80", "127.0.0.1:80"), ("[::]:80", "[::1]:80"), ("10.0.0.1:80", "10.0.0.1:80")]
        {
            assert_eq!(reachable(listening.parse().unwrap()), expected.parse().unwrap());
        }
    }
}
