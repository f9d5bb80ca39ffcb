//! The network components of a node, the same in `knarr server` and `knarr agent`: pod network, service proxy, policies, DNS,
//! load balancer addresses and ingress.

use std::net::SocketAddr;
use std::path::Path;

use clap::Args;
use knarr_client::kube::Client;
use knarr_client::{Informers, node_identity};
use knarr_dns::{StubDomain, Upstream};
use knarr_ingress::{Addresses, IngressError, Limits, Listeners, Timeouts};
use knarr_network::cidr::Cidr;
use knarr_network::{load_balancer, pod_network, policy, proxy};
use knarr_supervisor::Supervisor;

use super::disable::BuiltIn;
use super::node::{Network, NodeArguments};
use crate::check::Listen;

/// Default network of all pods.
pub const PODS: &str = "10.244.0.0/16";

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
        (!self.disable_ingress).then(|| self.addresses().bind()).transpose()
    }

    fn addresses(&self) -> Addresses {
        Addresses { http: self.ingress_http.clone(), https: self.ingress_https.clone() }
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
    /// Starts all components. They read as the node's network user (`client`) and write the Node as the node itself
    /// (`node`).
    pub fn start(self, client: Client, node: Client, supervisor: &Supervisor) -> anyhow::Result<()> {
        let informers = Informers::new(client).without_heartbeats().with_transform(policy::reduce);
        let node_name = self.node.name()?;
        self.withdraw_disabled(supervisor);
        let disabled = &self.node.disable;
        let settings = proxy::Settings {
            node_name: node_name.clone(),
            cluster_cidrs: self.network.cluster_cidr.iter().map(Cidr::to_string).collect(),
            node_port_addresses: Vec::new(),
            // Another load balancer chooses its addresses itself.
            balancer_pool: (!disabled.has(BuiltIn::LoadBalancer)).then(|| self.network.load_balancer_pool.clone()),
            status: proxy::StatusSettings { flags: crate::process_flags::flags(), ..Default::default() },
        };
        if !disabled.has(BuiltIn::Proxy) {
            let all = informers.clone();
            supervisor.restart("service-proxy", move || {
                proxy::run(all.clone(), settings.clone(), || tracing::info!("the service proxy is ready"))
            });
        }
        if self.node.network == Network::Knarr {
            let (all, settings) = (informers.clone(), self.pod_network(&node_name)?);
            supervisor.restart("pod-network", move || pod_network::run(all.clone(), settings.clone()));
            let settings = policy::Settings { node_name: node_name.clone(), data_directory: self.data.join("network") };
            let all = informers.clone();
            supervisor.restart("network-policy", move || policy::run(all.clone(), settings.clone()));
        }
        // Without a pool there is nothing to announce.
        if !self.network.load_balancer_pool.is_empty() && !disabled.has(BuiltIn::LoadBalancer) {
            let (all, name, pool) = (informers.clone(), node_name.clone(), self.network.load_balancer_pool.clone());
            supervisor.restart("load-balancer-announcer", move || {
                load_balancer::announce::run(all.clone(), name.clone(), pool.clone())
            });
        }
        if !disabled.has(BuiltIn::Dns) {
            self.start_dns(informers.clone(), supervisor);
        }
        self.start_ingress(informers, node, node_name, supervisor);
        Ok(())
    }

    /// Removes what disabled components left in the kernel: it would stay in the way of what takes their place.
    fn withdraw_disabled(&self, supervisor: &Supervisor) {
        let disabled = self.node.disable.clone();
        if disabled.shared().is_empty() {
            return;
        }
        let (dns, pool) = (self.node.cluster_dns.clone(), self.network.load_balancer_pool.clone());
        supervisor.complete("disabled-components", move || {
            let (disabled, dns, pool) = (disabled.clone(), dns.clone(), pool.clone());
            async move {
                let mut errors: Vec<anyhow::Error> = Vec::new();
                if disabled.has(BuiltIn::Proxy) {
                    errors.extend(proxy::kernel::clear().await.err().map(Into::into));
                }
                if disabled.has(BuiltIn::Dns) {
                    for address in dns {
                        errors.extend(knarr_network::remove_local_address(address).await.err().map(Into::into));
                    }
                }
                if disabled.has(BuiltIn::LoadBalancer) {
                    errors.extend(load_balancer::release(&pool).await.err().map(Into::into));
                }
                for error in errors {
                    tracing::warn!(error = format!("{error:#}"), "cannot remove what a disabled component left");
                }
            }
        });
    }

    /// Starts the DNS server of this node, on the address that all pods use.
    fn start_dns(&self, informers: Informers, supervisor: &Supervisor) {
        let addresses = self.node.cluster_dns.clone();
        let settings = knarr_dns::Settings {
            listen: addresses.iter().map(|address| SocketAddr::new(*address, 53)).collect(),
            domain: self.node.cluster_domain.clone(),
            forwarders: self.network.dns_upstream.clone(),
            stub_domains: self.network.dns_stub_domain.clone(),
        };
        supervisor.restart("cluster-dns", move || {
            let (addresses, informers, settings) = (addresses.clone(), informers.clone(), settings.clone());
            async move {
                for address in &addresses {
                    if let Err(error) = knarr_network::add_local_address(*address).await {
                        tracing::error!(%error, %address, "cannot add the DNS address");
                    }
                }
                knarr_dns::run(informers, settings).await.map_err(anyhow::Error::from)
            }
        });
    }

    fn start_ingress(self, informers: Informers, node: Client, node_name: String, supervisor: &Supervisor) {
        let Some(listeners) = self.ingress else {
            supervisor.restart("ingress-withdrawal", move || {
                knarr_ingress::withdraw(informers.clone(), node.clone(), node_name.clone())
            });
            return;
        };
        // The first run serves the connections that have queued since the process started.
        let (mut bound, arguments) = (Some(listeners), self.network.ingress.clone());
        supervisor.restart("ingress", move || {
            let listeners = bound.take().map_or_else(|| arguments.addresses().bind(), Ok);
            let (informers, node, node_name) = (informers.clone(), node.clone(), node_name.clone());
            async move {
                let (timeouts, limits) = (Timeouts::default(), Limits::default());
                let served = knarr_ingress::run(informers, node, node_name, listeners?, timeouts, limits).await;
                served.map_err(anyhow::Error::from)
            }
        });
    }

    fn pod_network(&self, node_name: &str) -> anyhow::Result<pod_network::Settings> {
        let directories = self.node.cni_directories(self.data);
        Ok(pod_network::Settings {
            node_name: node_name.to_owned(),
            configuration_directory: directories.configuration,
            binary_directory: directories.binaries,
            binary: std::env::current_exe()?,
            data_directory: self.data.join("network"),
            bridge: crate::paths::BRIDGE.to_owned(),
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
    supervisor: &Supervisor,
) {
    let informers = Informers::new(client.clone()).without_heartbeats();
    if !node.disable.has(BuiltIn::LoadBalancer) {
        let (all, writer) = (informers.clone(), client.clone());
        supervisor.restart("load-balancer-pool", move || {
            load_balancer::pool::run(all.clone(), writer.clone(), balancers.clone())
        });
    }
    if !network.ingress.disable_ingress {
        let writer = client.clone();
        supervisor.restart("ingress-status", move || {
            knarr_ingress::run_central(informers.clone(), writer.clone(), node_identity::NETWORK.group.to_owned())
        });
    }
    if node.disable.has(BuiltIn::Dns) {
        return;
    }
    let (client, addresses) = (client.clone(), node.cluster_dns.clone());
    supervisor.complete("dns-service", move || knarr_dns::ensure_service(client.clone(), addresses.clone()));
}
