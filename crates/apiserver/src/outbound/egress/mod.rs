//! How connections leave this server: directly, or through the HTTP proxy of the network that they lead to
//! (`--egress-selector-config-file`).

mod configuration;
mod http_connect;

pub use configuration::EgressError;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use knarr_tunnel::Stream;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::pool::describe_dial_error;
use super::tls::{Identity, Trust, client_config, describe_tls_error};
use configuration::{Connection, TlsFiles};

const DIAL_TIMEOUT: Duration = Duration::from_secs(30);

/// What a connection leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Nodes, pods and Services.
    Cluster,
    /// Webhooks by URL, and those of the configuration.
    ControlPlane,
    Etcd,
}

/// The way into each network.
#[derive(Clone, Debug, Default)]
pub struct Egress {
    cluster: Route,
    control_plane: Route,
    etcd: Route,
}

/// The ways out of this process, as its network is: set once, before the first connection.
static EGRESS: OnceLock<Egress> = OnceLock::new();

/// Opens a connection into a network.
pub async fn dial(network: Network, host: &str, port: u16) -> Result<Box<dyn Stream>, String> {
    Egress::current().route(network).dial(host, port).await
}

/// The way into one network.
#[derive(Clone, Debug, Default)]
pub struct Route(Option<Arc<Proxy>>);

/// A proxy that opens connections with the method CONNECT.
enum Proxy {
    Tcp { address: String, tls: Option<(Arc<ClientConfig>, ServerName<'static>)> },
    Socket(PathBuf),
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.name())
    }
}

impl Egress {
    /// Reads the configuration and the files that it names.
    pub fn read(path: &Path) -> Result<Self, EgressError> {
        let mut egress = Egress::default();
        for selection in configuration::read(path)? {
            let unusable = |why: String| EgressError::Unusable(selection.network.name().to_owned(), why);
            let route = Route(Proxy::new(&selection.connection).map_err(unusable)?.map(Arc::new));
            match selection.network {
                Network::Cluster => egress.cluster = route,
                Network::ControlPlane => egress.control_plane = route,
                Network::Etcd => egress.etcd = route,
            }
        }
        Ok(egress)
    }

    /// Makes these the ways out of this process.
    pub fn apply(self) {
        // The first one stays.
        let _ = EGRESS.set(self);
    }

    pub fn current() -> &'static Egress {
        static DIRECT: Egress = Egress { cluster: Route(None), control_plane: Route(None), etcd: Route(None) };
        EGRESS.get().unwrap_or(&DIRECT)
    }

    pub fn route(&self, network: Network) -> &Route {
        match network {
            Network::Cluster => &self.cluster,
            Network::ControlPlane => &self.control_plane,
            Network::Etcd => &self.etcd,
        }
    }
}

impl Network {
    fn name(self) -> &'static str {
        match self {
            Network::Cluster => "cluster",
            Network::ControlPlane => "controlplane",
            Network::Etcd => "etcd",
        }
    }
}

impl Route {
    pub fn is_direct(&self) -> bool {
        self.0.is_none()
    }

    /// Opens a connection. A proxy resolves the name itself.
    pub async fn dial(&self, host: &str, port: u16) -> Result<Box<dyn Stream>, String> {
        let Some(proxy) = &self.0 else {
            let dialed = TcpStream::connect((host, port)).await;
            let stream = dialed.map_err(|error| describe_dial_error(host, port, &error))?;
            stream.set_nodelay(true).map_err(|error| error.to_string())?;
            return Ok(Box::new(stream));
        };
        let target = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        match tokio::time::timeout(DIAL_TIMEOUT, proxy.open(&target)).await {
            Ok(opened) => opened,
            Err(_) => Err(format!("dialing {target} via proxy {}: i/o timeout", proxy.name())),
        }
    }
}

impl Proxy {
    fn new(connection: &Connection) -> Result<Option<Self>, String> {
        Ok(match connection {
            Connection::Direct => None,
            Connection::Socket(path) => Some(Proxy::Socket(path.clone())),
            Connection::Tcp { address, tls } => {
                let tls = tls.as_ref().map(|files| load(files, address)).transpose()?;
                Some(Proxy::Tcp { address: address.clone(), tls })
            }
        })
    }

    fn name(&self) -> String {
        match self {
            Proxy::Tcp { address, .. } => address.clone(),
            Proxy::Socket(path) => path.display().to_string(),
        }
    }

    async fn open(&self, target: &str) -> Result<Box<dyn Stream>, String> {
        let mut stream: Box<dyn Stream> = match self {
            Proxy::Socket(path) => {
                let dialed = UnixStream::connect(path).await;
                Box::new(dialed.map_err(|error| format!("dial unix {}: connect: {error}", path.display()))?)
            }
            Proxy::Tcp { address, tls } => {
                let dialed = TcpStream::connect(address).await;
                let stream = dialed.map_err(|error| format!("dial tcp {address}: connect: {error}"))?;
                stream.set_nodelay(true).map_err(|error| error.to_string())?;
                match tls {
                    None => Box::new(stream),
                    Some((config, name)) => {
                        let connected = TlsConnector::from(config.clone()).connect(name.clone(), stream).await;
                        Box::new(connected.map_err(|error| describe_tls_error(&error, &name.to_str()))?)
                    }
                }
            }
        };
        http_connect::open(&mut stream, &self.name(), target).await?;
        Ok(stream)
    }
}

fn load(files: &TlsFiles, address: &str) -> Result<(Arc<ClientConfig>, ServerName<'static>), String> {
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path)
            .map_err(|error| format!("failed to read cert file {}, got {error}", path.display()))
    };
    let identity = Identity { certificate: read(&files.certificate)?, key: read(&files.key)? };
    let authorities = files.authorities.as_ref().map(read).transpose()?.unwrap_or_default();
    let config = client_config(&Trust::Authorities(authorities), Some(&identity)).map_err(|error| {
        format!("failed to read key pair {} & {}, got {error}", files.certificate.display(), files.key.display())
    })?;
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    let name = files.server_name.clone().unwrap_or_else(|| host.to_owned());
    Ok((config, ServerName::try_from(name).map_err(|error| error.to_string())?))
}

#[cfg(test)]
mod tests;
