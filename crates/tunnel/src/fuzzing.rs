//! Bytes of a peer that does not keep to the protocol, for fuzzing.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use crate::{Dial, Gate, Tunnels, serve};

/// How many turns the other end has for the requests of a connection.
const TURNS: usize = 32;

/// Lets nothing through: no connection is opened.
struct Closed;

impl Gate for Closed {
    async fn allows(&self, _: SocketAddr) -> bool {
        false
    }
}

/// Sends bytes to the end of a tunnel on a node, or at a server that opens a connection, and closes the tunnel.
pub async fn connection(is_to_node: bool, bytes: &[u8]) {
    let (near, mut far) = duplex(1 << 16);
    let peer = async {
        if !is_to_node {
            // A node responds to what the server has sent.
            turns().await;
        }
        // The other end may close first.
        let _ = far.write_all(bytes).await;
        // An end that has read the end of the connection handles no request of it any more.
        turns().await;
        let _ = far.shutdown().await;
        let _ = far.read_to_end(&mut Vec::new()).await;
    };
    if is_to_node {
        let (served, ()) = tokio::join!(serve(near, Arc::new(Closed)), peer);
        drop(served);
    } else {
        let tunnels = Arc::new(Tunnels::default());
        let dial = async {
            for _ in 0..TURNS {
                if tunnels.has("node") {
                    break;
                }
                tokio::task::yield_now().await;
            }
            if let Dial::Open(mut stream) = tunnels.dial("node", SocketAddr::from(([10, 0, 0, 7], 10250))).await {
                let _ = stream.read_to_end(&mut Vec::new()).await;
            }
        };
        tokio::join!(tunnels.clone().run("node", near, std::future::pending()), peer, dial);
        assert!(!tunnels.has("node"), "a tunnel that ended is forgotten");
    }
}

async fn turns() {
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
}
