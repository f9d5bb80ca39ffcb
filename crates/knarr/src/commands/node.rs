//! The node part, alone or inside `knarr server`: a containerd of our own where none is given, and the kubelet on it.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use knarr_client::kube::Client;
use knarr_cri::containerd::{Containerd, import_directory};
use knarr_kubelet::{CertificateFiles, Settings};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::common;
use super::eviction::EvictionArguments;
use super::node_resources::ResourceArguments;
use crate::address::own_address;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Node")]
pub struct NodeArguments {
    /// The node's name; the machine's name when it is not given.
    #[arg(long)]
    pub node_name: Option<String>,
    /// The address by which others reach this node.
    #[arg(long)]
    pub node_ip: Option<IpAddr>,
    /// CRI socket of a container runtime that runs already; without it Knarr runs a containerd of its own.
    #[arg(long)]
    pub container_runtime_endpoint: Option<String>,
    /// Folder with manifests of static pods.
    #[arg(long)]
    pub pod_manifest_path: Option<PathBuf>,
    /// Addresses of the cluster's DNS; the tenth of each service network when not given.
    #[arg(long, value_delimiter = ',')]
    pub cluster_dns: Vec<IpAddr>,
    /// The cluster's DNS domain.
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// How many pods may run here.
    #[arg(long, default_value_t = 110)]
    pub max_pods: u32,
    /// Address and port of the node's own HTTPS endpoints.
    #[arg(long, default_value = "0.0.0.0:10250")]
    pub node_listen: SocketAddr,
    /// Port on which this machine may ask, in clear, whether the node is well; 0 for none.
    #[arg(long, default_value_t = 10248)]
    pub healthz_port: u16,
    /// Address for that.
    #[arg(long, default_value = "127.0.0.1")]
    pub healthz_bind_address: IpAddr,
    /// Answer queries for the logs of this machine's services: /logs/?query=NAME.
    #[arg(long)]
    pub enable_system_log_query: bool,
    /// The pod network: Knarr's own, or one that somebody else installs.
    #[arg(long, value_enum, default_value_t = Network::Knarr)]
    pub network: Network,
    /// Where somebody else's network plugins are.
    #[arg(long, default_value = "/opt/cni/bin")]
    pub cni_bin_dir: PathBuf,
    /// Where somebody else's network configuration appears.
    #[arg(long, default_value = "/etc/cni/net.d")]
    pub cni_conf_dir: PathBuf,
    /// The cgroup below which all pods of this node live.
    #[arg(long, default_value = "/")]
    pub cgroup_root: String,
    #[command(flatten)]
    pub eviction: EvictionArguments,
    /// Unused images are removed once the disk is fuller than this, in percent; at 100 none ever is.
    #[arg(long, default_value_t = 85, value_parser = clap::value_parser!(u8).range(..=100))]
    pub image_gc_high_threshold: u8,
    /// Until the disk is no fuller than this, in percent.
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u8).range(..=100))]
    pub image_gc_low_threshold: u8,
    #[command(flatten)]
    pub resources: ResourceArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Network {
    Knarr,
    None,
}

/// Where the container runtime finds network plugins and their configuration.
pub struct CniFolders {
    pub binaries: PathBuf,
    pub configuration: PathBuf,
}

impl NodeArguments {
    pub fn cni_folders(&self, data: &Path) -> CniFolders {
        match self.network {
            Network::Knarr => CniFolders { binaries: data.join("cni/bin"), configuration: data.join("cni/net.d") },
            Network::None => {
                CniFolders { binaries: self.cni_bin_dir.clone(), configuration: self.cni_conf_dir.clone() }
            }
        }
    }

    pub fn name(&self) -> anyhow::Result<String> {
        common::node_name(self.node_name.as_deref())
    }
}

/// Files the node's endpoints need.
pub struct NodeFiles {
    pub client_ca: PathBuf,
    /// Without these the node asks the API for a certificate.
    pub serving: Option<CertificateFiles>,
}

/// A container runtime on its way: where it answers, once it does.
pub struct Runtime(JoinHandle<anyhow::Result<Reached>>);

struct Reached {
    endpoint: String,
    /// Turns true when the archives of the images folder are in.
    images_loaded: watch::Receiver<bool>,
}

