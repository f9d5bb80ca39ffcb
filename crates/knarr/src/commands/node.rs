//! The node, standalone or inside `knarr server`: our own containerd unless another runtime is configured, and the kubelet.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use knarr_client::kube::Client;
use knarr_cri::containerd::{Containerd, HealthChecks, Registries, import_directory};
use knarr_identity::TlsAlgorithms;
use knarr_kubelet::{CertificateFiles, EndpointAccess, Settings};
use knarr_supervisor::{Registry, Supervisor};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::common;
use super::disable::DisableArguments;
use super::eviction::EvictionArguments;
use super::node_images::ImageArguments;
use super::node_registration::RegistrationArguments;
use super::node_resources::ResourceArguments;
use super::node_tuning::TuningArguments;
use super::storage::StorageArguments;
use crate::address::own_address;
use crate::registries::RegistriesFile;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Node")]
pub struct NodeArguments {
    /// Node name; by default the host name.
    #[arg(long)]
    pub node_name: Option<String>,
    /// IP address of this node.
    #[arg(long)]
    pub node_ip: Option<IpAddr>,
    /// CRI socket of a running container runtime; by default Knarr runs its own containerd.
    #[arg(long)]
    pub container_runtime_endpoint: Option<String>,
    /// Directory of static pod manifests.
    #[arg(long)]
    pub pod_manifest_path: Option<PathBuf>,
    /// Addresses of the cluster DNS; by default the tenth address of each Service network.
    #[arg(long, value_delimiter = ',')]
    pub cluster_dns: Vec<IpAddr>,
    /// DNS domain of the cluster.
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Maximum number of pods on this node.
    #[arg(long, default_value_t = 110)]
    pub max_pods: u32,
    /// Address and port of the kubelet's HTTPS server.
    #[arg(long, default_value = "0.0.0.0:10250")]
    pub node_listen: SocketAddr,
    /// Port of the kubelet's plain HTTP health endpoint; 0 disables it.
    #[arg(long, default_value_t = 10248)]
    pub healthz_port: u16,
    /// Address of the health endpoint.
    #[arg(long, default_value = "127.0.0.1")]
    pub healthz_bind_address: IpAddr,
    /// Serve the logs of the host's services at /logs/?query=NAME.
    #[arg(long)]
    pub enable_system_log_query: bool,
    /// Collector of OpenTelemetry traces (OTLP over gRPC) that gets the node's spans: HOST:PORT or unix:PATH.
    #[arg(long)]
    pub tracing_endpoint: Option<String>,
    /// How many of a million operations of the node are traced; 0 traces only what is part of a sampled trace.
    #[arg(long)]
    pub tracing_sampling_rate_per_million: Option<u32>,
    /// Pod network: the built-in one, or none if another CNI plugin is installed.
    #[arg(long, value_enum, default_value_t = Network::Knarr)]
    pub network: Network,
    /// Directory of other CNI plugins.
    #[arg(long, default_value = "/opt/cni/bin")]
    pub cni_bin_dir: PathBuf,
    /// Directory of other CNI configurations.
    #[arg(long, default_value = "/etc/cni/net.d")]
    pub cni_conf_dir: PathBuf,
    /// Parent cgroup of all pods of this node.
    #[arg(long, default_value = "/")]
    pub cgroup_root: String,
    /// Cgroup of the container runtime, whose usage the node's stats summary reports.
    #[arg(long)]
    pub runtime_cgroups: Option<String>,
    #[command(flatten)]
    pub eviction: EvictionArguments,
    #[command(flatten)]
    pub images: ImageArguments,
    #[command(flatten)]
    pub resources: ResourceArguments,
    #[command(flatten)]
    pub tuning: TuningArguments,
    #[command(flatten)]
    pub registration: RegistrationArguments,
    #[command(flatten)]
    pub storage: StorageArguments,
    #[command(flatten)]
    pub disable: DisableArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Network {
    Knarr,
    None,
}

/// Directories of CNI plugins and configurations.
pub struct CniDirectories {
    pub binaries: PathBuf,
    pub configuration: PathBuf,
}

impl NodeArguments {
    pub fn cni_directories(&self, data: &Path) -> CniDirectories {
        match self.network {
            Network::Knarr => CniDirectories { binaries: data.join("cni/bin"), configuration: data.join("cni/net.d") },
            Network::None => {
                CniDirectories { binaries: self.cni_bin_dir.clone(), configuration: self.cni_conf_dir.clone() }
            }
        }
    }

    /// Sets what differs for a service; grace periods by priority take the place of the usual one.
    pub fn set_service_defaults(&mut self, is_service: bool) {
        let by_priority = !self.tuning.shutdown_grace_period_by_pod_priority.is_empty();
        self.resources.set_service_defaults(is_service && !by_priority);
    }

