//! The balancer of an agent: one local address for all servers of the cluster.
//!
//! Every component of the agent connects to it. It forwards connections to one server, unchanged and still encrypted, and to
//! another server when that one fails. The list of servers comes from the endpoints of the Service `kubernetes` and is saved on
//! disk, so that an agent starts without the server it once joined. `servers` chooses a server, `health` checks the servers,
//! `tunnel` lets them reach this node.

mod health;
mod servers;
mod tunnel;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use knarr_client::k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_client::kube::{Api, Client};
use knarr_supervisor::Supervisor;
use parking_lot::Mutex;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use servers::Servers;
pub use tunnel::TunnelSettings;

/// The preferred port; another one is used if it is in use.
const PORT: u16 = 6444;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const LIST_INTERVAL: Duration = Duration::from_secs(15);
/// The maximum number of open connections; further ones wait. A process on this host must not exhaust the file descriptors of
/// the agent.
const MAX_CONNECTIONS: usize = 2048;
/// The backoff after a failed `accept`, such as with too many open files.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// The servers, and the notification of changes to them.
struct Shared {
    servers: Mutex<Servers>,
    /// Changes when a server fails or leaves, so that connections to it are closed.
    changes: watch::Sender<()>,
    file: PathBuf,
}

/// A running balancer. Its tasks, and all connections, end with the supervisor that it was started with.
pub struct Balancer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Balancer {
    /// Listens on loopback. `server` is the configured server of the agent; `authorities` (DER) are the CAs of the cluster.
    pub async fn start(
        server: &http::Uri,
        authorities: &[Vec<u8>],
        data: &Path,
        node: &str,
        supervisor: &Supervisor,
    ) -> anyhow::Result<Self> {
        let given = authority_of(server)?;
        let file = data.join("servers.json");
        let servers = Servers::new(given, load(&file), node);
        let shared = Arc::new(Shared { servers: Mutex::new(servers), changes: watch::Sender::new(()), file });
        let listener = match TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, PORT)).await {
            Ok(listener) => listener,
            Err(_) => TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))
                .await
                .context("cannot listen on loopback for connections to the servers")?,
        };
        let address = listener.local_addr()?;
        let listener = Arc::new(listener);
        let passing_on = Arc::clone(&shared);
        supervisor.restart("server-balancer", move || accept(Arc::clone(&listener), Arc::clone(&passing_on)));
        let (checked, authorities) = (Arc::clone(&shared), authorities.to_vec());
        supervisor.restart("server-health", move || health::check(Arc::clone(&checked), authorities.clone()));
        Ok(Self { address, shared })
    }

    /// The address of all servers.
    pub fn url(&self) -> anyhow::Result<http::Uri> {
        format!("https://{}", self.address).parse().context("the balancer has no address")
    }

    /// Maintains a tunnel to each server until dropped.
    pub fn keep_tunnels(&self, settings: TunnelSettings) -> impl Future<Output = ()> + Send + use<> {
        tunnel::maintain(Arc::clone(&self.shared), settings)
    }

    /// Keeps the list of servers up to date until dropped.
    pub fn learn(&self, client: Client) -> impl Future<Output = ()> + Send + use<> {
        let shared = Arc::clone(&self.shared);
        async move {
            let slices: Api<EndpointSlice> = Api::namespaced(client, "default");
            loop {
                match slices.get("kubernetes").await {
                    Ok(slice) => shared.learn(&addresses(&slice)),
                    Err(error) => tracing::debug!(%error, "cannot read the list of servers"),
                }
                tokio::time::sleep(LIST_INTERVAL).await;
            }
        }
    }
}

impl Shared {
    fn learn(&self, found: &[String]) {
        if !self.servers.lock().set(found) {
            return;
        }
        tracing::info!(servers = found.join(", "), "the servers of the cluster");
        self.changes.send_replace(());
        if let Err(error) = save(&self.file, found) {
            tracing::warn!(error = format!("{error:#}"), "cannot note the servers of the cluster");
        }
    }