impl Runtime {
    /// Starts the node's runtime. It takes a moment, in which other parts can start as well.
    pub fn start(arguments: &NodeArguments, data: &Path) -> Self {
        let (given, cni) = (arguments.container_runtime_endpoint.clone(), arguments.cni_folders(data));
        let data = data.to_owned();
        Runtime(tokio::spawn(async move {
            match given {
                Some(endpoint) => Ok(Reached { endpoint, images_loaded: watch::channel(true).1 }),
                None => own_containerd(&data, &cni).await,
            }
        }))
    }
}

impl Runtime {
    /// Waits until the runtime answers, and says so while it does not.
    async fn reached(mut self) -> anyhow::Result<Reached> {
        let mut reports = tokio::time::interval_at(tokio::time::Instant::now() + WAIT_REPORT, WAIT_REPORT);
        loop {
            tokio::select! {
                reached = &mut self.0 => return reached?,
                _ = reports.tick() => tracing::warn!("the node waits for its containerd to answer"),
            }
        }
    }
}

/// How often a node that waits for its runtime says so.
const WAIT_REPORT: Duration = Duration::from_secs(10);

/// Runs the node until `shutdown`; pods go on running after that.
pub async fn run(
    client: Client,
    arguments: &NodeArguments,
    data: &Path,
    files: NodeFiles,
    runtime: Runtime,
    shutdown: impl Future<Output = ()> + Send,
) -> anyhow::Result<()> {
    tokio::pin!(shutdown);
    let reached = tokio::select! {
        reached = runtime.reached() => reached?,
        () = &mut shutdown => return Ok(()),
    };
    let Reached { endpoint, images_loaded } = reached;
    let mut settings = Settings::new(arguments.name()?, data.join("kubelet"), endpoint);
    settings.images_loaded = images_loaded;
    settings.client_ca = Some(files.client_ca);
    settings.request_serving_certificate = files.serving.is_none();
    settings.serving_certificate = files.serving;
    settings.cluster_dns.clone_from(&arguments.cluster_dns);
    settings.cluster_domain.clone_from(&arguments.cluster_domain);
    settings.manifests.clone_from(&arguments.pod_manifest_path);
    settings.pod_rules = Some(knarr_rules::core::pod::static_pod::admit);
    settings.node_ip = arguments.node_ip.unwrap_or_else(own_address);
    settings.max_pods = arguments.max_pods;
    settings.serving = arguments.node_listen;
    settings.system_log_query = arguments.enable_system_log_query;
    settings.cgroup_root.clone_from(&arguments.cgroup_root);
    settings.log_root = data.join("logs");
    settings.eviction = arguments.eviction.eviction()?;
    settings.health =
        (arguments.healthz_port > 0).then(|| SocketAddr::new(arguments.healthz_bind_address, arguments.healthz_port));
    settings.image_gc_high_percent = arguments.image_gc_high_threshold;
    settings.image_gc_low_percent = arguments.image_gc_low_threshold;
    arguments.resources.apply(&mut settings, data)?;
    knarr_kubelet::run(client, settings, shutdown).await.context("the node cannot run")
}

/// Starts or finds the containerd under the data directory. The images of its folder are loaded beside that: a node is
/// ready without them, and only pods that need them wait.
async fn own_containerd(data: &Path, cni: &CniFolders) -> anyhow::Result<Reached> {
    let containerd = Containerd::new(&data.join("containerd"), &cni.binaries, &cni.configuration);
    let runtime = containerd.ensure().await.context("containerd cannot be started")?;
    let endpoint = containerd.socket().to_string_lossy().into_owned();
    let (loaded, images_loaded) = watch::channel(false);
    let (folder, target) = (data.join("images"), runtime.clone());
    tokio::spawn(async move {
        if let Err(error) = import_directory(&target, &folder).await {
            tracing::error!(error = format!("{:#}", anyhow::Error::from(error)), "images cannot be loaded");
        }
        // A node that has ended waits for no image.
        let _ = loaded.send(true);
    });
    tokio::spawn(containerd.supervise(runtime));
    Ok(Reached { endpoint, images_loaded })
}
