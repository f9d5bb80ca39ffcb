//! `knarr apiserver`: the standalone API server with its store.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use jiff::Timestamp;
use knarr_apiserver::admit::EnabledPlugins;
use knarr_apiserver::audit::{Audit, Log, LogSettings, Policy};
use knarr_apiserver::authenticate::{ServiceAccountTokens, TokenFile};
use knarr_apiserver::encrypt::{Configuration, Encrypted};
use knarr_apiserver::outbound::Identity as ProxyIdentity;
use knarr_apiserver::pki::{Identity, Pki, kubeconfig};
use knarr_apiserver::provided::resource_metrics;
use knarr_apiserver::startup::{self, ServerHandle, Settings};
use knarr_apiserver::state::ApiServer;
use knarr_apiserver::subresource::connect::Trust;
use knarr_apiserver::{background, listen};
use knarr_store::{Embedded, Etcd, EtcdOptions, Store, Tls};
use tokio::net::TcpListener;

use super::common;
use crate::address::own_address;

/// Issuer and audience of service account tokens.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

const RENEWAL_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Default network of Services.
pub const SERVICES: &str = "10.96.0.0/12";

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "API server")]
pub struct Arguments {
    /// Data directory of the store, the certificates and the administrator's kubeconfig.
    #[arg(long, default_value = "/var/lib/knarr")]
    pub data_dir: PathBuf,
    /// Address and port to listen on.
    #[arg(long, default_value = "0.0.0.0:6443")]
    pub listen: SocketAddr,
    /// Static token file in CSV format: token,user,uid,"group1,group2".
    #[arg(long)]
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
    /// CA certificates (PEM) for etcd's serving certificate.
    #[arg(long)]
    pub etcd_cafile: Option<PathBuf>,
    /// Client certificate (PEM) for etcd.
    #[arg(long, requires_all = ["etcd_keyfile", "etcd_cafile"])]
    pub etcd_certfile: Option<PathBuf>,
    /// Private key (PEM) of the client certificate for etcd.
    #[arg(long, requires = "etcd_certfile")]
    pub etcd_keyfile: Option<PathBuf>,
    /// EncryptionConfiguration file for encryption at rest.
    #[arg(long)]
    pub encryption_provider_config: Option<PathBuf>,
    /// Audit Policy file.
    #[arg(long, requires = "audit_log_path")]
    pub audit_policy_file: Option<PathBuf>,
    /// Audit log file; `-` for standard output.
    #[arg(long, requires = "audit_policy_file")]
    pub audit_log_path: Option<PathBuf>,
    /// Days to retain rotated audit logs; 0 for no limit.
    #[arg(long, default_value_t = 0)]
    pub audit_log_maxage: u64,
    /// Number of rotated audit logs to retain; 0 for no limit.
    #[arg(long, default_value_t = 0)]
    pub audit_log_maxbackup: usize,
    /// Size in megabytes at which an audit log is rotated.
    #[arg(long, default_value_t = 100)]
    pub audit_log_maxsize: u64,
    /// Additional names or addresses of the serving certificate.
    #[arg(long, value_delimiter = ',')]
    pub tls_san: Vec<String>,
    /// CA certificates (PEM) for kubelets' serving certificates, in addition to the cluster's own.
    #[arg(long)]
    pub kubelet_certificate_authority: Option<PathBuf>,
    /// Do not verify kubelets' serving certificates, for example self-signed ones.
    #[arg(long, conflicts_with = "kubelet_certificate_authority")]
    pub kubelet_insecure_tls: bool,
    /// Admission plugins to enable in addition to the default ones: DenyServiceExternalIPs.
    #[arg(long, value_delimiter = ',')]
    pub enable_admission_plugins: Vec<String>,
    /// Serve metrics.k8s.io from the nodes' metrics; always enabled in `knarr server`.
    #[arg(long)]
    pub resource_metrics: bool,
}

/// A running API server.
pub struct Running {
    pub started: ServerHandle,
    /// Where other hosts reach it.
    pub advertised: SocketAddr,
    pub pki: Arc<Pki>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let running = start(&arguments).await?;
    common::stopped().await?;
    running.stop().await;
    Ok(())
}

