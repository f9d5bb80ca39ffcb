//! `knarr apiserver`: the standalone API server with its store.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use jiff::Timestamp;
use knarr_apiserver::admit::{DefaultTolerationSeconds, EnabledPlugins};
use knarr_apiserver::authenticate::{SavedSessions, TokenFile};
use knarr_apiserver::encrypt;
use knarr_apiserver::fairness::FairnessSettings;
use knarr_apiserver::outbound::egress::Egress;
use knarr_apiserver::pki::{Identity, Pki};
use knarr_apiserver::provided::resource_metrics;
use knarr_apiserver::startup::{self, ServerHandle, Settings};
use knarr_apiserver::state::ApiServer;
use knarr_apiserver::{background, listen};
use knarr_component_flags::Gates;
use knarr_store::Store;
use knarr_supervisor::{Registry, Supervisor};
use tokio::net::TcpListener;

use super::access::{self, AccessArguments};
use super::api_behaviour::{self, BehaviourArguments};
use super::audit::{self, AuditArguments};
use super::client_certificates::{self, ClientCertificates};
use super::snapshot_schedule::{self, SnapshotArguments};
use super::{datastore, server_files};
use crate::address::own_address;
use crate::signals;

/// How long a process whose component has failed waits for the others to stop.
const FAILED_STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Default network of Services.
pub const SERVICES: &str = "10.96.0.0/12";

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "API server")]
pub struct Arguments {
    /// Data directory of the store, the certificates and the administrator's kubeconfig.
    #[arg(long, default_value = crate::paths::DATA, value_parser = crate::paths::absolute())]
    pub data_dir: PathBuf,
    /// Address and port to listen on.
    #[arg(long, default_value = "0.0.0.0:6443")]
    pub listen: SocketAddr,
    /// Static token file in CSV format: token,user,uid,"group1,group2".
    #[arg(long, alias = "token-auth-file")]
    pub token_file: Option<PathBuf>,
    /// Networks of Services, at most one per address family.
    #[arg(long, value_delimiter = ',', default_value = SERVICES)]
    pub service_cluster_ip_range: Vec<String>,
    /// IP address at which the cluster reaches this server.
    #[arg(long)]
    pub advertise_address: Option<IpAddr>,
    /// URLs of etcd servers, such as https://10.0.0.1:2379; by default an embedded store in the data directory.
    #[arg(long, value_delimiter = ',')]
    pub datastore: Vec<String>,
    /// Size of all stored objects in bytes above which creations are refused; deletions always succeed. 0 means 8 GiB, or
    /// half of the host's memory if that is less. etcd has its own quota.
    #[arg(long, default_value_t = 0)]
    pub quota_backend_bytes: u64,
    /// Directory of the embedded store, if it is not in the data directory.
    #[arg(long, hide = true, conflicts_with = "datastore")]
    pub store_dir: Option<PathBuf>,
    /// Do not wait for the disk: for tests whose data may be lost.
    #[arg(long, hide = true)]
    pub store_unsafe_no_fsync: bool,
    /// Directory for copies of the serving certificate with its authority, and of its key.
    #[arg(long, hide = true, conflicts_with = "tls_cert_file")]
    pub serving_certificate_dir: Option<PathBuf>,
    #[command(flatten)]
    pub snapshots: SnapshotArguments,
    /// CA certificates (PEM) for etcd's serving certificate.
    #[arg(long)]
    pub etcd_cafile: Option<PathBuf>,
    /// Client certificate (PEM) for etcd.
    #[arg(long, requires_all = ["etcd_keyfile", "etcd_cafile"])]
    pub etcd_certfile: Option<PathBuf>,
    /// Private key (PEM) of the client certificate for etcd.
    #[arg(long, requires = "etcd_certfile")]
    pub etcd_keyfile: Option<PathBuf>,
    /// Prefix of all keys in etcd.
    #[arg(long, default_value = "/registry")]
    pub etcd_prefix: String,
    /// EgressSelectorConfiguration file: the proxies through which connections leave.
    #[arg(long)]
    pub egress_selector_config_file: Option<PathBuf>,
    /// EncryptionConfiguration file for encryption at rest.
    #[arg(long)]
    pub encryption_provider_config: Option<PathBuf>,
    /// Read the EncryptionConfiguration file again when it changes.
    #[arg(long, requires = "encryption_provider_config")]
    pub encryption_provider_config_automatic_reload: bool,
    /// TracingConfiguration file: where spans of requests are sent, and how many.
    #[arg(long)]
    pub tracing_config_file: Option<PathBuf>,
    /// Additional names or addresses of the serving certificate.
    #[arg(long, value_delimiter = ',')]
    pub tls_san: Vec<String>,
    /// CA certificates (PEM) for kubelets' serving certificates, in addition to the cluster's own.
    #[arg(long)]
    pub kubelet_certificate_authority: Option<PathBuf>,
    /// Do not verify kubelets' serving certificates, for example self-signed ones.
    #[arg(long, conflicts_with = "kubelet_certificate_authority")]
    pub kubelet_insecure_tls: bool,
    /// Client certificate (PEM) for kubelets, in place of one by the cluster's own authority.
    #[arg(long, requires = "kubelet_client_key")]
    pub kubelet_client_certificate: Option<PathBuf>,
    /// Private key (PEM) of that certificate.
    #[arg(long, requires = "kubelet_client_certificate")]
    pub kubelet_client_key: Option<PathBuf>,
    /// Client certificate (PEM) for aggregated API servers, in place of one by the front proxies' own authority.
    #[arg(long, requires = "proxy_client_key_file")]
    pub proxy_client_cert_file: Option<PathBuf>,
    /// Private key (PEM) of that certificate.
    #[arg(long, requires = "proxy_client_cert_file")]
    pub proxy_client_key_file: Option<PathBuf>,
    /// Admission plugins to enable in addition to the default ones.
    #[arg(long, value_delimiter = ',')]
    pub enable_admission_plugins: Vec<String>,
    /// Admission plugins to disable although they are enabled by default.
    #[arg(long, value_delimiter = ',')]
    pub disable_admission_plugins: Vec<String>,
    /// AdmissionConfiguration file with the configurations of admission plugins.
    #[arg(long)]
    pub admission_control_config_file: Option<PathBuf>,
    /// Queue and limit requests by FlowSchemas and priority levels.
    #[arg(long, num_args = 0..=1, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enable_priority_and_fairness: bool,
    /// Maximum number of requests in flight that read; 0 for no limit. With priority and fairness, the sum of both limits is
    /// divided among the priority levels.
    #[arg(long, default_value_t = 400)]
    pub max_requests_inflight: u32,
    /// Maximum number of requests in flight that write; 0 for no limit.
    #[arg(long, default_value_t = 200)]
    pub max_mutating_requests_inflight: u32,
    /// Serve metrics.k8s.io from the nodes' metrics; always enabled in `knarr server`.
    #[arg(long)]
    pub resource_metrics: bool,
    #[command(flatten)]
    pub behaviour: BehaviourArguments,
    #[command(flatten)]
    pub access: AccessArguments,
    #[command(flatten)]
    pub audit: AuditArguments,
}

