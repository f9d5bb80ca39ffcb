//! `knarr server`: control plane and node in one process. The components talk to the API server inside this process, each as
//! the user it would be outside.

mod components;
mod identities;
mod readiness;
mod shared_store;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use knarr_apiserver::startup;
use knarr_client::Fence;
use knarr_ingress::Listeners;
use knarr_network::cidr::Cidr;
use knarr_supervisor::{Registry, Supervisor};
use tokio::sync::watch;

use super::disable::{self, BuiltIn};
use super::network::{NetworkArguments, NodeNetwork};
use super::node::{Network, NodeArguments, Runtime};
use super::snapshot_storage::LocalSnapshot;
use super::storage::NodeStorage;
use super::{apiserver, preflight};
use crate::address::{ensure_address, restart_when_moved};
use crate::check::{CheckPlan, Listen};
use crate::cluster;
use crate::join::ClusterInfo;
use crate::servers::{self, ServersArguments, SharedSettings, ThisServer};
use crate::{data_directory_lock, join, restart, service, signals};
use components::Components;
use shared_store::SharedStore;

#[derive(Args, Clone, Debug)]
#[group(id = "server-arguments")]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(flatten)]
    pub apiserver: apiserver::Arguments,
    #[command(flatten)]
    pub node: NodeArguments,
    #[command(flatten)]
    pub network: NetworkArguments,
    #[command(flatten)]
    pub servers: ServersArguments,
    #[command(subcommand)]
    command: Option<ServerCommand>,
    /// Run only the control plane, without a node on this host.
    #[arg(long)]
    pub disable_agent: bool,
    /// A KubeSchedulerConfiguration file; the client and leader election are the server's.
    #[arg(long, value_name = "FILE")]
    pub scheduler_config: Option<PathBuf>,
    /// Install charts from HelmChart objects, with the Helm program of this host.
    #[arg(long)]
    pub helm_controller: bool,
}

#[derive(Subcommand, Clone, Debug)]
enum ServerCommand {
    /// Remove a server from the cluster.
    Remove(servers::RemoveArguments),
}

pub async fn run(mut arguments: Arguments) -> anyhow::Result<()> {
    if let Some(ServerCommand::Remove(removal)) = arguments.command.take() {
        return servers::remove(removal).await;
    }
    let started = Instant::now();
    set_defaults(&mut arguments);
    let data = arguments.apiserver.data_dir.clone();
    data_directory_lock::acquire(&data)?.until_exit();
    crate::upgrade::record(&data);
    if arguments.servers.cluster_reset {
        return reset(&arguments).await;
    }
    let this = arguments.this_server()?;
    let member = tokio::select! {
        member = servers::configure(&this) => member?,
        stopped = signals::stopped() => return stopped,
    };
    arguments.apply_shared_settings()?;
    preflight(&arguments)?;
    if arguments.node.node_ip.is_none() {
        ensure_address().await;
    }
    let ingress = if arguments.disable_agent { None } else { arguments.network.ingress.bind()? };
    // The container runtime takes longest to start: it starts in parallel with the API server.
    let registry = Registry::default();
    let runtime = (!arguments.disable_agent).then(|| Runtime::start(&arguments.node, &data, &registry));
    let shared = tokio::select! {
        shared = SharedStore::open(&arguments, member) => shared?,
        stopped = signals::stopped() => return stopped,
    };
    let scheduler = super::scheduler::read_configuration(arguments.scheduler_config.as_deref())?;
    let running = apiserver::start(&arguments.apiserver, shared.store(), &registry).await?;
    let components = Components {
        server: running.started.server.clone(),
        arguments: arguments.clone(),
        scheduler,
        fence: Fence::always_open(),
    };
    components.cluster().save(&data)?;
    startup::ensure_policy(&components.server, join::component_policy()).await?;
    let (stop, stopped) = watch::channel(false);
    let supervisor = Supervisor::new(&registry);
    let elections = components.elections(&shared)?;
    components.elect_control_plane(&elections, &running, &supervisor);
    let node = runtime.map(|runtime| components.node(runtime, stopped.clone())).transpose()?;
    // The network's permissions exist only after this.
    let info = ClusterInfo {
        server: format!("https://{}", running.advertised),
        authority: running.pki.authority.certificate.clone(),
    };
    let setup = components.component(join::CLUSTER_SETUP, "knarr");
    join::ensure_objects(&setup, &components.cluster(), &info)
        .await
        .context("cannot create the cluster's initial objects")?;
    if !arguments.node.storage.disable_local_storage {
        join::ensure_local_storage(&setup).await.context("cannot create the local StorageClass")?;
    }
    if node.is_some() {
        start_network_and_storage(&components, ingress, &supervisor)?;
    }
    components.elect_network(&elections, &supervisor);
    components.admit_servers(&shared, &running, &supervisor).await?;
    components.start_manifests(&supervisor);
    if arguments.apiserver.advertise_address.is_none() && arguments.node.node_ip.is_none() {
        let own = running.advertised.ip();
        supervisor.restart("address", move || restart_when_moved(own));
    }
    components.report_when_ready(started, &supervisor)?;
    if let Some(node) = node {
        supervisor.essential("kubelet", node);
    }
    let ended = tokio::select! {
        ended = signals::stopped_or_failed(&registry) => ended,
        removed = shared.removed() => Err(removed),
    };
    // systemd would wait for the end of a service that restarts itself.
    if !restart::is_requested() {
        service::notify("STOPPING=1");
        if ended.is_ok() {
            running.drain(&arguments.apiserver.behaviour).await;
        }
    }
    supervisor.expect_stop();
    stop.send_replace(true);
    supervisor.shutdown().await;
    running.stop().await;
    shared.close().await;
    ended
}