/// Starts serving, and creates the initial objects of a cluster.
pub async fn start(arguments: &Arguments) -> anyhow::Result<Running> {
    let started_at = std::time::Instant::now();
    std::fs::create_dir_all(&arguments.data_dir)
        .with_context(|| format!("cannot create {}", arguments.data_dir.display()))?;
    let listener =
        TcpListener::bind(arguments.listen).await.with_context(|| format!("cannot listen on {}", arguments.listen))?;
    let address = listener.local_addr()?;
    let advertised = arguments.advertise_address.unwrap_or_else(|| advertised(address.ip()));
    let store = encrypted(arguments, open_store(arguments).await?)?;
    let pki = Arc::new(Pki::open(&arguments.data_dir.join("pki"), identity(arguments, advertised), Timestamp::now())?);
    let tokens = ServiceAccountTokens::new(&pki.service_account_key, ISSUER, vec![ISSUER.to_owned()])?;
    let started = startup::start(Settings {
        store,
        token_file: token_file(arguments)?,
        service_accounts: Arc::new(tokens),
        client_authority: pki.authority.certificate.clone(),
        front_proxy_authority: pki.front_proxy_authority.certificate.clone(),
        descriptions: super::common::descriptions(),
        service_ranges: arguments.service_cluster_ip_range.clone(),
        address: SocketAddr::new(advertised, address.port()).to_string(),
        provided: if arguments.resource_metrics { resource_metrics::kinds() } else { Vec::new() },
        pages: crate::journal::pages(),
        admission_plugins: EnabledPlugins::parse(&arguments.enable_admission_plugins)?,
    });
    let server = started.server.clone();
    record_requests(arguments, &server)?;
    let trust = kubelet_trust(arguments, &pki)?;
    call_kubelets(&pki, &server, &trust, Timestamp::now())?;
    let serving = listen::serve(server.clone(), listener, pki.serving.clone(), server.stopping.clone());
    let mut tasks = vec![tokio::spawn(serving)];
    tasks.extend(background::run(&server));
    tasks.push(tokio::spawn(renew(pki.clone(), server.clone(), trust)));
    let reached = SocketAddr::new(advertised, address.port());
    startup::prepare(&server, &arguments.service_cluster_ip_range, reached).await?;
    tasks.push(tokio::spawn(startup::maintain(server.clone(), arguments.service_cluster_ip_range.clone(), reached)));
    write_kubeconfig(arguments, &pki, address)?;
    started.ready.send_replace(true);
    tracing::info!(%address, took = ?started_at.elapsed(), "the API server is ready");
    Ok(Running { started, advertised: reached, pki, tasks })
}

impl Running {
    /// Closes watches, waits for requests, and closes the store.
    pub async fn stop(self) {
        self.started.stop.send_replace(true);
        for task in self.tasks {
            if let Err(error) = task.await {
                tracing::warn!(%error, "a task failed while stopping");
            }
        }
    }
}