/// A running API server.
pub struct Running {
    pub started: ServerHandle,
    pub listens: SocketAddr,
    /// Where other hosts reach it.
    pub advertised: SocketAddr,
    pub pki: Arc<Pki>,
    supervisor: Supervisor,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let components = Registry::default();
    let running = start(&arguments, None, &components).await?;
    let ended = signals::stopped_or_failed(&components).await;
    if ended.is_ok() {
        running.drain(&arguments.behaviour).await;
    }
    running.stop().await;
    ended
}

/// Refuses what cannot be used, without the store and the network.
pub fn check(arguments: &Arguments) -> anyhow::Result<()> {
    access::tls_settings(&arguments.access, false).check()?;
    if let Some(path) = &arguments.egress_selector_config_file {
        Egress::read(path)?;
    }
    access::check(&arguments.access)?;
    fairness(arguments)?;
    let gates = api_behaviour::gates(&arguments.behaviour)?;
    admission_plugins(arguments, &gates)?;
    Ok(())
}

/// Starts serving, and creates the initial objects of a cluster. The store is that of the arguments, unless one is given.
pub async fn start(
    arguments: &Arguments,
    store: Option<Arc<dyn Store>>,
    components: &Registry,
) -> anyhow::Result<Running> {
    let started_at = std::time::Instant::now();
    let gates = api_behaviour::gates(&arguments.behaviour)?;
    let behaviour = api_behaviour::behaviour(&arguments.behaviour, &gates)?;
    if let Some(path) = &arguments.egress_selector_config_file {
        Egress::read(path)?.apply();
    }
    std::fs::create_dir_all(&arguments.data_dir)
        .with_context(|| format!("cannot create {}", arguments.data_dir.display()))?;
    let listener =
        TcpListener::bind(arguments.listen).await.with_context(|| format!("cannot listen on {}", arguments.listen))?;
    let address = listener.local_addr()?;
    let advertised = arguments.advertise_address.unwrap_or_else(|| advertised(address.ip()));
    let store = match store {
        Some(store) => store,
        None => datastore::open(arguments).await?,
    };
    let (store, encryption) = datastore::encrypted(arguments, store)?;
    // The nodes and pods of `knarr server` trust the cluster's own authority.
    let tls = access::tls_settings(&arguments.access, arguments.resource_metrics);
    let directory = arguments.data_dir.join("pki");
    let pki = Arc::new(Pki::open_with(&directory, identity(arguments, advertised), tls, Timestamp::now())?);
    if let Some(copies) = &arguments.serving_certificate_dir {
        server_files::copy_serving_certificate(&directory, &pki.authority.certificate, copies)?;
    }
    let (client_authority, front_proxy_authority) = access::authorities(&arguments.access, &pki)?;
    let (mut access_settings, watched) = access::settings(&arguments.access)?;
    access_settings.encryption = encryption.as_ref().map(|(encryption, _)| encryption.clone());
    let started = startup::start(Settings {
        store,
        token_file: token_file(arguments)?,
        service_accounts: Arc::new(access::service_accounts(&arguments.access, &pki)?),
        client_authority,
        front_proxy_authority,
        descriptions: super::common::descriptions(),
        service_ranges: arguments.service_cluster_ip_range.clone(),
        address: SocketAddr::new(advertised, address.port()).to_string(),
        provided: if arguments.resource_metrics { resource_metrics::kinds() } else { Vec::new() },
        pages: crate::journal::pages()
            .into_iter()
            .chain(crate::servers::pages())
            .chain(crate::component_server::of_api_server(components))
            .collect(),
        components: components.clone(),
        admission_plugins: admission_plugins(arguments, &gates)?,
        access: access_settings,
        behaviour,
    });
    let server = started.server.clone();
    server.backend.fairness.configure(fairness(arguments)?, &*server.backend.objects);
    let saved = SavedSessions::open(&arguments.data_dir.join("ui-sessions.json"), pki.serving.clients());
    server.security.saved_sessions.get_or_init(|| saved);
    let audit_senders = audit::start(&arguments.audit, &server)?;
    let clients = ClientCertificates::configured(arguments, &pki)?;
    client_certificates::apply(&pki, &server, &clients, Timestamp::now())?;
    let serving = listen::serve(server.clone(), listener, pki.serving.clone(), server.backend.stopping.clone());
    let supervisor = Supervisor::new(&server.telemetry.components);
    if let Some(path) = &arguments.tracing_config_file {
        start_tracing(path, address, &server, &supervisor)?;
    }
    supervisor.essential("store", watch_store(server.clone()));
    supervisor.essential("api-server", serving);
    background::run(&server, &supervisor);
    snapshot_schedule::start(&arguments.snapshots, &arguments.data_dir, &server, &supervisor)?;
    access::watch_files(&arguments.access, watched, &server, &pki, &supervisor);
    for sender in audit_senders {
        supervisor.essential("audit", sender);
    }
    // A configuration without plugins may be replaced by one with plugins.
    let reloads = arguments.encryption_provider_config_automatic_reload;
    if encryption.as_ref().is_some_and(|(encryption, _)| reloads || encryption.health().is_some()) {
        let (store, stopping) = (server.backend.store.clone(), server.backend.stopping.clone());
        supervisor.restart("encryption-keys", move || encrypt::open_keys(store.clone(), stopping.clone()));
    }
    if let (Some((encryption, text)), Some(path), true) =
        (encryption, arguments.encryption_provider_config.clone(), reloads)
    {
        let stopping = server.backend.stopping.clone();
        supervisor.restart("encryption-config", move || {
            encrypt::watch_configuration(encryption.clone(), path.clone(), text.clone(), stopping.clone())
        });
    }
    {
        let (pki, server) = (pki.clone(), server.clone());
        supervisor.restart("certificate-renewal", move || {
            client_certificates::renew(pki.clone(), server.clone(), clients.clone())
        });
    }
    let reached = SocketAddr::new(advertised, address.port());
    startup::prepare(&server, &arguments.service_cluster_ip_range, reached).await?;
    {
        let (server, ranges) = (server.clone(), arguments.service_cluster_ip_range.clone());
        supervisor.restart("kubernetes-service", move || startup::maintain(server.clone(), ranges.clone(), reached));
    }
    server_files::write_kubeconfig(&arguments.data_dir, &local_url(address), &pki)?;
    started.ready.send_replace(true);
    tracing::info!(%address, took = ?started_at.elapsed(), "the API server is ready");
    Ok(Running { started, listens: address, advertised: reached, pki, supervisor })
}

