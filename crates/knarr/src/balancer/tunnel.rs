//! Opens a tunnel from this node to each server, so that servers reach its kubelet and pods though they could not connect.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use http::header::{CONNECTION, HOST, UPGRADE};
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use knarr_client::k8s_openapi::api::core::v1::Node;
use knarr_client::kube::{Api, Client};
use knarr_kubelet::certificates::{self, Purpose};
use knarr_network::cidr::Cidr;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use super::Shared;

const LIST_INTERVAL: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// A tunnel that lasted this long is opened again without delay.
const STABLE: Duration = Duration::from_secs(30);
/// Pod networks of a node hardly ever change.
const GATE_INTERVAL: Duration = Duration::from_secs(60);

/// How this node connects to servers.
#[derive(Clone)]
pub struct TunnelSettings {
    pub client: Client,
    pub node: String,
    /// The directory of the node's certificate.
    pub certificates: PathBuf,
    /// The authorities of the servers (DER).
    pub authorities: Vec<Vec<u8>>,
}

/// Keeps a tunnel to each server until dropped.
pub(super) async fn keep(shared: Arc<Shared>, settings: TunnelSettings) {
    let gate =
        Arc::new(NodeGate { client: settings.client.clone(), node: settings.node.clone(), known: Mutex::default() });
    let mut tunnels: HashMap<String, AbortHandle> = HashMap::new();
    let mut tasks = JoinSet::new();
    loop {
        let servers = shared.servers.lock().all();
        tunnels.retain(|server, task| {
            let stays = servers.contains(server) && !task.is_finished();
            if !stays {
                task.abort();
            }
            stays
        });
        for server in servers {
            let (settings, gate) = (settings.clone(), gate.clone());
            let keep = |server| knarr_supervisor::inherit(keep_one(server, settings, gate));
            tunnels.entry(server.clone()).or_insert_with(|| tasks.spawn(keep(server)));
        }
        // One that panicked is started again in the next round.
        while tasks.try_join_next().is_some() {}
        sleep(LIST_INTERVAL).await;
    }
}

async fn keep_one(server: String, settings: TunnelSettings, gate: Arc<NodeGate>) {
    let mut backoff = INITIAL_BACKOFF;
    loop {
        let started = Instant::now();
        match run(&server, &settings, &gate).await {
            Ok(()) => tracing::debug!(server, "the tunnel to a server ended"),
            Err(error) => tracing::debug!(server, error = format!("{error:#}"), "no tunnel to a server"),
        }
        backoff = if started.elapsed() >= STABLE { INITIAL_BACKOFF } else { (backoff * 2).min(MAX_BACKOFF) };
        sleep(backoff).await;
    }
}

/// Opens a tunnel and serves it until it ends.
async fn run(server: &str, settings: &TunnelSettings, gate: &Arc<NodeGate>) -> anyhow::Result<()> {
    let opened = timeout(CONNECT_TIMEOUT, open(server, settings)).await;
    let connection = opened.context("the server does not respond")??;
    tracing::info!(server, "opened a tunnel to a server");
    knarr_tunnel::serve(TokioIo::new(connection), gate.clone()).await.context("the tunnel failed")
}

async fn open(server: &str, settings: &TunnelSettings) -> anyhow::Result<hyper::upgrade::Upgraded> {
    let stream = TcpStream::connect(server).await.with_context(|| format!("cannot reach {server}"))?;
    stream.set_nodelay(true)?;
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host).trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(host).context("not the name of a server")?;
    let connected = TlsConnector::from(tls(settings)?).connect(name, stream).await.context("no TLS connection")?;
    let (mut sender, driver) = http1::handshake(TokioIo::new(connected)).await?;
    knarr_supervisor::spawn(async move {
        if let Err(error) = driver.with_upgrades().await {
            tracing::debug!(%error, "the connection of a tunnel failed");
        }
    });
    let request = Request::get(knarr_tunnel::PATH)
        .header(HOST, server)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, knarr_tunnel::PROTOCOL)
        .body(Empty::<bytes::Bytes>::new())?;
    let response = sender.send_request(request).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        bail!("the server responds {} to the request for a tunnel", response.status());
    }
    Ok(hyper::upgrade::on(response).await?)
}

