//! `knarr server`: control plane and node in one process. The components talk to the API server inside this process, each as
//! the user it would be outside.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use knarr_apiserver::listen::InProcess;
use knarr_apiserver::request::User;
use knarr_client::kube::Client;
use knarr_client::{Informers, node_network};
use knarr_network::cidr::Cidr;
use knarr_network::load_balancer;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::ServiceExt;

use super::network::{self, NetworkArguments, NodeNetwork};
use super::node::{self, Network, NodeArguments, NodeFiles, Runtime};
use super::{apiserver, common, preflight};
use crate::address::{ensure_address, own_address};
use crate::check::{CheckPlan, Listen};
use crate::cluster::{self, Cluster};
use crate::join::ClusterInfo;
use crate::ready::{self, Display, Probe};
use crate::{data_directory_lock, join, manifests, service};

/// The default controllers and, as in kubeadm clusters, those for bootstrap tokens.
const CONTROLLERS: [&str; 3] = ["*", "bootstrap-signer-controller", "token-cleaner-controller"];

#[derive(Args, Clone, Debug)]
#[group(id = "server")]
pub struct Arguments {
    #[command(flatten)]
    pub apiserver: apiserver::Arguments,
    #[command(flatten)]
    pub node: NodeArguments,
    #[command(flatten)]
    pub network: NetworkArguments,
    /// Run only the control plane, without a node on this host.
    #[arg(long)]
    pub disable_agent: bool,
}

