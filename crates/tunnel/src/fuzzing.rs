//! Bytes of a peer that does not keep to the protocol, for fuzzing.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use crate::{Gate, Tunnels, serve};

/// Lets nothing through: no connection is opened.
struct Closed;

impl Gate for Closed {
    async fn allows(&self, _: SocketAddr) -> bool {
        false
    }
}

/// Sends bytes to the end of a tunnel on a node, or at a server, and closes the connection.
pub async fn connection(is_to_node: bool, bytes: &[u8]) {
    let (near, mut far) = duplex(1 << 16);
    let peer = async {
        // The other end may close first.
        let _ = far.write_all(bytes).await;
        let _ = far.shutdown().await;
        let _ = far.read_to_end(&mut Vec::new()).await;
    };
    if is_to_node {
        let (served, ()) = tokio::join!(serve(near, Arc::new(Closed)), peer);
        drop(served);
    } else {
        let tunnels = Arc::new(Tunnels::default());
        tokio::join!(tunnels.clone().run("node", near, std::future::pending()), peer);
        assert!(!tunnels.has("node"), "a tunnel that ended is forgotten");
    }
}