/// Renews certificates long before they expire, without a restart.
async fn renew(pki: Arc<Pki>, server: Arc<ApiServer>, trust: Trust) {
    let mut stopping = server.stopping.clone();
    loop {
        tokio::select! {
            () = tokio::time::sleep(RENEWAL_INTERVAL) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        let now = Timestamp::now();
        let renewed = pki.renew(now).map_err(anyhow::Error::from);
        let renewed = renewed.and_then(|()| call_kubelets(&pki, &server, &trust, now));
        if let Err(error) = renewed {
            tracing::error!(%error, "cannot renew certificates");
        }
    }
}

/// Sets the current client certificates for kubelets and aggregated APIs.
fn call_kubelets(pki: &Pki, server: &ApiServer, trust: &Trust, now: Timestamp) -> anyhow::Result<()> {
    let proxy = pki.front_proxy_client(now)?;
    server.discovery.aggregation.set_identity(ProxyIdentity { certificate: proxy.certificate, key: proxy.key });
    let own = pki.kubelet_client(now)?;
    Ok(server.kubelets.set_credentials(&own.certificate, &own.key, trust)?)
}

fn kubelet_trust(arguments: &Arguments, pki: &Pki) -> anyhow::Result<Trust> {
    if arguments.kubelet_insecure_tls {
        return Ok(Trust::Anyone);
    }
    let mut authorities = pki.authority.certificate.clone();
    if let Some(path) = &arguments.kubelet_certificate_authority {
        let more = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        authorities.push('\n');
        authorities.push_str(&more);
    }
    Ok(Trust::Authorities(authorities))
}

async fn open_store(arguments: &Arguments) -> anyhow::Result<Arc<dyn Store>> {
    if !arguments.datastore.is_empty() {
        let store = Etcd::connect(&arguments.datastore, etcd_tls(arguments)?, EtcdOptions::default())
            .await
            .with_context(|| format!("cannot reach the store at {}", arguments.datastore.join(", ")))?;
        return Ok(Arc::new(store));
    }
    let directory = arguments.data_dir.join("store");
    let store = Embedded::open(&directory, knarr_store::Options::default()).with_context(|| {
        format!(
            "cannot open the store in {0}: if it is damaged, move {0} away and bring back a snapshot with \
                 `knarr snapshot restore`",
            directory.display()
        )
    })?;
    Ok(Arc::new(store))
}

/// Enables the audit log, if configured.
fn record_requests(arguments: &Arguments, server: &ApiServer) -> anyhow::Result<()> {
    let (Some(file), Some(path)) = (&arguments.audit_policy_file, &arguments.audit_log_path) else { return Ok(()) };
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let policy = Policy::parse(&text).with_context(|| format!("cannot use {}", file.display()))?;
    let settings = LogSettings {
        path: path.clone(),
        days: arguments.audit_log_maxage,
        files: arguments.audit_log_maxbackup,
        megabytes: arguments.audit_log_maxsize,
    };
    let log = Log::open(settings).with_context(|| format!("cannot open {}", path.display()))?;
    // The server was just created: nothing was set before.
    let _ = server.telemetry.audit.set(Audit::new(policy, log));
    Ok(())
}

/// Wraps the store with encryption at rest, if configured.
fn encrypted(arguments: &Arguments, store: Arc<dyn Store>) -> anyhow::Result<Arc<dyn Store>> {
    let Some(path) = &arguments.encryption_provider_config else { return Ok(store) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let configuration = Configuration::parse(&text).with_context(|| format!("cannot use {}", path.display()))?;
    Ok(Arc::new(Encrypted::new(store, configuration)))
}

fn etcd_tls(arguments: &Arguments) -> anyhow::Result<Option<Tls>> {
    let Some(authority) = &arguments.etcd_cafile else { return Ok(None) };
    let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let identity = match (&arguments.etcd_certfile, &arguments.etcd_keyfile) {
        (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
        _ => None,
    };
    Ok(Some(Tls { authority: read(authority)?, identity }))
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

fn write_kubeconfig(arguments: &Arguments, pki: &Pki, address: SocketAddr) -> anyhow::Result<()> {
    let host = if address.ip().is_unspecified() { IpAddr::from([127, 0, 0, 1]) } else { address.ip() };
    let server = format!("https://{}", SocketAddr::new(host, address.port()));
    let text = kubeconfig(&server, &pki.authority.certificate, "kubernetes-admin", &pki.admin(Timestamp::now())?);
    let path = common::kubeconfig(&arguments.data_dir);
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    write_private(&path, text.as_bytes())
}

/// Writes a file that only its owner can read, atomically.
fn write_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let new = path.with_extension("new");
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| std::fs::rename(&new, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: super::Arguments,
    }

    #[test]
    fn a_certificate_for_etcd_is_not_overlooked() {
        let parse = |names: &[&str]| {
            let flags = names.iter().flat_map(|name| [format!("--etcd-{name}"), "file".to_owned()]);
            Line::try_parse_from(["knarr".to_owned()].into_iter().chain(flags)).map(|line| line.arguments.etcd_certfile)
        };
        assert!(parse(&["cafile", "certfile", "keyfile"]).is_ok_and(|file| file.is_some()));
        assert!(parse(&["cafile"]).is_ok());
        let refused = parse(&["certfile", "keyfile"]).unwrap_err().to_string();
        assert!(refused.contains("--etcd-cafile"), "{refused}");
        assert!(parse(&["cafile", "certfile"]).is_err());
    }
}