/// Sends spans of requests to the collector that the file names.
fn start_tracing(path: &Path, address: SocketAddr, server: &ApiServer, supervisor: &Supervisor) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let configuration = knarr_traces::Configuration::parse(&text)?;
    let instance = [("service.instance.id", address.to_string())];
    let tracer = knarr_traces::Tracer::start(&configuration, "apiserver", &instance, supervisor)?;
    // It is set once, here.
    let _ = server.telemetry.tracer.set(tracer);
    Ok(())
}

fn admission_plugins(arguments: &Arguments, gates: &Gates) -> anyhow::Result<EnabledPlugins> {
    let without_feature: Vec<String> = api_behaviour::disabled_plugins(gates).collect();
    let enabled = arguments.enable_admission_plugins.iter().filter(|plugin| !without_feature.contains(plugin));
    let disabled = arguments.disable_admission_plugins.iter().chain(&without_feature);
    let mut plugins = EnabledPlugins::new(
        &enabled.cloned().collect::<Vec<_>>(),
        &disabled.cloned().collect::<Vec<_>>(),
        arguments.admission_control_config_file.as_deref(),
    )?;
    plugins.default_tolerations = DefaultTolerationSeconds {
        not_ready: arguments.behaviour.default_not_ready_toleration_seconds,
        unreachable: arguments.behaviour.default_unreachable_toleration_seconds,
    };
    Ok(plugins)
}

