//! The configuration of one kubelet.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;

use crate::eviction::Eviction;
use crate::image_verification::Verification;

/// Everything an operator can configure. [`Settings::new`] sets the defaults.
#[derive(Clone, Debug)]
pub struct Settings {
    pub node_name: String,
    /// Certificates and checkpoints of the node; survives a restart.
    pub root: PathBuf,
    /// Container logs, one directory per pod.
    pub log_root: PathBuf,
    /// Where an older version kept them: pods of that version keep their directory.
    pub older_log_root: Option<PathBuf>,
    /// Directory of links to the logs of containers, which log collectors read.
    pub log_links: Option<PathBuf>,
    /// The CRI socket, as a path or `unix://` address.
    pub runtime_endpoint: String,
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    /// The resolver configuration pods with `dnsPolicy: Default` inherit; none means an empty one.
    pub resolv_conf: Option<PathBuf>,
    /// Manifests of static pods.
    pub manifests: Option<PathBuf>,
    /// The API server's defaulting and validation of pods, applied to static pods. Without it, none is accepted.
    pub pod_rules: Option<PodRules>,
    /// The address to report.
    pub node_ip: IpAddr,
    pub register: bool,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// Whether a cloud controller manager initializes the node: it removes a taint and sets the addresses.
    pub external_cloud_provider: bool,
    /// The node's ID at its cloud provider.
    pub provider_id: Option<String>,
    /// Whether `node_ip` was configured, and not found.
    pub node_ip_is_given: bool,
    pub max_pods: u32,
    pub pod_pids_limit: Option<u64>,
    /// Resources reserved for the system and for Knarr, summed: quantities by resource name.
    pub reserved: BTreeMap<String, String>,
    pub eviction: Eviction,
    /// Where the node's HTTPS endpoints listen.
    pub serving: SocketAddr,
    /// Where the health endpoint listens, without TLS; none disables it.
    pub health: Option<SocketAddr>,
    /// Whether the logs of the host's services can be queried, in addition to its log files.
    pub system_log_query: bool,
    /// Where spans are sent, if anywhere.
    pub tracing: Option<knarr_traces::Configuration>,
    pub serving_certificate: Option<CertificateFiles>,
    /// Versions and cipher suites of TLS for the node's HTTPS endpoints.
    pub algorithms: knarr_identity::TlsAlgorithms,
    /// Whether a certificate that replaces the configured one is served without a restart.
    pub reload_serving_certificate: bool,
    /// Without a configured certificate, request one from the API instead of using a self-signed one.
    pub request_serving_certificate: bool,
    /// Authorities whose client certificates are accepted.
    pub client_ca: Option<PathBuf>,
    pub access: EndpointAccess,
    /// The port where health, pods, statistics and metrics are served to everybody, without TLS.
    pub read_only_port: Option<u16>,
    /// The cgroup driver for runtimes that do not report theirs.
    pub cgroup_driver: crate::cgroup::driver::Driver,
    /// Do not start on a host with cgroup v1, or with swap.
    pub fail_cgroup_v1: bool,
    pub fail_swap_on: bool,
    /// Whether burstable containers may use the host's swap, each in proportion to its memory request.
    pub limited_swap: bool,
    /// The cgroup below which all pods live.
    pub cgroup_root: String,
    /// The container runtime's cgroup, for its statistics.
    pub runtime_cgroup: Option<String>,
    pub log_max_size: u64,
    pub log_max_files: u32,
    pub image_gc_high_percent: u8,
    pub image_gc_low_percent: u8,
    /// Becomes true once the node's image archives are imported into the runtime: until then a missing image may still
    /// be imported.
    pub images_loaded: tokio::sync::watch::Receiver<bool>,
    pub images: ImageSettings,
    pub tuning: Tuning,
    /// Seccomp profiles named by pods with type `Localhost`.
    pub seccomp_profiles: PathBuf,
    /// Pods without a seccomp profile get the runtime's instead of none.
    pub seccomp_default: bool,
    /// Namespaced sysctls beyond the safe ones that pods may set; a trailing `*` matches any rest.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// How long pods get to terminate when the host shuts down, by their priority; those of low priority terminate first.
    pub shutdown: Vec<ShutdownPeriod>,
    /// How CPUs, memory and devices are assigned to containers.
    pub resources: crate::resources::Policies,
    /// The directory that plugins, CSI drivers and monitoring agents know as the kubelet's: volumes of pods, sockets, and
    /// what CSI drivers stage.
    pub plugin_root: PathBuf,
}