pub async fn run(mut arguments: Arguments) -> anyhow::Result<()> {
    let started = Instant::now();
    arguments.apiserver.resource_metrics = true;
    if arguments.node.cluster_dns.is_empty() {
        arguments.node.cluster_dns = cluster::dns_addresses(&arguments.apiserver.service_cluster_ip_range);
    }
    let data = arguments.apiserver.data_dir.clone();
    data_directory_lock::acquire(&data)?.until_exit();
    preflight(&arguments)?;
    if arguments.node.node_ip.is_none() {
        ensure_address().await;
    }
    let ingress = if arguments.disable_agent { None } else { arguments.network.ingress.bind()? };
    // The container runtime takes longest to start: it starts in parallel with the API server.
    let runtime = (!arguments.disable_agent).then(|| Runtime::start(&arguments.node, &data));
    let running = apiserver::start(&arguments.apiserver).await?;
    let components = Components { server: running.started.server.clone(), arguments: arguments.clone() };
    components.cluster().save(&data)?;
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    tasks.spawn(components.controllers(&running.pki));
    tasks.spawn(components.scheduler());
    let node = runtime.map(|runtime| components.node(runtime, stopped.clone())).transpose()?;
    // The network's permissions exist only after this.
    let info = ClusterInfo {
        server: format!("https://{}", running.advertised),
        authority: running.pki.authority.certificate.clone(),
    };
    join::ensure_objects(&components.administrator("knarr"), &components.cluster(), &info)
        .await
        .context("cannot create the cluster's initial objects")?;
    if node.is_some() {
        let network = NodeNetwork { node: &arguments.node, network: &arguments.network, data: &data, ingress };
        network.start(
            components.node_network()?,
            components.client(components.node_user()?, "knarr-network"),
            &mut tasks,
        )?;
    }
    let central = components.component(join::NETWORK_CONTROLLER, "knarr-network");
    network::start_central(&central, &arguments.node, &arguments.network, components.load_balancers(), &mut tasks);
    tasks.spawn(manifests::run(
        components.administrator("knarr-manifests"),
        data.join("manifests"),
        data.join("manifests.json"),
    ));
    tasks.spawn(components.report_when_ready(started)?);
    let node = node.map(tokio::spawn);
    tokio::select! {
        signal = common::stopped() => signal?,
        ended = watch_node(node) => ended?,
    }
    service::notify("STOPPING=1");
    stop.send_replace(true);
    tasks.shutdown().await;
    running.stop().await;
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

/// Waits for the node to stop, which it does only on an error.
async fn watch_node(node: Option<tokio::task::JoinHandle<anyhow::Result<()>>>) -> anyhow::Result<()> {
    match node {
        Some(node) => node.await?,
        None => std::future::pending().await,
    }
}

struct Components {
    server: Arc<knarr_apiserver::state::ApiServer>,
    arguments: Arguments,
}

impl Components {
    /// An in-process client as a user, with the field manager name of its writes.
    fn client(&self, user: User, agent: &'static str) -> Client {
        let service = InProcess::new(self.server.clone(), user).map_request(
            move |mut request: http::Request<knarr_client::kube::client::Body>| {
                request.headers_mut().insert(http::header::USER_AGENT, http::HeaderValue::from_static(agent));
                request
            },
        );
        Client::new(service, "default")
    }

    /// A client as an administrator: for initial objects, the administrator's manifests, and all controllers.
    fn administrator(&self, name: &'static str) -> Client {
        let user = User::named(&format!("system:{name}"), &["system:masters", "system:authenticated"]);
        self.client(user, name)
    }

    /// A client as a user with only the permissions of its roles.
    fn component(&self, user: &str, agent: &'static str) -> Client {
        self.client(User::named(user, &["system:authenticated"]), agent)
    }

    /// The API user of this node.
    fn node_user(&self) -> anyhow::Result<User> {
        let name = self.arguments.node.name()?;
        Ok(User::named(&format!("system:node:{name}"), &["system:nodes", "system:authenticated"]))
    }

    /// A client as the network components of this node.
    fn node_network(&self) -> anyhow::Result<Client> {
        let name = node_network::user(&self.arguments.node.name()?);
        Ok(self.client(User::named(&name, &[node_network::GROUP, "system:authenticated"]), "knarr-network"))
    }

    fn controllers(&self, pki: &knarr_apiserver::pki::Pki) -> impl Future<Output = ()> + Send + use<> {
        let settings = knarr_controllers::Settings {
            controllers: CONTROLLERS.map(str::to_owned).into(),
            root_ca: Some(pki.authority.certificate.clone()),
            signing: Some(knarr_controllers::SigningAuthority {
                certificate: pki.authority.certificate.clone(),
                key: pki.authority.key(),
            }),
            approve_kubelet_serving: true,
            cluster_domain: self.arguments.node.cluster_domain.clone(),
            api_server_names: pki.identity().all().collect(),
            api_server_node: self.arguments.node.name().ok(),
            allocate_node_cidrs: !self.arguments.network.cluster_cidr.is_empty(),
            cluster_cidrs: self.arguments.network.cluster_cidr.iter().map(Cidr::to_string).collect(),
            service_cidrs: self.arguments.apiserver.service_cluster_ip_range.clone(),
            ..knarr_controllers::Settings::default()
        };
        knarr_controllers::run(knarr_controllers::Context::new(self.administrator("kube-controller-manager"), settings))
    }

    fn scheduler(&self) -> impl Future<Output = ()> + Send + use<> {
        let client = self.component("system:kube-scheduler", "kube-scheduler");
        let settings =
            knarr_scheduler::Settings { configuration: knarr_scheduler::Configuration::default(), now: Timestamp::now };
        knarr_scheduler::run(client.clone(), Informers::new(client), settings)
    }

    /// Probes every component, and reports when all are ready.
    fn report_when_ready(&self, started: Instant) -> anyhow::Result<impl Future<Output = ()> + Send + use<>> {
        let client = self.administrator("knarr");
        let mut probes = vec![Probe::path("API server", client.clone(), "/readyz".to_owned())];
        if !self.arguments.disable_agent {
            probes.extend(self.node_probes(&client)?);
        }
        let kubeconfig = common::kubeconfig(&self.arguments.apiserver.data_dir);
        let next = format!(
            "    export KUBECONFIG={}\n    kubectl get nodes\n\nAdd a node: knarr token create --print-join-command",
            kubeconfig.display()
        );
        Ok(async move {
            ready::wait(probes, started, &mut Display::new(next)).await;
        })
    }

    fn node_probes(&self, client: &Client) -> anyhow::Result<Vec<Probe>> {
        let arguments = &self.arguments;
        let name = arguments.node.name()?;
        let mut probes = vec![Probe::node(client.clone(), name.clone())];
        let ranges = arguments.apiserver.service_cluster_ip_range.first();
        let own = ranges.and_then(|range| knarr_apiserver::service::first_address(range));
        probes.extend(own.map(|address| Probe::connects("service proxy", SocketAddr::new(address, 443))));
        let dns = arguments.node.cluster_dns.first();
        probes.extend(dns.map(|address| Probe::dns(*address, &arguments.node.cluster_domain)));
        let ingress = &arguments.network.ingress;
        if !ingress.disable_ingress {
            probes.extend(ingress.ingress_http.first().map(|address| Probe::http("ingress", *address)));
        }
        let metrics = format!("/apis/metrics.k8s.io/v1beta1/nodes/{name}");
        probes.push(Probe::path("metrics", client.clone(), metrics));
        Ok(probes)
    }

    /// The settings that all nodes share.
    fn cluster(&self) -> Cluster {
        Cluster {
            pod_networks: self.arguments.network.cluster_cidr.clone(),
            dns: self.arguments.node.cluster_dns.clone(),
            domain: self.arguments.node.cluster_domain.clone(),
            load_balancers: self.arguments.network.load_balancer_pool.clone(),
            ingress: !self.arguments.network.ingress.disable_ingress,
            dns_upstreams: self.arguments.network.dns_upstream.clone(),
            dns_stub_domains: self.arguments.network.dns_stub_domain.clone(),
        }
    }

    /// The addresses for Services of type LoadBalancer.
    fn load_balancers(&self) -> load_balancer::pool::Settings {
        let Arguments { apiserver, node, network, disable_agent, .. } = &self.arguments;
        let node_addresses = vec![node.node_ip.or(apiserver.advertise_address).unwrap_or_else(own_address)];
        let mut own = vec![apiserver.listen];
        if !disable_agent {
            own.push(node.node_listen);
            own.extend(network.ingress.listens().iter().map(|listen| listen.address));
        }
        own.retain(|listen| listen.ip().is_unspecified() || node_addresses.contains(&listen.ip()));
        load_balancer::pool::Settings {
            pool: network.load_balancer_pool.clone(),
            node_addresses,
            node_ports: own.iter().map(SocketAddr::port).collect(),
        }
    }

    fn node(
        &self,
        runtime: Runtime,
        mut stopped: watch::Receiver<bool>,
    ) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + Send + use<>> {
        let arguments = self.arguments.node.clone();
        let data: PathBuf = self.arguments.apiserver.data_dir.clone();
        // The serving certificate is requested from the API, as on every other node, and renewed.
        let files = NodeFiles { client_ca: data.join("pki/ca.crt"), serving: None };
        let client = self.client(self.node_user()?, "kubelet");
        Ok(async move {
            let shutdown = async move {
                // A dropped sender means shutdown, too.
                let _ = stopped.wait_for(|stopped| *stopped).await;
            };
            node::run(client, &arguments, &data, files, runtime, shutdown).await
        })
    }
}
