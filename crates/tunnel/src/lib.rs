//! Connections from servers to a node over one that the node has opened: the node may be behind a firewall or NAT.
//!
//! The node opens a connection to each server and upgrades it. Then the roles change: the server is the client of an HTTP/2
//! connection on it (`server`), and each request `CONNECT address:port` becomes a connection that the node opens on its side
//! (`node`). What goes through such a connection is the business of its ends: the server still verifies the kubelet's
//! certificate.

#[doc(hidden)]
pub mod fuzzing;
mod node;
mod server;
mod timed_connection;

pub use node::{Gate, serve};
pub use server::{Dial, Stream, Tunnels};

use std::time::Duration;

/// The path at which a server accepts tunnels.
pub const PATH: &str = "/node-tunnel";
/// The protocol in the `Upgrade` header.
pub const PROTOCOL: &str = "knarr-tunnel";

/// Both ends ask each other for signs of life, so that a dead connection is noticed.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// How many connections a tunnel carries at once.
const MAX_STREAMS: u32 = 256;
/// How long opening a connection may take.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::net::TcpListener;

    use super::*;

    /// A server that sends back what it receives.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        address
    }

    struct Only(SocketAddr);

    impl Gate for Only {
        async fn allows(&self, address: SocketAddr) -> bool {
            address == self.0
        }
    }

    async fn open(tunnels: &Arc<Tunnels>, node: &str, allowed: SocketAddr) -> tokio::task::JoinHandle<()> {
        let (near, far) = duplex(1 << 16);
        let serving = tokio::spawn(async move {
            let _ = serve(far, Arc::new(Only(allowed))).await;
        });
        let (tunnels_, node_) = (tunnels.clone(), node.to_owned());
        tokio::spawn(async move { tunnels_.run(&node_, near, std::future::pending()).await });
        while !tunnels.has(node) {
            tokio::task::yield_now().await;
        }
        serving
    }

    #[tokio::test]
    async fn connections_go_through_the_tunnel_of_their_node() {
        let (address, tunnels) = (echo().await, Arc::new(Tunnels::default()));
        assert!(matches!(tunnels.dial("a", address).await, Dial::None));
        let serving = open(&tunnels, "a", address).await;
        let mut streams = Vec::new();
        for number in 0..20_u8 {
            let Dial::Open(mut stream) = tunnels.dial("a", address).await else { panic!("no connection") };
            let message = vec![number; 100_000];
            let (mut read, mut write) = tokio::io::split(&mut stream);
            let mut received = vec![0; message.len()];
            let (written, read) = tokio::join!(write.write_all(&message), read.read_exact(&mut received));
            written.unwrap();
            read.unwrap();
            assert_eq!(received, message);
            streams.push(stream);
        }
        assert!(matches!(tunnels.dial("b", address).await, Dial::None));
        serving.abort();
        while tunnels.has("a") {
            tokio::task::yield_now().await;
        }
        let mut buffer = [0; 1];
        assert!(!matches!(streams[0].read(&mut buffer).await, Ok(1)));
    }

    #[tokio::test]
    async fn a_node_opens_only_what_it_allows() {
        let (address, other, tunnels) = (echo().await, echo().await, Arc::new(Tunnels::default()));
        let _serving = open(&tunnels, "a", address).await;
        assert!(matches!(tunnels.dial("a", other).await, Dial::None), "the server may connect directly");
        let closed = {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            listener.local_addr().unwrap()
        };
        let _other = open(&tunnels, "b", closed).await;
        let Dial::Failed(why) = tunnels.dial("b", closed).await else { panic!("it is closed") };
        assert!(why.contains("refused"), "{why}");
    }

    #[tokio::test]
    async fn a_tunnel_ends_with_its_time_and_so_does_what_goes_through_it() {
        let (address, tunnels) = (echo().await, Arc::new(Tunnels::default()));
        let (near, far) = duplex(1 << 16);
        let serving = tokio::spawn(async move {
            let _ = serve(far, Arc::new(Only(address))).await;
        });
        let (over, end) = tokio::sync::oneshot::channel::<()>();
        let used = tunnels.clone();
        let running = tokio::spawn(async move { used.run("a", near, async move { drop(end.await) }).await });
        while !tunnels.has("a") {
            tokio::task::yield_now().await;
        }
        let Dial::Open(mut stream) = tunnels.dial("a", address).await else { panic!("no connection") };
        stream.write_all(b"ping").await.unwrap();
        let mut buffer = [0; 4];
        stream.read_exact(&mut buffer).await.unwrap();
        drop(over);
        let ending = async {
            running.await.unwrap();
            assert!(!tunnels.has("a"));
            assert!(!matches!(stream.read(&mut buffer).await, Ok(1..)));
            // The node notices, too, and can open another one.
            serving.await.unwrap();
        };
        tokio::time::timeout(Duration::from_secs(60), ending).await.expect("an end");
    }

    #[tokio::test]
    async fn a_node_has_few_tunnels() {
        let (address, tunnels) = (echo().await, Arc::new(Tunnels::default()));
        let mut held = Vec::new();
        for _ in 0..10 {
            let (near, far) = duplex(1 << 16);
            held.push(far);
            let tunnels = tunnels.clone();
            tokio::spawn(async move { tunnels.run("a", near, std::future::pending()).await });
            tokio::task::yield_now().await;
        }
        // None of them responds: dialing ends all the same, by the timeout of its caller.
        tokio::time::pause();
        assert!(!matches!(tunnels.dial("a", address).await, Dial::Open(_)));
        assert!(tunnels.count("a") <= 2);
    }
}
