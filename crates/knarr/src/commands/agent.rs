//! `knarr agent`: runs a node of a cluster: kubelet, pod network, service proxy, DNS, ingress.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use knarr_client::kube::Client;
use knarr_ingress::Listeners;
use knarr_supervisor::{Registry, Supervisor};

use super::common;
use super::disable::{self, BuiltIn};
use super::network::{IngressArguments, NetworkArguments, NodeNetwork};
use super::node::{self, NodeArguments, NodeFiles, Runtime};
use super::preflight;
use super::storage::NodeStorage;
use crate::address::{own_address, restart_when_moved};
use crate::balancer::{Balancer, TunnelSettings};
use crate::cluster::Cluster;
use crate::join::{self, Identity, JoinToken, Trust, until_reached};
use crate::ready::{self, Display, Probe};
use crate::{data_directory_lock, journal, signals};

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
    #[arg(long, default_value = common::DATA, value_parser = crate::paths::absolute())]
    pub data_dir: PathBuf,
    #[command(flatten)]
    pub node: NodeArguments,
    #[command(flatten)]
    pub ingress: IngressArguments,
}

pub async fn run(mut arguments: Arguments) -> anyhow::Result<()> {
    check_server(&arguments.server)?;
    disable::apply(&mut arguments.node, Some(&mut arguments.ingress));
    arguments.node.set_service_defaults(crate::service::is_own_process());
    data_directory_lock::acquire(&arguments.data_dir)?.until_exit();
    crate::upgrade::record(&arguments.data_dir);
    preflight::check(&arguments.node, &arguments.data_dir, Vec::new(), Vec::new())?;
    let started = Instant::now();
    // A node that has joined before listens at once, so that connections are not refused during a restart.
    let early = Cluster::load(&arguments.data_dir).and_then(|cluster| bind_ingress(&arguments, &cluster));
    let supervisor = Supervisor::new(&Registry::default());
    let runtime = Runtime::start(&arguments.node, &arguments.data_dir, supervisor.registry());
    let joined = tokio::select! {
        joined = join(&arguments, &supervisor) => joined?,
        stopped = signals::stopped() => return stopped,
    };
    let ingress = early.or_else(|| bind_ingress(&arguments, &joined.cluster));
    let ended = serve(arguments, joined, ingress, runtime, started, &supervisor).await;
    supervisor.shutdown().await;
    ended
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
    /// How all components reach the servers.
    balancer: Balancer,
    /// The cluster's certificate authorities (DER).
    authorities: Vec<Vec<u8>>,
    identity: Identity,
    /// Identity of the network components.
    network: Identity,
    cluster: Cluster,
}

