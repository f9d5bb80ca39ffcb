//! The network part of a node, alike in `knarr server` and on every other node: pod network, service proxy, policies, DNS,
//! load balancers' addresses and ingress.

use std::net::SocketAddr;
use std::path::Path;

use clap::Args;
use knarr_client::kube::Client;
use knarr_client::{Informers, node_network};
use knarr_dns::{StubDomain, Upstream};
use knarr_ingress::{Addresses, IngressError, Listeners};
use knarr_network::cidr::Cidr;
use knarr_network::{load_balancer, pod_network, policy, proxy};
use tokio::task::JoinSet;

use super::node::{Network, NodeArguments};
use crate::check::Listen;

/// The network of all pods, unless another is named.
pub const PODS: &str = "10.244.0.0/16";

/// The interface that this node's pods hang on.
pub const BRIDGE: &str = "knarr0";

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Network")]
pub struct NetworkArguments {
    /// Networks of all pods, at most one of each family; nodes get their part of them.
    #[arg(long, value_delimiter = ',', default_value = PODS)]
    pub cluster_cidr: Vec<Cidr>,
    /// Networks from which services of type LoadBalancer get addresses; without any they share the node's address.
    #[arg(long, value_delimiter = ',')]
    pub load_balancer_pool: Vec<Cidr>,
    /// Resolvers for names outside the cluster; those of each machine's /etc/resolv.conf when not given.
    #[arg(long, value_delimiter = ',')]
    pub dns_upstream: Vec<Upstream>,
    /// Resolvers for single domains, such as corp.example=10.0.0.1; several for one domain are asked in turn.
    #[arg(long, value_delimiter = ',')]
    pub dns_stub_domain: Vec<StubDomain>,
    #[command(flatten)]
    pub ingress: IngressArguments,
}

#[derive(Args, Clone, Debug)]
pub struct IngressArguments {
    /// Addresses on which ingresses answer HTTP.
    #[arg(long, value_delimiter = ',', default_value = "0.0.0.0:80")]
    pub ingress_http: Vec<SocketAddr>,
    /// Addresses on which ingresses answer HTTPS.
    #[arg(long, value_delimiter = ',', default_value = "0.0.0.0:443")]
    pub ingress_https: Vec<SocketAddr>,
    /// Run no ingress controller.
    #[arg(long)]
    pub disable_ingress: bool,
}

impl IngressArguments {
    /// What must be free for it.
    pub fn listens(&self) -> Vec<Listen> {
        let all = [("--ingress-http", &self.ingress_http), ("--ingress-https", &self.ingress_https)];
        let listens = all.into_iter().flat_map(|(flag, addresses)| {
            addresses.iter().map(move |address| Listen { what: "ingress", address: *address, flag })
        });
        if self.disable_ingress { Vec::new() } else { listens.collect() }
    }

    /// Listens for ingresses, unless there are to be none. Connections wait from then on until all else has started.
    pub fn bind(&self) -> Result<Option<Listeners>, IngressError> {
        let addresses = Addresses { http: self.ingress_http.clone(), https: self.ingress_https.clone() };
        (!self.disable_ingress).then(|| addresses.bind()).transpose()
    }
}

/// One node's network, to be started once.
pub struct NodeNetwork<'a> {
    pub node: &'a NodeArguments,
    pub network: &'a NetworkArguments,
    pub data: &'a Path,
    /// Where ingresses are served, if they are.
    pub ingress: Option<Listeners>,
}

impl NodeNetwork<'_> {
    /// Starts all components; they end with the set of tasks. They read as the node's network (`client`) and write the
    /// Node as the node itself (`node`).
    pub fn start(self, client: Client, node: Client, tasks: &mut JoinSet<()>) -> anyhow::Result<()> {
        let informers = Informers::new(client).with_transform(policy::reduce);
        let node_name = self.node.name()?;
        let settings = proxy::Settings {
            node_name: node_name.clone(),
            cluster_cidrs: self.network.cluster_cidr.iter().map(Cidr::to_string).collect(),
            node_port_addresses: Vec::new(),
            balancer_pool: Some(self.network.load_balancer_pool.clone()),
            status: proxy::StatusSettings::default(),
        };
        let ready = || tracing::info!("the service proxy is ready");
        tasks.spawn(proxy::run(informers.clone(), settings, ready));
        if self.node.network == Network::Knarr {
            tasks.spawn(pod_network::run(informers.clone(), self.pod_network(&node_name)?));
            let settings =
                policy::Settings { node_name: node_name.clone(), data_directory: self.data.join("network") };
            tasks.spawn(policy::run(informers.clone(), settings));
        }
        let pool = self.network.load_balancer_pool.clone();
        tasks.spawn(load_balancer::announce::run(informers.clone(), node_name.clone(), pool));
        tasks.spawn(dns(informers.clone(), self.node, self.network));
        match self.ingress {
            Some(listeners) => tasks.spawn(ingress(informers, node, node_name, listeners)),
            None => tasks.spawn(knarr_ingress::withdraw(informers, node, node_name)),
        };
        Ok(())
    }

    fn pod_network(&self, node_name: &str) -> anyhow::Result<pod_network::Settings> {
        let folders = self.node.cni_folders(self.data);
        Ok(pod_network::Settings {
            node_name: node_name.to_owned(),
            configuration_directory: folders.configuration,
            binary_directory: folders.binaries,
            binary: std::env::current_exe()?,
            data_directory: self.data.join("network"),
            bridge: BRIDGE.to_owned(),
            cluster_cidrs: self.network.cluster_cidr.clone(),
            mtu: None,
        })
    }
}

/// What the network needs in one place of the cluster: addresses for load balancers, the service by which DNS is found, and
/// what ingresses say of themselves.
pub fn start_central(
    client: &Client,
    node: &NodeArguments,
    network: &NetworkArguments,
    balancers: load_balancer::pool::Settings,
    tasks: &mut JoinSet<()>,
) {
    let informers = Informers::new(client.clone());
    tasks.spawn(load_balancer::pool::run(informers.clone(), client.clone(), balancers));
    if !network.ingress.disable_ingress {
        tasks.spawn(knarr_ingress::run_central(informers, client.clone(), node_network::GROUP.to_owned()));
    }
    tasks.spawn(knarr_dns::ensure_service(client.clone(), node.cluster_dns.clone()));
}

/// Every node answers the cluster's DNS itself, on the address that all pods ask.
fn dns(
    informers: Informers,
    node: &NodeArguments,
    network: &NetworkArguments,
) -> impl Future<Output = ()> + Send + use<> {
    let addresses = node.cluster_dns.clone();
    let settings = knarr_dns::Settings {
        listen: addresses.iter().map(|address| SocketAddr::new(*address, 53)).collect(),
        domain: node.cluster_domain.clone(),
        forwarders: network.dns_upstream.clone(),
        stub_domains: network.dns_stub_domain.clone(),
    };
    async move {
        for address in &addresses {
            if let Err(error) = knarr_network::add_local_address(*address).await {
                tracing::error!(%error, %address, "the DNS address cannot be set up");
            }
        }
        if let Err(error) = knarr_dns::run(informers, settings).await {
            tracing::error!(error = &error as &dyn std::error::Error, "DNS cannot run");
        }
    }
}

async fn ingress(informers: Informers, client: Client, node_name: String, listeners: Listeners) {
    let (timeouts, limits) = (knarr_ingress::Timeouts::default(), knarr_ingress::Limits::default());
    if let Err(error) = knarr_ingress::run(informers, client, node_name, listeners, timeouts, limits).await {
        tracing::error!(error = &error as &dyn std::error::Error, "ingress cannot run");
    }
}
