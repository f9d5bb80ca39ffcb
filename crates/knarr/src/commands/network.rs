//! The network components of a node, the same in `knarr server` and `knarr agent`: pod network, service proxy, policies, DNS,
//! load balancer addresses and ingress.

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

/// Default network of all pods.
pub const PODS: &str = "10.244.0.0/16";

/// The bridge with the gateway address of this node's pods.
pub const BRIDGE: &str = "knarr0";

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Network")]
pub struct NetworkArguments {
    /// Networks of all pods, at most one per address family; each node gets a subnet.
    #[arg(long, value_delimiter = ',', default_value = PODS)]
    pub cluster_cidr: Vec<Cidr>,
    /// Networks for addresses of Services of type LoadBalancer; by default they share the server's address.
    #[arg(long, value_delimiter = ',')]
    pub load_balancer_pool: Vec<Cidr>,
    /// Resolvers for names outside the cluster; by default those in each node's /etc/resolv.conf.
    #[arg(long, value_delimiter = ',')]
    pub dns_upstream: Vec<Upstream>,
    /// Resolvers for single domains, such as corp.example=10.0.0.1; several for one domain are tried in order.
    #[arg(long, value_delimiter = ',')]
    pub dns_stub_domain: Vec<StubDomain>,
    #[command(flatten)]
    pub ingress: IngressArguments,
}

#[derive(Args, Clone, Debug)]
pub struct IngressArguments {
    /// Addresses of the ingress controller for HTTP.
    #[arg(long, value_delimiter = ',', default_value = "0.0.0.0:80")]
    pub ingress_http: Vec<SocketAddr>,
    /// Addresses of the ingress controller for HTTPS.
    #[arg(long, value_delimiter = ',', default_value = "0.0.0.0:443")]
    pub ingress_https: Vec<SocketAddr>,
    /// Disable the ingress controller.
    #[arg(long)]
    pub disable_ingress: bool,
}

impl IngressArguments {
    /// Addresses that must be free.
    pub fn listens(&self) -> Vec<Listen> {
        let all = [("--ingress-http", &self.ingress_http), ("--ingress-https", &self.ingress_https)];
        let listens = all.into_iter().flat_map(|(flag, addresses)| {
            addresses.iter().map(move |address| Listen { what: "ingress", address: *address, flag })
        });
        if self.disable_ingress { Vec::new() } else { listens.collect() }
    }

    /// Listens for ingress, unless it is disabled. Connections queue until everything else has started.
    pub fn bind(&self) -> Result<Option<Listeners>, IngressError> {
        let addresses = Addresses { http: self.ingress_http.clone(), https: self.ingress_https.clone() };
        (!self.disable_ingress).then(|| addresses.bind()).transpose()
    }
}

/// The network of one node, started once.
pub struct NodeNetwork<'a> {
    pub node: &'a NodeArguments,
    pub network: &'a NetworkArguments,
    pub data: &'a Path,
    /// Listeners for ingress, unless it is disabled.
    pub ingress: Option<Listeners>,
}

impl NodeNetwork<'_> {
    /// Starts all components as tasks. They read as the node's network user (`client`) and write the Node as the node
    /// itself (`node`).
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
            let settings = policy::Settings { node_name: node_name.clone(), data_directory: self.data.join("network") };
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
        let directories = self.node.cni_directories(self.data);
        Ok(pod_network::Settings {
            node_name: node_name.to_owned(),
            configuration_directory: directories.configuration,
            binary_directory: directories.binaries,
            binary: std::env::current_exe()?,
            data_directory: self.data.join("network"),
            bridge: BRIDGE.to_owned(),
            cluster_cidrs: self.network.cluster_cidr.clone(),
            mtu: None,
        })
    }
}

/// Starts the network components that run once per cluster: load balancer addresses, the DNS Service, and Ingress status.
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

/// Starts the DNS server of this node, on the address that all pods use.
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
                tracing::error!(%error, %address, "cannot add the DNS address");
            }
        }
        if let Err(error) = knarr_dns::run(informers, settings).await {
            tracing::error!(error = &error as &dyn std::error::Error, "DNS failed");
        }
    }
}

async fn ingress(informers: Informers, client: Client, node_name: String, listeners: Listeners) {
    let (timeouts, limits) = (knarr_ingress::Timeouts::default(), knarr_ingress::Limits::default());
    if let Err(error) = knarr_ingress::run(informers, client, node_name, listeners, timeouts, limits).await {
        tracing::error!(error = &error as &dyn std::error::Error, "ingress failed");
    }
}