async fn join(arguments: &Arguments, supervisor: &Supervisor) -> anyhow::Result<Joined> {
    let name = arguments.node.name()?;
    let trust = trust(arguments);
    let authorities = authorities(arguments, &trust).await?;
    let authority_file = trust.file();
    let directory = arguments.data_dir.join("kubelet/pki");
    let token = &arguments.token.bootstrap;
    let balancer = Balancer::start(&arguments.server, &authorities, &arguments.data_dir, &name, supervisor).await?;
    let server = balancer.url()?;
    let identity =
        until_reached(|| Identity::obtain(&server, &authorities, token, &name, &directory, &authority_file)).await?;
    let network = until_reached(|| identity.network()).await?;
    let client = identity.client();
    let cluster = cluster(&client, &arguments.data_dir).await?;
    tracing::info!(server = %arguments.server, node = name, "joined");
    Ok(Joined { balancer, authorities, identity, network, cluster })
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
    supervisor: &Supervisor,
) -> anyhow::Result<()> {
    let Joined { balancer, authorities, identity, network: network_identity, cluster } = joined;
    let balancer = Arc::new(balancer);
    arguments.node.cluster_dns = cluster.dns;
    arguments.node.cluster_domain = cluster.domain;
    arguments.node.disable.add(&cluster.disabled);
    let network = NetworkArguments {
        cluster_cidr: cluster.pod_networks,
        load_balancer_pool: cluster.load_balancers,
        dns_upstream: cluster.dns_upstreams,
        dns_stub_domain: cluster.dns_stub_domains,
        ingress: arguments.ingress.clone(),
    };
    let (client, network_client) = (identity.client(), network_identity.client());
    let plugins = arguments.node.resources.plugin_root(&arguments.data_dir);
    let (name, data) = (arguments.node.name()?, &*arguments.data_dir);
    let eviction = &arguments.node.eviction.eviction()?;
    let storage = NodeStorage { arguments: &arguments.node.storage, node: &name, data, plugin_root: plugins, eviction };
    storage.start_with_certificate(&identity, supervisor);
    supervisor.restart("node-certificate", move || identity.clone().keep());
    supervisor.restart("network-certificate", move || network_identity.clone().keep());
    {
        let settings = TunnelSettings {
            client: client.clone(),
            node: name.clone(),
            certificates: arguments.data_dir.join("kubelet/pki"),
            authorities,
        };
        let balancer = Arc::clone(&balancer);
        supervisor.restart("tunnels", move || balancer.keep_tunnels(settings.clone()));
    }
    {
        let client = network_client.clone();
        supervisor.restart("server-list", move || balancer.learn(client.clone()));
    }
    {
        let (client, name, pin) = (client.clone(), name.clone(), arguments.token.pin);
        let trust = trust(&arguments);
        supervisor.restart("trust", move || join::keep_trust(client.clone(), name.clone(), trust.clone(), Some(pin)));
    }
    if arguments.node.node_ip.is_none() {
        let own = own_address();
        supervisor.restart("address", move || restart_when_moved(own));
    }
    journal::start_upload(supervisor, &client);
    let network = NodeNetwork { node: &arguments.node, network: &network, data: &arguments.data_dir, ingress };
    network.start(network_client, client.clone(), supervisor)?;
    {
        let (client, arguments) = (client.clone(), arguments.clone());
        supervisor.complete("readiness-report", move || report_when_ready(client.clone(), arguments.clone(), started));
    }
    let shutdown = async {
        if let Err(error) = signals::stopped().await {
            tracing::error!(%error, "cannot listen for signals");
        }
    };
    let files = NodeFiles { client_ca: Some(trust(&arguments).file()), ..NodeFiles::default() };
    let node = node::run(client, &arguments.node, &arguments.data_dir, files, runtime, shutdown);
    common::supervised(supervisor, "kubelet", node).await
}

async fn report_when_ready(client: Client, arguments: Arguments, started: Instant) {
    let name = common::node_name(arguments.node.node_name.as_deref()).unwrap_or_default();
    let mut display = Display::new(format!("This host is node {name} of {}.", arguments.server));
    let mut probes = vec![Probe::node(client, name)];
    let dns = arguments.node.cluster_dns.first().filter(|_| !arguments.node.disable.has(BuiltIn::Dns));
    probes.extend(dns.map(|address| Probe::dns(*address, &arguments.node.cluster_domain)));
    ready::wait(&probes, started, &mut display).await;
}

fn check_server(server: &http::Uri) -> anyhow::Result<()> {
    if server.scheme_str() != Some("https") || server.host().is_none() {
        bail!("--server is {server}, expected the form https://HOST:6443");
    }
    Ok(())
}

fn trust(arguments: &Arguments) -> Trust {
    Trust::of(&arguments.data_dir, &arguments.node.resources.plugin_root(&arguments.data_dir))
}

/// The certificate authorities of the cluster (DER), from the file if it is of the token's cluster, else from the server.
async fn authorities(arguments: &Arguments, trust: &Trust) -> anyhow::Result<Vec<Vec<u8>>> {
    let pin = arguments.token.pin;
    if let Some(known) = trust.load(pin) {
        return Ok(known);
    }
    let authority = until_reached(|| join::fetch_authority(&arguments.server, pin)).await?;
    trust.save(&authority)?;
    Ok(vec![authority])
}
