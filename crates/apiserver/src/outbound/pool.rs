//! A pool of connections to webhooks.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use knarr_tunnel::{Dial, Stream, Tunnels};
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::destination::{Destination, Endpoint};
use super::egress::{self, Network};
use super::tls::{Identity, Trust, client_config, describe_tls_error};
use crate::object_reader::ObjectReader;

/// A connection that speaks HTTP/1.1.
pub type Connection = SendRequest<Full<Bytes>>;

/// Idle connections are closed after this time, because the endpoints of a Service change.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The most idle connections to one destination.
const MAX_IDLE: usize = 25;

#[derive(Default)]
pub(super) struct Pool {
    idle: Mutex<HashMap<Arc<Destination>, Vec<Idle>>>,
}

struct Idle {
    connection: Connection,
    since: Instant,
    /// The client certificate that was shown.
    identity: Option<Arc<Identity>>,
}

impl Pool {
    /// Removes an idle connection, on which this certificate was shown, from the pool.
    pub fn take(&self, to: &Destination, identity: Option<&Arc<Identity>>) -> Option<Connection> {
        let mut idle = self.idle.lock();
        let connections = idle.get_mut(to)?;
        connections.retain(|one| one.since.elapsed() < IDLE_TIMEOUT && one.connection.is_ready());
        let at = connections.iter().rposition(|one| one.identity.as_ref() == identity)?;
        Some(connections.swap_remove(at).connection)
    }

    /// Returns a connection to the pool.
    pub fn put(&self, to: &Destination, identity: Option<Arc<Identity>>, connection: Connection) {
        let mut idle = self.idle.lock();
        idle.retain(|_, connections| {
            connections.retain(|one| one.since.elapsed() < IDLE_TIMEOUT && !one.connection.is_closed());
            !connections.is_empty()
        });
        let connections = match idle.get_mut(to) {
            Some(connections) => connections,
            None => idle.entry(Arc::new(to.clone())).or_default(),
        };
        if connections.len() < MAX_IDLE {
            connections.push(Idle { connection, since: Instant::now(), identity });
        }
    }
}

/// Opens an HTTP connection.
pub(super) async fn connect(
    objects: &dyn ObjectReader,
    tunnels: &Tunnels,
    to: &Destination,
    identity: Option<&Arc<Identity>>,
) -> Result<Connection, String> {
    let trust = Trust::Authorities(to.authorities.clone());
    let config = client_config(&trust, identity.map(Arc::as_ref)).map_err(|error| error.to_string())?;
    let stream = dial(objects, tunnels, to, config).await?;
    let (sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    knarr_supervisor::spawn(async move {
        if let Err(error) = driver.await {
            tracing::debug!(%error, "a connection to a webhook failed");
        }
    });
    Ok(sender)
}

/// Opens a TLS connection, through the tunnel of the node where there is one.
pub async fn dial(
    objects: &dyn ObjectReader,
    tunnels: &Tunnels,
    to: &Destination,
    config: Arc<rustls::ClientConfig>,
) -> Result<TlsStream<Box<dyn Stream>>, String> {
    let Endpoint { host, port, node } = to.resolve(objects)?;
    let through = match (node, host.parse::<IpAddr>()) {
        (Some(node), Ok(address)) => tunnels.dial(&node, SocketAddr::new(address, port)).await,
        _ => Dial::None,
    };
    let stream: Box<dyn Stream> = match through {
        Dial::Open(stream) => stream,
        Dial::Failed(why) => return Err(why),
        Dial::None => {
            let network = if to.service.is_some() { Network::Cluster } else { Network::ControlPlane };
            egress::dial(network, &host, port).await?
        }
    };
    let name = ServerName::try_from(to.host.clone()).map_err(|error| error.to_string())?;
    TlsConnector::from(config).connect(name, stream).await.map_err(|error| describe_tls_error(&error, &to.host))
}

pub(super) fn describe_dial_error(host: &str, port: u16, error: &std::io::Error) -> String {
    let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => format!("dial tcp {address}: connect: connection refused"),
        std::io::ErrorKind::HostUnreachable => format!("dial tcp {address}: connect: no route to host"),
        std::io::ErrorKind::NetworkUnreachable => format!("dial tcp {address}: connect: network is unreachable"),
        std::io::ErrorKind::TimedOut => format!("dial tcp {address}: connect: connection timed out"),
        _ if error.to_string().contains("lookup") => format!("dial tcp: lookup {host}: no such host"),
        _ => format!("dial tcp {address}: {error}"),
    }
}