    pub fn name(&self) -> anyhow::Result<String> {
        common::node_name(self.node_name.as_deref())
    }
}

/// Certificate files of the kubelet's server, how it uses TLS, and who may use it.
#[derive(Default)]
pub struct NodeFiles {
    /// If absent, only tokens authenticate.
    pub client_ca: Option<PathBuf>,
    /// If absent, the node requests a certificate from the API.
    pub serving: Option<CertificateFiles>,
    pub algorithms: TlsAlgorithms,
    pub access: EndpointAccess,
    pub read_only_port: Option<u16>,
}

/// A container runtime that is starting; resolves to its endpoint.
pub struct Runtime(JoinHandle<anyhow::Result<Reached>>);

struct Reached {
    endpoint: String,
    /// Becomes true when the archives of the images directory are imported.
    images_loaded: watch::Receiver<bool>,
    /// Mirrors and credentials for our own containerd.
    registries: Option<watch::Receiver<Arc<Registries>>>,
    /// Owns what keeps the runtime running.
    supervisor: Supervisor,
}

impl Runtime {
    /// Starts the container runtime in the background, while other components start.
    pub fn start(arguments: &NodeArguments, data: &Path, registry: &Registry) -> Self {
        let supervisor = Supervisor::new(registry);
        let (arguments, data) = (arguments.clone(), data.to_owned());
        Runtime(tokio::spawn(async move {
            match arguments.container_runtime_endpoint.clone() {
                Some(endpoint) => {
                    Ok(Reached { endpoint, images_loaded: watch::channel(true).1, registries: None, supervisor })
                }
                None => own_containerd(&arguments, &data, supervisor).await,
            }
        }))
    }
}

impl Runtime {
    /// Waits until the runtime responds, and logs while it does not.
    async fn reached(mut self) -> anyhow::Result<Reached> {
        let mut reports = tokio::time::interval_at(tokio::time::Instant::now() + WAIT_REPORT, WAIT_REPORT);
        loop {
            tokio::select! {
                reached = &mut self.0 => return reached?,
                _ = reports.tick() => tracing::warn!("waiting for containerd"),
            }
        }
    }
}

/// Log interval while waiting for the runtime.
const WAIT_REPORT: Duration = Duration::from_secs(10);

/// Runs the node until `shutdown`; pods keep running after that.
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
    let Reached { endpoint, images_loaded, registries, supervisor: _runtime } = reached;
    let mut settings = Settings::new(arguments.name()?, data.join("kubelet"), endpoint);
    settings.images_loaded = images_loaded;
    settings.images.registries = registries;
    settings.client_ca = files.client_ca;
    settings.request_serving_certificate = files.serving.is_none();
    settings.serving_certificate = files.serving;
    settings.algorithms = files.algorithms;
    settings.access = files.access;
    settings.read_only_port = files.read_only_port;
    settings.reload_serving_certificate = crate::feature_gates::current().is_on("ReloadKubeletServerCertificateFile");
    settings.cluster_dns.clone_from(&arguments.cluster_dns);
    settings.cluster_domain.clone_from(&arguments.cluster_domain);
    settings.manifests.clone_from(&arguments.pod_manifest_path);
    settings.pod_rules = Some(knarr_rules::core::pod::static_pod::admit);
    settings.node_ip = arguments.node_ip.unwrap_or_else(own_address);
    settings.node_ip_is_given = arguments.node_ip.is_some();
    settings.max_pods = arguments.max_pods;
    settings.serving = arguments.node_listen;
    settings.system_log_query = arguments.enable_system_log_query;
    settings.tracing = tracing(arguments)?;
    settings.cgroup_root.clone_from(&arguments.cgroup_root);
    settings.runtime_cgroup.clone_from(&arguments.runtime_cgroups);
    settings.eviction = arguments.eviction.eviction()?;
    settings.health =
        (arguments.healthz_port > 0).then(|| SocketAddr::new(arguments.healthz_bind_address, arguments.healthz_port));
    arguments.images.apply(&mut settings)?;
    arguments.resources.apply(&mut settings, data)?;
    arguments.tuning.apply(&mut settings)?;
    arguments.registration.apply(&mut settings)?;
    knarr_kubelet::run(client, settings, shutdown).await.context("the node failed")
}

/// Starts or finds the containerd under the data directory. The images of its directory are loaded beside that: a node is
/// ready without them, and only pods that need them wait.
async fn own_containerd(arguments: &NodeArguments, data: &Path, supervisor: Supervisor) -> anyhow::Result<Reached> {
    let cni = arguments.cni_directories(data);
    let snippets = arguments.images.containerd_snippets(data).context("cannot configure containerd")?;
    let containerd =
        Containerd::new(&data.join("containerd"), &cni.binaries, &cni.configuration).with_snippets(snippets);
    let registries = arguments.images.registries_file(data);
    let registries =
        registries.map(|path| RegistriesFile::open(path, containerd.registry_configuration())).transpose()?;
    let runtime = containerd.ensure().await.context("cannot start containerd")?;
    let endpoint = containerd.socket().to_string_lossy().into_owned();
    let (loaded, images_loaded) = watch::channel(false);
    let (directory, target) = (data.join("images"), runtime.clone());
    let loaded = Arc::new(loaded);
    supervisor.complete("image-import", move || {
        let (directory, target, loaded) = (directory.clone(), target.clone(), loaded.clone());
        async move {
            if let Err(error) = import_directory(&target, &directory).await {
                tracing::error!(error = format!("{:#}", anyhow::Error::from(error)), "cannot import images");
            }
            // A stopped node does not wait for images.
            let _ = loaded.send(true);
        }
    });
    supervisor.restart("containerd", move || containerd.clone().supervise(runtime.clone(), HealthChecks::default()));
    let current = registries.as_ref().map(|file| file.current.subscribe());
    if let Some(file) = registries {
        supervisor.restart("registries", move || file.clone().keep());
    }
    Ok(Reached { endpoint, images_loaded, registries: current, supervisor })
}

/// Where the node sends spans, if one of the flags asks for it.
fn tracing(arguments: &NodeArguments) -> anyhow::Result<Option<knarr_traces::Configuration>> {
    let (endpoint, rate) = (arguments.tracing_endpoint.clone(), arguments.tracing_sampling_rate_per_million);
    if endpoint.is_none() && rate.is_none() {
        return Ok(None);
    }
    let configuration = knarr_traces::Configuration { endpoint, sampling_rate_per_million: rate, ..Default::default() };
    configuration.validate()?;
    Ok(Some(configuration))
}
