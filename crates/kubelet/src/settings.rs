//! The configuration of one kubelet.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;

use crate::eviction::Eviction;

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
    /// The API server's defaulting and validation of pods, applied to static pods.
    pub pod_rules: Option<PodRules>,
    /// The address to report.
    pub node_ip: IpAddr,
    pub register: bool,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
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
    /// Without a configured certificate, request one from the API instead of using a self-signed one.
    pub request_serving_certificate: bool,
    /// Authorities whose client certificates are accepted.
    pub client_ca: Option<PathBuf>,
    /// The cgroup below which all pods live.
    pub cgroup_root: String,
    pub log_max_size: u64,
    pub log_max_files: u32,
    pub image_gc_high_percent: u8,
    pub image_gc_low_percent: u8,
    /// Becomes true once the node's image archives are imported into the runtime: until then a missing image may still
    /// be imported.
    pub images_loaded: tokio::sync::watch::Receiver<bool>,
    /// Seccomp profiles named by pods with type `Localhost`.
    pub seccomp_profiles: PathBuf,
    /// Pods without a seccomp profile get the runtime's instead of none.
    pub seccomp_default: bool,
    /// Namespaced sysctls beyond the safe ones that pods may set; a trailing `*` matches any rest.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// How long pods get to terminate when the host shuts down, and how much of that is reserved for critical ones.
    pub shutdown_grace: Duration,
    pub shutdown_grace_critical: Duration,
    /// How CPUs, memory and devices are assigned to containers.
    pub resources: crate::resources::Policies,
    /// The directory that plugins, CSI drivers and monitoring agents know as the kubelet's: volumes of pods, sockets, and
    /// what CSI drivers stage.
    pub plugin_root: PathBuf,
}

/// Sets the defaults of a pod and returns all validation errors.
pub type PodRules = fn(&mut serde_json::Value) -> Result<(), Vec<String>>;

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
            max_pods: 110,
            pod_pids_limit: None,
            reserved: BTreeMap::new(),
            eviction: Eviction::default(),
            serving: SocketAddr::from(([0, 0, 0, 0], 10250)),
            health: Some(SocketAddr::from(([127, 0, 0, 1], 10248))),
            system_log_query: false,
            tracing: None,
            serving_certificate: None,
            request_serving_certificate: false,
            client_ca: None,
            cgroup_root: "/".to_string(),
            log_max_size: 10 << 20,
            log_max_files: 5,
            image_gc_high_percent: 85,
            image_gc_low_percent: 80,
            images_loaded: tokio::sync::watch::channel(true).1,
            seccomp_default: false,
            allowed_unsafe_sysctls: Vec::new(),
            shutdown_grace: Duration::ZERO,
            shutdown_grace_critical: Duration::ZERO,
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
