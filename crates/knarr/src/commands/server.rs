//! `knarr server`: everything on this machine. The parts talk to the API server inside this process, each as the user it
//! would be outside.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use jiff::Timestamp;
use knarr_apiserver::listen::InProcess;
use knarr_apiserver::pki::Purpose;
use knarr_apiserver::request::User;
use knarr_client::Informers;
use knarr_client::kube::Client;
use knarr_kubelet::CertificateFiles;
use knarr_network::pod_network;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::ServiceExt;

use super::node::{self, Network, NodeArguments, NodeFiles};
use super::{apiserver, common};

#[derive(Args, Clone, Debug)]
#[group(id = "server")]
pub struct Arguments {
    #[command(flatten)]
    pub apiserver: apiserver::Arguments,
    #[command(flatten)]
    pub node: NodeArguments,
    /// Networks of all pods, at most one of each family; nodes get their part of them.
    #[arg(long, value_delimiter = ',', default_value = "10.244.0.0/16")]
    pub cluster_cidr: Vec<String>,
    /// Run no pods on this machine.
    #[arg(long)]
    pub disable_agent: bool,
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

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let running = apiserver::begin(&arguments.apiserver).await?;
    let parts = Parts { server: running.started.server.clone(), arguments: arguments.clone() };
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    tasks.spawn(parts.controllers(&running.pki));
    tasks.spawn(parts.scheduler());
    let node = (!arguments.disable_agent).then(|| parts.node(&running.pki, stopped.clone())).transpose()?;
    if node.is_some() {
        let informers = Informers::new(parts.component("knarr-network"));
        tasks.spawn(parts.proxy(informers.clone())?);
        tasks.spawn(parts.dns(informers.clone()));
        if arguments.node.network == Network::Knarr {
            tasks.spawn(parts.pod_network(informers.clone())?);
        }
        if !arguments.disable_ingress {
            tasks.spawn(parts.ingress(informers));
        }
    }
    let node = node.map(tokio::spawn);
    tokio::select! {
        asked = common::stopped() => asked?,
        ended = watch_node(node) => ended?,
    }
    stop.send_replace(true);
    tasks.shutdown().await;
    running.stop().await;
    Ok(())
}

/// Waits for the node to end, which it does only when it cannot run.
async fn watch_node(node: Option<tokio::task::JoinHandle<anyhow::Result<()>>>) -> anyhow::Result<()> {
    match node {
        Some(node) => node.await?,
        None => std::future::pending().await,
    }
}

struct Parts {
    server: Arc<knarr_apiserver::server::Server>,
    arguments: Arguments,
}

impl Parts {
    /// A client that needs no network, as a user and under the name that its writes are recorded by.
    fn client(&self, user: User, agent: &'static str) -> Client {
        let service = InProcess::new(self.server.clone(), user).map_request(
            move |mut request: http::Request<knarr_client::kube::client::Body>| {
                request.headers_mut().insert(http::header::USER_AGENT, http::HeaderValue::from_static(agent));
                request
            },
        );
        Client::new(service, "default")
    }

    fn component(&self, name: &'static str) -> Client {
        let user = User::named(&format!("system:{name}"), &["system:masters", "system:authenticated"]);
        self.client(user, name)
    }

    fn controllers(&self, pki: &knarr_apiserver::pki::Pki) -> impl Future<Output = ()> + Send + use<> {
        let settings = knarr_controllers::Settings {
            root_ca: Some(pki.authority.certificate.clone()),
            signing: Some(knarr_controllers::SigningAuthority {
                certificate: pki.authority.certificate.clone(),
                key: pki.authority.key(),
            }),
            allocate_node_cidrs: !self.arguments.cluster_cidr.is_empty(),
            cluster_cidrs: self.arguments.cluster_cidr.clone(),
            service_cidrs: self.arguments.apiserver.service_cluster_ip_range.clone(),
            ..knarr_controllers::Settings::default()
        };
        knarr_controllers::run(knarr_controllers::Context::new(self.component("kube-controller-manager"), settings))
    }