/// Makes this server the only one of its cluster.
async fn reset(arguments: &Arguments) -> anyhow::Result<()> {
    servers::check_program()?;
    let Arguments { apiserver, servers: flags, .. } = arguments;
    // Before anything is changed: the storage may be unreachable.
    let snapshot = match &flags.cluster_reset_restore_path {
        Some(place) => Some(apiserver.snapshots.storage.fetch(place, &apiserver.data_dir).await?),
        None => None,
    };
    servers::reset(&arguments.this_server()?, snapshot.as_ref().map(LocalSnapshot::path)).await
}

impl Arguments {
    /// What servers of one cluster need to know of each other.
    fn this_server(&self) -> anyhow::Result<ThisServer> {
        let apiserver = &self.apiserver;
        Ok(ThisServer {
            name: self.node.name()?,
            data: apiserver.data_dir.clone(),
            store: apiserver.store_dir.clone().unwrap_or_else(|| apiserver.data_dir.join("store")),
            datastore: apiserver.datastore.clone(),
            given_address: apiserver.advertise_address.or(self.node.node_ip),
            encryption: apiserver.encryption_provider_config.clone(),
            service_ranges: apiserver.service_cluster_ip_range.clone(),
            flags: self.servers.clone(),
        })
    }

    /// Makes a server that has joined use the settings of its cluster, whatever its own flags say.
    fn apply_shared_settings(&mut self) -> anyhow::Result<()> {
        let data = self.apiserver.data_dir.clone();
        if self.apiserver.encryption_provider_config.is_none() {
            self.apiserver.encryption_provider_config = servers::received_encryption(&data);
        }
        let Some(SharedSettings { service_ranges, cluster }) = servers::shared_settings(&data)? else { return Ok(()) };
        self.apiserver.service_cluster_ip_range = service_ranges;
        self.network.cluster_cidr = cluster.pod_networks;
        self.node.cluster_dns = cluster.dns;
        self.node.cluster_domain = cluster.domain;
        self.network.load_balancer_pool = cluster.load_balancers;
        self.network.dns_upstream = cluster.dns_upstreams;
        self.network.dns_stub_domain = cluster.dns_stub_domains;
        Ok(())
    }
}

/// Sets what depends on other flags and on how this process was started.
fn set_defaults(arguments: &mut Arguments) {
    disable::apply(&mut arguments.node, Some(&mut arguments.network.ingress));
    arguments.apiserver.resource_metrics = !arguments.node.disable.has(BuiltIn::Metrics);
    if arguments.node.cluster_dns.is_empty() {
        arguments.node.cluster_dns = cluster::dns_addresses(&arguments.apiserver.service_cluster_ip_range);
    }
    arguments.node.set_service_defaults(service::is_own_process());
}

/// Starts the network and the storage of this node.
fn start_network_and_storage(
    components: &Components,
    ingress: Option<Listeners>,
    supervisor: &Supervisor,
) -> anyhow::Result<()> {
    let Arguments { apiserver, node, network, .. } = &components.arguments;
    let data = &apiserver.data_dir;
    let client = components.client(components.node_user()?, "knarr-network");
    NodeNetwork { node, network, data, ingress }.start(components.node_network()?, client, supervisor)?;
    let (name, eviction) = (node.name()?, node.eviction.eviction()?);
    let plugin_root = node.resources.plugin_root(data);
    let storage = NodeStorage { arguments: &node.storage, node: &name, data, plugin_root, eviction: &eviction };
    storage.start(components.node_storage()?, supervisor);
    Ok(())
}

/// Checks the requirements of all components.
fn preflight(arguments: &Arguments) -> anyhow::Result<()> {
    let api = Listen { what: "the API server", address: arguments.apiserver.listen, flag: "--listen" };
    let mut listens = vec![api];
    if arguments.disable_agent {
        let data = arguments.apiserver.data_dir.clone();
        return preflight::verify(&CheckPlan {
            data,
            runs_pods: false,
            own_runtime: false,
            listens,
            networks: Vec::new(),
        });
    }
    listens.extend(arguments.network.ingress.listens());
    let services = &arguments.apiserver.service_cluster_ip_range;
    let mut networks: Vec<Cidr> = services.iter().filter_map(|range| range.parse().ok()).collect();
    // Another network plugin may have its interface there.
    if arguments.node.network == Network::Knarr {
        networks.extend(&arguments.network.cluster_cidr);
    }
    preflight::check(&arguments.node, &arguments.apiserver.data_dir, listens, networks)
}
