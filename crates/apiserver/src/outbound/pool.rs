//! Connections to other servers, kept for the next call.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::destination::Destination;
use super::tls::{Trust, client_config, shown_tls_error};
use crate::object_reader::ObjectReader;

pub type Connection = SendRequest<Full<Bytes>>;

/// A connection that nobody used for this long is closed: what is behind a service changes.
const IDLE: Duration = Duration::from_secs(30);
/// More connections to one destination are not kept.
const KEPT: usize = 25;

#[derive(Default)]
pub(super) struct Pool {
    idle: Mutex<HashMap<Arc<Destination>, Vec<(Connection, Instant)>>>,
}

impl Pool {
    pub fn take(&self, to: &Destination) -> Option<Connection> {
        let mut idle = self.idle.lock();
        let connections = idle.get_mut(to)?;
        while let Some((connection, since)) = connections.pop() {
            if since.elapsed() < IDLE && connection.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    pub fn keep(&self, to: &Destination, connection: Connection) {
        let mut idle = self.idle.lock();
        idle.retain(|_, connections| {
            connections.retain(|(connection, since)| since.elapsed() < IDLE && !connection.is_closed());
            !connections.is_empty()
        });
        let connections = match idle.get_mut(to) {
            Some(connections) => connections,
            None => idle.entry(Arc::new(to.clone())).or_default(),
        };
        if connections.len() < KEPT {
            connections.push((connection, Instant::now()));
        }
    }
}

/// A new connection that speaks HTTP.
pub(super) async fn connect(objects: &dyn ObjectReader, to: &Destination) -> Result<Connection, String> {
    let config = client_config(&Trust::Authorities(to.authorities.clone()), None).map_err(|error| error.to_string())?;
    let stream = dial(objects, to, config).await?;
    let (sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        if let Err(error) = driver.await {
            tracing::debug!(%error, "a connection to a webhook ended");
        }
    });
    Ok(sender)
}

/// A new connection, encrypted.
pub async fn dial(
    objects: &dyn ObjectReader,
    to: &Destination,
    config: Arc<rustls::ClientConfig>,
) -> Result<TlsStream<TcpStream>, String> {
    let (host, port) = to.resolve(objects)?;
    let stream =
        TcpStream::connect((host.as_str(), port)).await.map_err(|error| shown_dial_error(&host, port, &error))?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let name = ServerName::try_from(to.host.clone()).map_err(|error| error.to_string())?;
    TlsConnector::from(config).connect(name, stream).await.map_err(|error| shown_tls_error(&error, &to.host))
}

fn shown_dial_error(host: &str, port: u16, error: &std::io::Error) -> String {
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