    fn scheduler(&self) -> impl Future<Output = ()> + Send + use<> {
        let client = self.component("kube-scheduler");
        let settings =
            knarr_scheduler::Settings { configuration: knarr_scheduler::Configuration::default(), now: Timestamp::now };
        knarr_scheduler::run(client.clone(), Informers::new(client), settings)
    }

    fn proxy(&self, informers: Informers) -> anyhow::Result<impl Future<Output = ()> + Send + use<>> {
        let settings = knarr_network::proxy::Settings {
            node_name: self.arguments.node.name()?,
            cluster_cidrs: self.arguments.cluster_cidr.clone(),
            node_port_addresses: Vec::new(),
        };
        Ok(knarr_network::proxy::run(informers, settings, || tracing::info!("the service proxy is ready")))
    }

    fn pod_network(&self, informers: Informers) -> anyhow::Result<impl Future<Output = ()> + Send + use<>> {
        let data = &self.arguments.apiserver.data_dir;
        let folders = self.arguments.node.cni_folders(data);
        let cluster_cidrs = self.arguments.cluster_cidr.iter().map(|text| text.parse());
        let settings = pod_network::Settings {
            node_name: self.arguments.node.name()?,
            configuration_directory: folders.configuration,
            binary_directory: folders.binaries,
            binary: std::env::current_exe()?,
            data_directory: data.join("network"),
            bridge: "knarr0".to_owned(),
            cluster_cidrs: cluster_cidrs.collect::<Result<_, _>>()?,
            mtu: None,
        };
        Ok(pod_network::run(informers, settings))
    }

    /// Every node answers the cluster's DNS itself, on the address that all pods ask.
    fn dns(&self, informers: Informers) -> impl Future<Output = ()> + Send + use<> {
        let addresses = self.arguments.node.cluster_dns.clone();
        let domain = self.arguments.node.cluster_domain.clone();
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

    fn ingress(&self, informers: Informers) -> impl Future<Output = ()> + Send + use<> {
        let node = &self.arguments.node;
        let publish = node.node_ip.or(self.arguments.apiserver.advertise_address);
        let settings = knarr_ingress::Settings {
            http: self.arguments.ingress_http.clone(),
            https: self.arguments.ingress_https.clone(),
            publish: publish.map(|address| address.to_string()).into_iter().collect(),
            timeouts: knarr_ingress::Timeouts::default(),
        };
        let client = self.component("knarr-ingress");
        async move {
            if let Err(error) = knarr_ingress::run(informers, client, settings).await {
                tracing::error!(error = &error as &dyn std::error::Error, "ingress cannot run");
            }
        }
    }

    fn node(
        &self,
        pki: &knarr_apiserver::pki::Pki,
        mut stopped: watch::Receiver<bool>,
    ) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + Send + use<>> {
        let arguments = self.arguments.node.clone();
        let data: PathBuf = self.arguments.apiserver.data_dir.clone();
        let name = arguments.name()?;
        let certificates = data.join("pki");
        let mut addresses = vec![std::net::IpAddr::from([127, 0, 0, 1])];
        addresses.extend(arguments.node_ip.or(self.arguments.apiserver.advertise_address));
        let purpose = Purpose::Serving { name: format!("system:node:{name}"), names: vec![name.clone()], addresses };
        pki.authority.leaf(&certificates, "kubelet", &purpose, Timestamp::now())?;
        let files = NodeFiles {
            client_ca: certificates.join("ca.crt"),
            serving: Some(CertificateFiles {
                certificate: certificates.join("kubelet.crt"),
                key: certificates.join("kubelet.key"),
            }),
        };
        let user = User::named(&format!("system:node:{name}"), &["system:nodes", "system:authenticated"]);
        let client = self.client(user, "kubelet");
        Ok(async move {
            let shutdown = async move {
                // A dropped sender means the same as a word to stop.
                let _ = stopped.wait_for(|stopped| *stopped).await;
            };
            node::run(client, &arguments, &data, files, shutdown).await
        })
    }
}
