//! Opens a tunnel from this node to each server, so that servers reach its kubelet and pods even where they cannot connect to
//! the node.

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
use knarr_tunnel::Gate;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use super::Shared;

/// How often the list of servers and the node's certificate are read.
const LIST_INTERVAL: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// A tunnel that was open for this long is reopened with the initial backoff.
const STABLE: Duration = Duration::from_secs(30);
/// How long the known addresses of the node are used. Its pod networks hardly ever change.
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

/// Maintains a tunnel to each server until dropped.
pub(super) async fn maintain(shared: Arc<Shared>, settings: TunnelSettings) {
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
            let task = |server| knarr_supervisor::inherit(maintain_one(server, settings, gate));
            tunnels.entry(server.clone()).or_insert_with(|| tasks.spawn(task(server)));
        }
        // A task that panicked is restarted in the next round.
        while tasks.try_join_next().is_some() {}
        sleep(LIST_INTERVAL).await;
    }
}

/// Maintains a tunnel to a server. When the node gets a new certificate, another tunnel is opened with it. Connections through
/// the previous tunnel continue until they are closed or the old certificate expires.
async fn maintain_one(server: String, settings: TunnelSettings, gate: Arc<impl Gate>) {
    let mut backoff = INITIAL_BACKOFF;
    // The previous tunnel; dropping it closes it.
    let mut _replaced: Option<Tunnel> = None;
    loop {
        let started = Instant::now();
        let certificate = own_certificate(&settings);
        match timeout(CONNECT_TIMEOUT, open(&server, &settings)).await.context("the server does not respond").flatten()
        {
            Ok(connection) => {
                tracing::info!(server, "opened a tunnel to a server");
                let mut tunnel = Tunnel::serve(connection, gate.clone());
                tokio::select! {
                    () = tunnel.ended() => tracing::debug!(server, "the tunnel to a server ended"),
                    () = replaced(certificate, &settings) => {
                        _replaced = Some(tunnel);
                        continue;
                    }
                }
            }
            Err(error) => tracing::debug!(server, error = format!("{error:#}"), "no tunnel to a server"),
        }
        backoff = if started.elapsed() >= STABLE { INITIAL_BACKOFF } else { (backoff * 2).min(MAX_BACKOFF) };
        sleep(backoff).await;
    }
}

/// An open tunnel, until it is dropped.
struct Tunnel(JoinHandle<()>);

impl Tunnel {
    fn serve(connection: hyper::upgrade::Upgraded, gate: Arc<impl Gate>) -> Tunnel {
        Tunnel(knarr_supervisor::spawn(async move {
            if let Err(error) = knarr_tunnel::serve(TokioIo::new(connection), gate).await {
                tracing::debug!(%error, "a tunnel to a server failed");
            }
        }))
    }

    async fn ended(&mut self) {
        // The supervisor has logged a panic.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The bytes of the node's current certificate; `None` if it cannot be read.
fn own_certificate(settings: &TunnelSettings) -> Option<Vec<u8>> {
    std::fs::read(certificates::files(&settings.certificates, &Purpose::Client).certificate).ok()
}

/// Waits until the node has another certificate than this one.
async fn replaced(certificate: Option<Vec<u8>>, settings: &TunnelSettings) {
    loop {
        sleep(LIST_INTERVAL).await;
        let current = own_certificate(settings);
        if current.is_some() && current != certificate {
            return;
        }
    }
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

impl Gate for NodeGate {
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
    use http::Response;
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use knarr_apiserver::pki::{self, Pki};
    use knarr_client::kube::Config;
    use knarr_tunnel::{Dial, Tunnels};
    use serde_json::json;
    use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
    use tokio::sync::oneshot;

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

    /// Sends back what it receives.
    async fn echo() -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
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

    struct Everywhere;

    impl Gate for Everywhere {
        async fn allows(&self, _: SocketAddr) -> bool {
            true
        }
    }

    /// A server whose tunnels end, oldest first, when the channel says so.
    async fn server(pki: &Pki, tunnels: Arc<Tunnels>, mut ends: Vec<oneshot::Receiver<()>>) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let acceptor = tokio_rustls::TlsAcceptor::from(pki.serving.config());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let stream = acceptor.accept(stream).await.unwrap();
                let (tunnels, end) = (tunnels.clone(), Mutex::new(Some(ends.remove(0))));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (tunnels, end) = (tunnels.clone(), end.lock().take().unwrap());
                    tokio::spawn(async move {
                        let upgraded = hyper::upgrade::on(request).await.unwrap();
                        tunnels.run("a", TokioIo::new(upgraded), async move { drop(end.await) }).await;
                    });
                    let response = Response::builder()
                        .status(StatusCode::SWITCHING_PROTOCOLS)
                        .header(CONNECTION, "Upgrade")
                        .header(UPGRADE, knarr_tunnel::PROTOCOL)
                        .body(Empty::<bytes::Bytes>::new());
                    std::future::ready(response)
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .with_upgrades(),
                );
            }
        });
        address
    }

    async fn until(tunnels: &Tunnels, count: usize) {
        let reached = async {
            while tunnels.count("a") != count {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(120), reached).await.unwrap_or_else(|_| panic!("{count} tunnels"));
    }

    async fn talk(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> bool {
        let mut received = [0; 4];
        let said = async {
            stream.write_all(b"ping").await?;
            stream.read_exact(&mut received).await
        };
        said.await.is_ok_and(|_| received == *b"ping")
    }

    #[tokio::test]
    async fn a_new_certificate_opens_a_tunnel_and_ends_none() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(&directory.path().join("pki"), Default::default(), jiff::Timestamp::now()).unwrap();
        let authority = CertificateDer::from_pem_slice(pki.authority.certificate.as_bytes()).unwrap().to_vec();
        let settings = TunnelSettings {
            client: Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap(),
            node: "a".to_owned(),
            certificates: directory.path().to_owned(),
            authorities: vec![authority],
        };
        let write_certificate = || {
            let purpose = pki::Purpose::Client { user: "system:node:a".into(), group: "system:nodes".into() };
            let leaf = pki.authority.sign(&purpose, jiff::Timestamp::now()).unwrap();
            let files = certificates::files(directory.path(), &Purpose::Client);
            std::fs::write(files.key, leaf.key).unwrap();
            std::fs::write(files.certificate, leaf.certificate).unwrap();
        };
        write_certificate();
        let (tunnels, target) = (Arc::new(Tunnels::default()), echo().await);
        let (ends, received): (Vec<_>, Vec<_>) = (0..8).map(|_| oneshot::channel()).unzip();
        let mut ends = ends.into_iter();
        let server = server(&pki, tunnels.clone(), received).await;
        let keeping = tokio::spawn(maintain_one(server, settings, Arc::new(Everywhere)));
        until(&tunnels, 1).await;
        let Dial::Open(mut old) = tunnels.dial("a", target).await else { panic!("no connection") };
        assert!(talk(&mut old).await);
        write_certificate();
        until(&tunnels, 2).await;
        assert!(talk(&mut old).await, "what runs goes on");
        // The old certificate expires.
        drop(ends.next());
        until(&tunnels, 1).await;
        assert!(!talk(&mut old).await);
        let Dial::Open(mut new) = tunnels.dial("a", target).await else { panic!("no connection") };
        assert!(talk(&mut new).await);
        keeping.abort();
    }
}