/// Pods of this priority and above, up to the next period's, have this long to terminate when the host shuts down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShutdownPeriod {
    pub priority: i32,
    pub grace: Duration,
}

impl ShutdownPeriod {
    /// The periods of a grace period of which a part is reserved for critical pods.
    pub fn with_critical(grace: Duration, critical: Duration) -> Vec<Self> {
        let critical = critical.min(grace);
        match grace.is_zero() {
            true => Vec::new(),
            false => vec![
                Self { priority: 0, grace: grace - critical },
                Self { priority: crate::pod::SYSTEM_CRITICAL, grace: critical },
            ],
        }
    }
}

/// Who may use the node's HTTPS endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointAccess {
    /// Whether requests without credentials are those of the anonymous user, and not refused.
    pub anonymous: bool,
    /// How long the API server's reviews of tokens are cached; none ignores tokens.
    pub tokens: Option<Duration>,
    /// How long the API server's decisions are cached; none allows everything to everybody who is authenticated.
    pub decisions: Option<DecisionLifetimes>,
}

/// How long allowed and denied requests are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionLifetimes {
    pub allowed: Duration,
    pub denied: Duration,
}

impl Default for DecisionLifetimes {
    fn default() -> Self {
        Self { allowed: Duration::from_secs(120), denied: Duration::from_secs(30) }
    }
}

impl Default for EndpointAccess {
    fn default() -> Self {
        Self { anonymous: false, tokens: Some(Duration::from_secs(120)), decisions: Some(DecisionLifetimes::default()) }
    }
}

/// Intervals and limits that few change.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// How often the node's status is computed, and how long an unchanged one may stay unwritten.
    pub status_update: Duration,
    pub status_report: Duration,
    /// How many images the node's status names; none for all.
    pub status_images: Option<usize>,
    pub lease_seconds: i32,
    pub log_check: Duration,
    /// Whether an out-of-memory kill ends a single process instead of its container, with cgroup v2.
    pub single_process_oom_kill: bool,
    /// Whether exec, logs and the like are served, and the host's logs.
    pub debugging_handlers: bool,
    pub system_log_handler: bool,
    pub restart_backoff: RestartBackoff,
    /// Whether containers can be checkpointed.
    pub checkpoints: bool,
}

/// The delays before containers restart: none at first, then `initial`, doubled each time up to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartBackoff {
    pub initial: Duration,
    pub max: Duration,
}

impl Default for RestartBackoff {
    fn default() -> Self {
        Self { initial: Duration::from_secs(10), max: Duration::from_secs(300) }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            status_update: Duration::from_secs(10),
            status_report: Duration::from_secs(300),
            status_images: Some(50),
            lease_seconds: 40,
            log_check: Duration::from_secs(10),
            single_process_oom_kill: false,
            debugging_handlers: true,
            system_log_handler: true,
            restart_backoff: RestartBackoff::default(),
            checkpoints: true,
        }
    }
}

/// How images are pulled and removed.
#[derive(Clone)]
pub struct ImageSettings {
    pub credential_providers: Option<CredentialProviderFiles>,
    /// For which images on the node pods must show credentials.
    pub verification: Verification,
    pub max_parallel_pulls: usize,
    /// Mirrors and credentials of the node for its own containerd.
    pub registries: Option<tokio::sync::watch::Receiver<std::sync::Arc<knarr_cri::containerd::Registries>>>,
    /// A recently used image may be needed again soon.
    pub min_age: Duration,
    /// How long an image may stay unused; none keeps it until space is needed.
    pub max_age: Option<Duration>,
}

/// The configuration of credential providers, and the directory of their programs.
#[derive(Clone, Debug)]
pub struct CredentialProviderFiles {
    pub configuration: PathBuf,
    pub directory: PathBuf,
}

/// Credentials are left out.
impl std::fmt::Debug for ImageSettings {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ImageSettings")
            .field("credential_providers", &self.credential_providers)
            .field("verification", &self.verification)
            .field("max_parallel_pulls", &self.max_parallel_pulls)
            .field("min_age", &self.min_age)
            .field("max_age", &self.max_age)
            .finish_non_exhaustive()
    }
}