/// The node's current certificate, and HTTP/1.1, which can be upgraded.
fn tls(settings: &TunnelSettings) -> anyhow::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for authority in &settings.authorities {
        roots.add(CertificateDer::from(authority.clone())).context("an authority is invalid")?;
    }
    let files = certificates::files(&settings.certificates, &Purpose::Client);
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(&files.certificate).context("cannot read the node's certificate")?.collect();
    let key = PrivateKeyDer::from_pem_file(&files.key).context("cannot read the node's key")?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain.context("the node's certificate is invalid")?, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Lets servers reach the kubelet and the pods of this node, and nothing else.
struct NodeGate {
    client: Client,
    node: String,
    known: Mutex<Option<(Instant, Allowed)>>,
}

/// What servers may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Allowed {
    kubelet: Vec<SocketAddr>,
    pods: Vec<Cidr>,
}

impl Allowed {
    fn of(node: &Node) -> Self {
        let status = node.status.clone().unwrap_or_default();
        let endpoint = status.daemon_endpoints.and_then(|endpoints| endpoints.kubelet_endpoint);
        let port = endpoint.and_then(|endpoint| u16::try_from(endpoint.port).ok());
        let addresses = status.addresses.unwrap_or_default();
        let addresses = addresses.iter().filter_map(|address| address.address.parse::<IpAddr>().ok());
        let kubelet = addresses.filter_map(|address| Some(SocketAddr::new(address, port?))).collect();
        let networks = node.spec.as_ref().and_then(|spec| spec.pod_cidrs.clone()).unwrap_or_default();
        Self { kubelet, pods: networks.iter().filter_map(|network| network.parse().ok()).collect() }
    }

    fn contains(&self, address: SocketAddr) -> bool {
        self.kubelet.contains(&address) || self.pods.iter().any(|network| network.contains(address.ip()))
    }
}

impl knarr_tunnel::Gate for NodeGate {
    async fn allows(&self, address: SocketAddr) -> bool {
        let known = self.known.lock().clone();
        if let Some((at, allowed)) = &known
            && (allowed.contains(address) || at.elapsed() < Duration::from_secs(1))
            && at.elapsed() < GATE_INTERVAL
        {
            return allowed.contains(address);
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        match nodes.get(&self.node).await {
            Ok(node) => {
                let allowed = Allowed::of(&node);
                let is_allowed = allowed.contains(address);
                *self.known.lock() = Some((Instant::now(), allowed));
                is_allowed
            }
            Err(error) => {
                tracing::debug!(%error, "cannot read this node's addresses");
                known.is_some_and(|(_, allowed)| allowed.contains(address))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn servers_reach_the_kubelet_and_pods_of_the_node_only() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {"podCIDR": "10.42.1.0/24", "podCIDRs": ["10.42.1.0/24", "fd42:1::/64"]},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}, {"type": "Hostname", "address": "a"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            },
        }))
        .unwrap();
        let allowed = Allowed::of(&node);
        for (address, is_allowed) in [
            ("10.0.0.7:10250", true),
            ("10.0.0.7:22", false),
            ("10.0.0.8:10250", false),
            ("127.0.0.1:10250", false),
            ("10.42.1.9:8443", true),
            ("10.42.2.9:8443", false),
            ("[fd42:1::3]:80", true),
            ("[fd42:2::3]:80", false),
        ] {
            assert_eq!(allowed.contains(address.parse().unwrap()), is_allowed, "{address}");
        }
        assert_eq!(Allowed::of(&Node::default()), Allowed::default());
    }
}