    /// Records whether a server responded.
    fn report(&self, server: &str, is_well: bool) {
        let has_changed = self.servers.lock().report(server, is_well);
        if has_changed {
            tracing::info!(server, is_well, "the health of a server changed");
            self.changes.send_replace(());
        }
    }
}

async fn accept(listener: Arc<TcpListener>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(knarr_supervisor::inherit(forward(stream, Arc::clone(&shared))));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to the servers");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Forwards a connection to the first reachable server, until either side closes it or the server becomes unusable.
async fn forward(mut near: TcpStream, shared: Arc<Shared>) {
    let candidates = shared.servers.lock().candidates();
    for server in candidates {
        let mut changes = shared.changes.subscribe();
        let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(&server)).await;
        let Ok(Ok(mut far)) = connected else {
            shared.report(&server, false);
            continue;
        };
        // Requests are small and clients wait for their responses, so nothing is delayed to fill packets.
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let is_unusable = async {
            loop {
                let is_usable = shared.servers.lock().is_usable(&server);
                if !is_usable || changes.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            // An error of a connection concerns only the client and the server, which both see it.
            _ = copy_bidirectional(&mut near, &mut far) => {}
            () = is_unusable => {}
        }
        return;
    }
}

/// `host:port` of a URL.
fn authority_of(server: &http::Uri) -> anyhow::Result<String> {
    let host = server.host().with_context(|| format!("{server} has no host"))?;
    Ok(format!("{host}:{}", server.port_u16().unwrap_or(443)))
}

/// `host:port` of all servers in the endpoints of the Service `kubernetes`.
fn addresses(slice: &EndpointSlice) -> Vec<String> {
    let port =
        slice.ports.iter().flatten().filter_map(|port| port.port).next().and_then(|port| u16::try_from(port).ok());
    let ready = slice.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.addresses);
    let addresses = ready.filter_map(|address| Some(SocketAddr::new(address.parse().ok()?, port?).to_string()));
    let mut addresses: Vec<String> = addresses.collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

fn load(file: &Path) -> Vec<String> {
    let text = std::fs::read(file).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn save(file: &Path, servers: &[String]) -> anyhow::Result<()> {
    crate::servers::write_private(file, &serde_json::to_vec(servers)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A server that sends its name on each connection, and holds it.
    async fn server(name: &'static str) -> (String, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let task = tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                stream.write_all(name.as_bytes()).await.unwrap();
                held.push(stream);
            }
        });
        (address, task)
    }

    async fn said(address: SocketAddr) -> (String, TcpStream) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut text = [0; 1];
        stream.read_exact(&mut text).await.unwrap();
        (String::from_utf8_lossy(&text).into_owned(), stream)
    }

    #[tokio::test]
    async fn connections_move_to_another_server_and_the_list_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let (one, first) = server("1").await;
        let (two, _second) = server("2").await;
        let file = directory.path().join("servers.json");
        let servers = Servers::new(one.clone(), Vec::new(), "node");
        let shared =
            Arc::new(Shared { servers: Mutex::new(servers), changes: watch::Sender::new(()), file: file.clone() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _accepting = tokio::spawn(accept(Arc::new(listener), Arc::clone(&shared)));
        let (name, mut held) = said(address).await;
        assert_eq!(name, "1");
        shared.learn(&[one.clone(), two.clone()]);
        assert_eq!(load(&file), [one.clone(), two.clone()]);
        // A connection to a server that hangs is closed as soon as that is known.
        let current = shared.servers.lock().candidates()[0].clone();
        let hung = if current == one { "1" } else { "2" };
        let (name, mut on_current) = said(address).await;
        assert_eq!(name, hung);
        shared.report(&current, false);
        shared.report(&current, false);
        assert_eq!(on_current.read(&mut [0; 1]).await.unwrap(), 0);
        let (name, _held) = said(address).await;
        assert_ne!(name, hung);
        // A server that left the cluster gets no connections, and loses those it has.
        shared.learn(std::slice::from_ref(&two));
        if hung == "2" {
            assert_eq!(held.read(&mut [0; 1]).await.unwrap(), 0);
        }
        first.abort();
        shared.report(&two, true);
        assert_eq!(said(address).await.0, "2");
    }
}
