//! `knarr agent`: runs a node of a cluster: kubelet, pod network, service proxy, DNS, ingress.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use knarr_client::kube::Client;
use knarr_ingress::Listeners;
use tokio::task::JoinSet;

use super::common;
use super::network::{IngressArguments, NetworkArguments, NodeNetwork};
use super::node::{self, NodeArguments, NodeFiles, Runtime};
use super::preflight;
use crate::cluster::Cluster;
use crate::join::{self, Identity, JoinToken, Pin, pem, until_reached};
use crate::ready::{self, Display, Probe};
use crate::{data_directory_lock, journal};

/// How long a node with saved cluster settings waits for the server's current ones.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Args, Clone, Debug)]
// An agent reads cluster-wide settings from the server.
#[command(mut_arg("cluster_dns", |argument| argument.hide(true)))]
#[command(mut_arg("cluster_domain", |argument| argument.hide(true)))]
pub struct Arguments {
    /// URL of the server to join, such as https://10.0.0.1:6443.
    #[arg(long, env = "KNARR_SERVER")]
    pub server: http::Uri,
    /// Token printed by `knarr token create` on the server.
    #[arg(long, env = "KNARR_TOKEN", hide_env_values = true)]
    pub token: JoinToken,
    /// Data directory.
    #[arg(long, default_value = common::DATA)]
    pub data_dir: PathBuf,
    #[command(flatten)]
    pub node: NodeArguments,
    #[command(flatten)]
    pub ingress: IngressArguments,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    check_server(&arguments.server)?;
    data_directory_lock::acquire(&arguments.data_dir)?.until_exit();
    preflight::check(&arguments.node, &arguments.data_dir, Vec::new(), Vec::new())?;
    let started = Instant::now();
    // A node that has joined before listens at once, so that connections are not refused during a restart.
    let early = Cluster::load(&arguments.data_dir).and_then(|cluster| bind_ingress(&arguments, &cluster));
    let runtime = Runtime::start(&arguments.node, &arguments.data_dir);
    let joined = tokio::select! {
        joined = join(&arguments) => joined?,
        stopped = common::stopped() => return stopped,
    };
    let ingress = early.or_else(|| bind_ingress(&arguments, &joined.cluster));
    serve(arguments, joined, ingress, runtime, started).await
}

/// Pods run without ingress as well, so a port in use is no reason to stop.
fn bind_ingress(arguments: &Arguments, cluster: &Cluster) -> Option<Listeners> {
    let bound = if cluster.ingress { arguments.ingress.bind() } else { Ok(None) };
    bound.unwrap_or_else(|error| {
        tracing::error!(
            error = &error as &dyn std::error::Error,
            "cannot listen for ingress; this node serves no ingresses"
        );
        None
    })
}

/// A host that has joined the cluster.
struct Joined {
    identity: Identity,
    /// Identity of the network components.
    network: Identity,
    cluster: Cluster,
}

async fn join(arguments: &Arguments) -> anyhow::Result<Joined> {
    let name = arguments.node.name()?;
    let authority = authority(arguments).await?;
    let directory = arguments.data_dir.join("kubelet/pki");
    let token = &arguments.token.bootstrap;
    let identity = until_reached(|| Identity::obtain(&arguments.server, &authority, token, &name, &directory)).await?;
    let network = until_reached(|| identity.network()).await?;
    let client = identity.client();
    let cluster = cluster(&client, &arguments.data_dir).await?;
    tracing::info!(server = %arguments.server, node = name, "joined");
    Ok(Joined { identity, network, cluster })
}

/// The cluster-wide settings, from the server; a node that has joined before can start without it.
async fn cluster(client: &Client, data: &Path) -> anyhow::Result<Cluster> {
    let known = Cluster::load(data);
    let current = async { until_reached(|| Cluster::read(client)).await };
    let cluster = match (known, current) {
        (None, current) => current.await?,
        (Some(known), current) => match tokio::time::timeout(SETTINGS_TIMEOUT, current).await {
            Ok(current) => current?,
            Err(_) => return Ok(known),
        },
    };
    cluster.save(data)?;
    Ok(cluster)
}

/// Runs the node until the process is stopped. Pods keep running after that.
async fn serve(
    mut arguments: Arguments,
    joined: Joined,
    ingress: Option<Listeners>,
    runtime: Runtime,
    started: Instant,
) -> anyhow::Result<()> {
    let Joined { identity, network: network_identity, cluster } = joined;
    arguments.node.cluster_dns = cluster.dns;
    arguments.node.cluster_domain = cluster.domain;
    let network = NetworkArguments {
        cluster_cidr: cluster.pod_networks,
        load_balancer_pool: cluster.load_balancers,
        dns_upstream: cluster.dns_upstreams,
        dns_stub_domain: cluster.dns_stub_domains,
        ingress: arguments.ingress.clone(),
    };
    let (client, network_client) = (identity.client(), network_identity.client());
    let mut tasks = JoinSet::new();
    tasks.spawn(identity.keep());
    tasks.spawn(network_identity.keep());
    tasks.spawn(journal::upload(client.clone()));
    let parts = NodeNetwork { node: &arguments.node, network: &network, data: &arguments.data_dir, ingress };
    parts.start(network_client, client.clone(), &mut tasks)?;
    tasks.spawn(report_when_ready(client.clone(), arguments.clone(), started));
    let shutdown = async {
        if let Err(error) = common::stopped().await {
            tracing::error!(%error, "cannot listen for signals");
        }
    };
    let files = NodeFiles { client_ca: authority_file(&arguments), serving: None };
    let ended = node::run(client, &arguments.node, &arguments.data_dir, files, runtime, shutdown).await;
    tasks.shutdown().await;
    ended
}

async fn report_when_ready(client: Client, arguments: Arguments, started: Instant) {
    let name = common::node_name(arguments.node.node_name.as_deref()).unwrap_or_default();
    let mut display = Display::new(format!("This host is node {name} of {}.", arguments.server));
    let mut probes = vec![Probe::node(client, name)];
    probes
        .extend(arguments.node.cluster_dns.first().map(|address| Probe::dns(*address, &arguments.node.cluster_domain)));
    ready::wait(probes, started, &mut display).await;
}

fn authority_file(arguments: &Arguments) -> PathBuf {
    arguments.data_dir.join("pki/ca.crt")
}

fn check_server(server: &http::Uri) -> anyhow::Result<()> {
    if server.scheme_str() != Some("https") || server.host().is_none() {
        bail!("--server is {server}, expected the form https://HOST:6443");
    }
    Ok(())
}

/// The certificate authority of the cluster (DER), from the file if it matches the pin, else from the server.
async fn authority(arguments: &Arguments) -> anyhow::Result<Vec<u8>> {
    let pin = arguments.token.pin;
    let file = authority_file(arguments);
    if let Ok(pem) = std::fs::read(&file)
        && let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(&pem)
        && Pin::of(&pem.contents).is_ok_and(|found| found == pin)
    {
        return Ok(pem.contents);
    }
    let authority = until_reached(|| join::fetch_authority(&arguments.server, pin)).await?;
    let text = pem(&authority);
    let directory = file.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(authority)
}