impl Default for ImageSettings {
    fn default() -> Self {
        Self {
            credential_providers: None,
            verification: Verification::default(),
            max_parallel_pulls: 8,
            registries: None,
            min_age: Duration::from_secs(120),
            max_age: None,
        }
    }
}

/// Sets the defaults of a static pod and validates it; the error is the message.
pub type PodRules = fn(&mut serde_json::Value) -> Result<(), String>;

/// The PEM files of a certificate and its key.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Settings {
    /// The default settings of a node.
    pub fn new(node_name: impl Into<String>, data_directory: impl Into<PathBuf>, runtime_endpoint: String) -> Self {
        let root: PathBuf = data_directory.into();
        let plugin_root = root.clone();
        Self {
            node_name: node_name.into(),
            seccomp_profiles: root.join("seccomp"),
            root,
            log_root: PathBuf::from("/var/log/pods"),
            older_log_root: None,
            log_links: None,
            runtime_endpoint,
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_string(),
            resolv_conf: Some(PathBuf::from("/etc/resolv.conf")),
            manifests: None,
            pod_rules: None,
            node_ip: Ipv4Addr::LOCALHOST.into(),
            register: true,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            external_cloud_provider: false,
            provider_id: None,
            node_ip_is_given: false,
            max_pods: 110,
            pod_pids_limit: None,
            reserved: BTreeMap::new(),
            eviction: Eviction::default(),
            serving: SocketAddr::from(([0, 0, 0, 0], 10250)),
            health: Some(SocketAddr::from(([127, 0, 0, 1], 10248))),
            system_log_query: false,
            tracing: None,
            serving_certificate: None,
            algorithms: Default::default(),
            reload_serving_certificate: true,
            request_serving_certificate: false,
            client_ca: None,
            access: EndpointAccess::default(),
            read_only_port: None,
            cgroup_driver: crate::cgroup::driver::Driver::default(),
            fail_cgroup_v1: false,
            fail_swap_on: false,
            limited_swap: false,
            cgroup_root: "/".to_string(),
            runtime_cgroup: None,
            log_max_size: 10 << 20,
            log_max_files: 5,
            image_gc_high_percent: 85,
            image_gc_low_percent: 80,
            images: ImageSettings::default(),
            tuning: Tuning::default(),
            images_loaded: tokio::sync::watch::channel(true).1,
            seccomp_default: false,
            allowed_unsafe_sysctls: Vec::new(),
            shutdown: Vec::new(),
            resources: crate::resources::Policies::default(),
            plugin_root,
        }
    }

    /// The directory of a pod's volumes and files. Pods of an older version stay where they are.
    pub fn pod_directory(&self, uid: &str) -> PathBuf {
        let [current, older] = [&self.plugin_root, &self.root].map(|root| root.join("pods").join(uid));
        if self.plugin_root != self.root && older.exists() { older } else { current }
    }

    /// The parent directories of pods.
    pub fn pod_parents(&self) -> Vec<PathBuf> {
        let mut parents = vec![self.plugin_root.join("pods"), self.root.join("pods")];
        parents.dedup();
        parents
    }

    /// The directory of a pod's logs.
    pub fn log_directory(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        let own = format!("{namespace}_{name}_{uid}");
        let older = self.older_log_root.as_ref().map(|root| root.join(&own)).filter(|older| older.exists());
        older.unwrap_or_else(|| self.log_root.join(own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_an_older_version_keep_their_directories() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut settings = Settings::new("n", directory.path().join("old"), "/x".into());
        settings.plugin_root = directory.path().join("kubelet");
        settings.log_root = directory.path().join("pods");
        settings.older_log_root = Some(directory.path().join("logs"));
        assert_eq!(settings.pod_directory("u"), directory.path().join("kubelet/pods/u"));
        assert_eq!(settings.log_directory("ns", "p", "u"), directory.path().join("pods/ns_p_u"));
        for older in ["old/pods/u", "logs/ns_p_u"] {
            std::fs::create_dir_all(directory.path().join(older)).expect("made");
        }
        assert_eq!(settings.pod_directory("u"), directory.path().join("old/pods/u"));
        assert_eq!(settings.log_directory("ns", "p", "u"), directory.path().join("logs/ns_p_u"));
        assert_eq!(settings.pod_parents().len(), 2);
        settings.plugin_root.clone_from(&settings.root);
        assert_eq!(settings.pod_parents().len(), 1);
    }
}
