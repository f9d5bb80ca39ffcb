//! The network part of a node, alike in `knarr server` and on every other node: pod network, service proxy, policies, DNS,
//! load balancers' addresses and ingress.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use clap::Args;
use knarr_client::Informers;
use knarr_client::kube::Client;
use knarr_network::cidr::Cidr;
use knarr_network::{load_balancer, pod_network, policy, proxy};
use tokio::task::JoinSet;

use super::node::{Network, NodeArguments};

/// The interface that this node's pods hang on.
pub const BRIDGE: &str = "knarr0";

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Network")]
pub struct NetworkArguments {
    /// Networks of all pods, at most one of each family; nodes get their part of them.
    #[arg(long, value_delimiter = ',', default_value = "10.244.0.0/16")]
    pub cluster_cidr: Vec<Cidr>,
    /// Networks from which services of type LoadBalancer get addresses; without any they share the node's address.
    #[arg(long, value_delimiter = ',')]
    pub load_balancer_pool: Vec<Cidr>,
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

/// One node's network, to be started once.
pub struct NodeNetwork<'a> {
    pub node: &'a NodeArguments,
    pub network: &'a NetworkArguments,
    pub data: &'a Path,
    /// Addresses that ingresses are said to be reached at; none when another node says it.
    pub publish: Vec<IpAddr>,
}

impl NodeNetwork<'_> {
    /// Starts all parts; they end with the set of tasks.
    pub fn start(self, client: Client, tasks: &mut JoinSet<()>) -> anyhow::Result<()> {
        let informers = Informers::new(client.clone()).reducing(policy::reduce);
        let node_name = self.node.name()?;
        let settings = proxy::Settings {
            node_name: node_name.clone(),
            cluster_cidrs: self.network.cluster_cidr.iter().map(Cidr::to_string).collect(),
            node_port_addresses: Vec::new(),
            status: proxy::StatusSettings::default(),
        };
        let ready = || tracing::info!("the service proxy is ready");
        tasks.spawn(proxy::run(informers.clone(), settings, ready));
        if self.node.network == Network::Knarr {
            tasks.spawn(pod_network::run(informers.clone(), self.pod_network(&node_name)?));
            tasks.spawn(policy::run(informers.clone(), node_name.clone()));
        }
        let pool = self.network.load_balancer_pool.clone();
        tasks.spawn(load_balancer::announce::run(informers.clone(), node_name, pool));
        tasks.spawn(dns(informers.clone(), self.node));
        if !self.network.disable_ingress {
            tasks.spawn(ingress(informers, client, self.network, &self.publish));
        }
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

/// What the network needs in one place of the cluster: addresses for load balancers, and the service by which DNS is found.
pub fn start_central(
    client: &Client,
    node: &NodeArguments,
    network: &NetworkArguments,
    node_addresses: Vec<IpAddr>,
    tasks: &mut JoinSet<()>,
) {
    let settings = load_balancer::pool::Settings { pool: network.load_balancer_pool.clone(), node_addresses };
    let informers = Informers::new(client.clone());
    tasks.spawn(load_balancer::pool::run(informers, client.clone(), settings));
    tasks.spawn(knarr_dns::keep_service(client.clone(), node.cluster_dns.clone()));
}

/// Every node answers the cluster's DNS itself, on the address that all pods ask.
fn dns(informers: Informers, node: &NodeArguments) -> impl Future<Output = ()> + Send + use<> {
    let addresses = node.cluster_dns.clone();
    let domain = node.cluster_domain.clone();
    async move {
        for address in &addresses {
            if let Err(error) = knarr_network::add_local_address(*address).await {
                tracing::error!(%error, %address, "the DNS address cannot be set up");
            }
        }
        let settings = knarr_dns::Settings {
            listen: addresses.into_iter().map(|address| SocketAddr::new(address, 53)).collect(),
            domain,
            forwarders: Vec::new(),
            stub_domains: Vec::new(),
        };
        if let Err(error) = knarr_dns::run(informers, settings).await {
            tracing::error!(error = &error as &dyn std::error::Error, "DNS cannot run");
        }
    }
}

fn ingress(
    informers: Informers,
    client: Client,
    network: &NetworkArguments,
    publish: &[IpAddr],
) -> impl Future<Output = ()> + Send + use<> {
    let settings = knarr_ingress::Settings {
        http: network.ingress_http.clone(),
        https: network.ingress_https.clone(),
        publish: publish.iter().map(IpAddr::to_string).collect(),
        timeouts: knarr_ingress::Timeouts::default(),
    };
    async move {
        if let Err(error) = knarr_ingress::run(informers, client, settings).await {
            tracing::error!(error = &error as &dyn std::error::Error, "ingress cannot run");
        }
    }
}