fn fairness(arguments: &Arguments) -> anyhow::Result<FairnessSettings> {
    let (max_reads, max_writes) = (arguments.max_requests_inflight, arguments.max_mutating_requests_inflight);
    let enabled = arguments.enable_priority_and_fairness;
    if enabled && max_reads.saturating_add(max_writes) == 0 {
        anyhow::bail!("--max-requests-inflight and --max-mutating-requests-inflight: their sum must be positive");
    }
    Ok(FairnessSettings { enabled, max_reads, max_writes })
}

impl Running {
    /// Serves on for the delay that was asked for, then refuses new requests and lets active ones finish.
    pub async fn drain(&self, arguments: &BehaviourArguments) {
        self.started.ready.send_replace(false);
        tokio::time::sleep(arguments.shutdown_delay_duration).await;
        if arguments.shutdown_send_retry_after {
            let drain = &self.started.server.drain;
            drain.start_refusing();
            drain.finished(arguments.request_timeout).await;
        }
    }

    /// Closes watches, waits for requests, and closes the store.
    pub async fn stop(self) {
        self.supervisor.expect_stop();
        self.started.stop.send_replace(true);
        let has_failed = self.supervisor.registry().failure().is_some();
        // What failed may never return.
        let timeout = if has_failed { FAILED_STOP_TIMEOUT } else { Duration::MAX };
        let _ = tokio::time::timeout(timeout, self.supervisor.finish()).await;
    }
}

/// Ends with an error when the store has failed for good.
async fn watch_store(server: Arc<ApiServer>) -> Result<(), String> {
    let mut stopping = server.backend.stopping.clone();
    tokio::select! {
        reason = server.backend.store.failed() => Err(reason),
        _ = stopping.wait_for(|stopping| *stopping) => Ok(()),
    }
}

fn token_file(arguments: &Arguments) -> anyhow::Result<TokenFile> {
    let Some(path) = &arguments.token_file else { return Ok(TokenFile::parse("")?) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(TokenFile::parse(&text)?)
}

fn identity(arguments: &Arguments, advertised: IpAddr) -> Identity {
    let mut identity = Identity { names: Vec::new(), addresses: vec![advertised] };
    for name in &arguments.tls_san {
        match name.parse() {
            Ok(address) => identity.addresses.push(address),
            Err(_) => identity.names.push(name.clone()),
        }
    }
    for range in &arguments.service_cluster_ip_range {
        identity.addresses.extend(knarr_apiserver::service::first_address(range));
    }
    identity
}

/// The advertised address, also if the server listens on all addresses or on loopback.
fn advertised(listening: IpAddr) -> IpAddr {
    if listening.is_unspecified() || listening.is_loopback() { own_address() } else { listening }
}

/// Where this host reaches the server.
pub fn local_url(listens: SocketAddr) -> String {
    let host = if listens.ip().is_unspecified() { IpAddr::from([127, 0, 0, 1]) } else { listens.ip() };
    format!("https://{}", SocketAddr::new(host, listens.port()))
}
