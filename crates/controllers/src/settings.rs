//! Settings of the controllers; the defaults are Kubernetes' own.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::concurrency::ConcurrentSyncs;

/// All settings of the controllers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names of the controllers to run: `*` for the default ones, `-name` to disable one.
    pub controllers: Vec<String>,
    /// PEM of the authorities that signed the API server's certificate; published to every namespace.
    pub root_ca: Option<String>,
    /// PEM of the authority that signs certificate requests.
    pub signing: Option<SigningAuthority>,
    /// Authorities of single signers, by the signers' names; they are used in place of the other one.
    pub signers: BTreeMap<String, SigningAuthority>,
    /// Maximum validity of signed certificates.
    pub signing_duration: Duration,
    /// Approve serving certificates that nodes request for their own names and addresses. Kubernetes leaves that to
    /// other components.
    pub approve_kubelet_serving: bool,
    /// Approve client certificates of existing nodes for these nodes only. Kubernetes approves them for whoever may add nodes.
    pub keep_nodes_apart: bool,
    /// The cluster's DNS domain; no node gets a certificate for names in it.
    pub cluster_domain: String,
    /// Names and addresses of the API server; no node gets a certificate for them, except one in its process.
    pub api_server_names: Vec<String>,
    /// Assign a pod CIDR to each node.
    pub allocate_node_cidrs: bool,
    /// Pod networks of the cluster, at most one of each family.
    pub cluster_cidrs: Vec<String>,
    /// Service networks, which pod networks of nodes must not overlap.
    pub service_cidrs: Vec<String>,
    /// Prefix lengths of the nodes' pod networks.
    pub node_cidr_mask_sizes: MaskSizes,
    pub concurrent_syncs: ConcurrentSyncs,
    pub node_health: NodeHealthSettings,
    /// Finished pods beyond this number are deleted, the oldest first.
    pub terminated_pod_threshold: usize,
    pub autoscaler: AutoscalerSettings,
    pub endpoints: EndpointSettings,
    /// Interval of full recounts of resource quotas.
    pub resource_quota_sync_period: Duration,
    /// Interval of syncs of all volumes and claims.
    pub volume_sync_period: Duration,
    /// Never detach volumes from nodes that are lost and do not report them unmounted.
    pub disable_force_detach_on_timeout: bool,
    /// Unused generated token secrets are deleted after this time.
    pub legacy_token_clean_up_period: Duration,
}

/// Prefix lengths of the networks that nodes get.
#[derive(Clone, Copy, Debug)]
pub struct MaskSizes {
    pub ipv4: u8,
    pub ipv6: u8,
}

/// When a node counts as unhealthy, and how fast unhealthy nodes are tainted.
#[derive(Clone, Debug)]
pub struct NodeHealthSettings {
    pub monitor_period: Duration,
    /// A node whose lease and status do not change for this long becomes unknown.
    pub monitor_grace_period: Duration,
    /// The same for a node that has never reported.
    pub startup_grace_period: Duration,
    /// Nodes tainted per second in a healthy zone.
    pub eviction_rate: f64,
    /// Nodes tainted per second in a large zone that is partly down.
    pub secondary_eviction_rate: f64,
    /// Share of unhealthy nodes from which a zone counts as partly down.
    pub unhealthy_zone_threshold: f64,
    /// Zones of more nodes than this are large.
    pub large_cluster_size_threshold: usize,
}

/// Timing and tolerance of the horizontal pod autoscaler.
#[derive(Clone, Debug)]
pub struct AutoscalerSettings {
    pub sync_period: Duration,
    pub tolerance: f64,
    pub downscale_stabilization: Duration,
    pub cpu_initialization_period: Duration,
    pub initial_readiness_delay: Duration,
}

/// Batching and sizes of endpoints and their slices.
#[derive(Clone, Debug)]
pub struct EndpointSettings {
    pub batch_period: Duration,
    pub max_per_slice: usize,
    pub mirroring_max_per_subset: usize,
}

/// A certificate authority as PEM.
#[derive(Clone)]
pub struct SigningAuthority {
    pub certificate: String,
    pub key: String,
}

impl std::fmt::Debug for SigningAuthority {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("SigningAuthority")
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            controllers: vec!["*".to_owned()],
            root_ca: None,
            signing: None,
            signers: BTreeMap::new(),
            signing_duration: Duration::from_secs(365 * 24 * 3600),
            approve_kubelet_serving: false,
            keep_nodes_apart: false,
            cluster_domain: "cluster.local".to_owned(),
            api_server_names: Vec::new(),
            allocate_node_cidrs: false,
            cluster_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            node_cidr_mask_sizes: MaskSizes { ipv4: 24, ipv6: 64 },
            concurrent_syncs: ConcurrentSyncs::default(),
            node_health: NodeHealthSettings {
                monitor_period: Duration::from_secs(5),
                monitor_grace_period: Duration::from_secs(50),
                startup_grace_period: Duration::from_secs(60),
                eviction_rate: 0.1,
                secondary_eviction_rate: 0.01,
                unhealthy_zone_threshold: 0.55,
                large_cluster_size_threshold: 50,
            },
            terminated_pod_threshold: 12_500,
            autoscaler: AutoscalerSettings {
                sync_period: Duration::from_secs(15),
                tolerance: 0.1,
                downscale_stabilization: Duration::from_secs(300),
                cpu_initialization_period: Duration::from_secs(300),
                initial_readiness_delay: Duration::from_secs(30),
            },
            endpoints: EndpointSettings {
                batch_period: Duration::ZERO,
                max_per_slice: 100,
                mirroring_max_per_subset: 1000,
            },
            resource_quota_sync_period: Duration::from_secs(300),
            volume_sync_period: Duration::from_secs(15),
            disable_force_detach_on_timeout: false,
            legacy_token_clean_up_period: Duration::from_secs(365 * 24 * 3600),
        }
    }
}

impl Settings {
    /// Whether the named controller runs; `by_default` is whether `*` includes it.
    pub fn enables(&self, name: &str, by_default: bool) -> bool {
        let mut enabled = false;
        for chosen in &self.controllers {
            match chosen.strip_prefix('-') {
                Some(excluded) if excluded == name => return false,
                Some(_) => {}
                None if chosen == name => return true,
                None if chosen == "*" => enabled = by_default,
                None => {}
            }
        }
        enabled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_chosen_by_name() {
        for (chosen, name, by_default, enabled) in [
            (&["*"][..], "job-controller", true, true),
            (&["*"], "bootstrap", false, false),
            (&["*", "bootstrap"], "bootstrap", false, true),
            (&["*", "-job-controller"], "job-controller", true, false),
            (&["job-controller"], "job-controller", true, true),
            (&["job-controller"], "cronjob-controller", true, false),
        ] {
            let settings =
                Settings { controllers: chosen.iter().map(|name| name.to_string()).collect(), ..Settings::default() };
            assert_eq!(settings.enables(name, by_default), enabled, "{chosen:?} {name}");
        }
    }
}
