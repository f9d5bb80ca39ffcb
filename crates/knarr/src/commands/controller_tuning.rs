//! Flags of the controllers' thresholds, periods and sizes, with the names and defaults of kube-controller-manager.

use std::time::Duration;

use clap::Args;
use knarr_controllers::Settings;

use super::leadership::duration;

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Controllers")]
pub struct TuningArguments {
    /// Interval at which the health of nodes is checked [default: 5s].
    #[arg(long, value_parser = duration)]
    pub node_monitor_period: Option<Duration>,
    /// How long a node may be silent before it is unhealthy [default: 50s].
    #[arg(long, value_parser = duration)]
    pub node_monitor_grace_period: Option<Duration>,
    /// The same for a node that is just starting [default: 1m0s].
    #[arg(long, value_parser = duration)]
    pub node_startup_grace_period: Option<Duration>,
    /// Unhealthy nodes per second whose pods are evicted, in a healthy zone [default: 0.1].
    #[arg(long)]
    pub node_eviction_rate: Option<f64>,
    /// The same in a large zone that is partly down [default: 0.01].
    #[arg(long)]
    pub secondary_node_eviction_rate: Option<f64>,
    /// Share of unhealthy nodes from which a zone is partly down [default: 0.55].
    #[arg(long)]
    pub unhealthy_zone_threshold: Option<f64>,
    /// Number of nodes beyond which a zone is large [default: 50].
    #[arg(long)]
    pub large_cluster_size_threshold: Option<usize>,
    /// Number of finished pods beyond which the oldest are deleted [default: 12500].
    #[arg(long, allow_negative_numbers = true)]
    pub terminated_pod_gc_threshold: Option<i64>,
    /// Prefix length of nodes' IPv4 networks; 0 for the default [default: 24].
    #[arg(long)]
    pub node_cidr_mask_size_ipv4: Option<u8>,
    /// Prefix length of nodes' IPv6 networks; 0 for the default [default: 64].
    #[arg(long)]
    pub node_cidr_mask_size_ipv6: Option<u8>,
    /// Interval of the horizontal pod autoscaler [default: 15s].
    #[arg(long, value_parser = duration)]
    pub horizontal_pod_autoscaler_sync_period: Option<Duration>,
    /// Relative change of a metric that is ignored [default: 0.1].
    #[arg(long)]
    pub horizontal_pod_autoscaler_tolerance: Option<f64>,
    /// How long recommendations to scale down are remembered [default: 5m0s].
    #[arg(long, value_parser = duration)]
    pub horizontal_pod_autoscaler_downscale_stabilization: Option<Duration>,
    /// How long CPU metrics of a new pod may be skipped [default: 5m0s].
    #[arg(long, value_parser = duration)]
    pub horizontal_pod_autoscaler_cpu_initialization_period: Option<Duration>,
    /// How long a new pod may be unready before that counts [default: 30s].
    #[arg(long, value_parser = duration)]
    pub horizontal_pod_autoscaler_initial_readiness_delay: Option<Duration>,
    /// How long changes of endpoints are collected [default: 0s].
    #[arg(long, value_parser = duration)]
    pub endpointslice_updates_batch_period: Option<Duration>,
    /// Number of endpoints per EndpointSlice [default: 100].
    #[arg(long)]
    pub max_endpoints_per_slice: Option<usize>,
    /// Number of mirrored endpoints per subset [default: 1000].
    #[arg(long)]
    pub mirroring_max_endpoints_per_subset: Option<usize>,
    /// Interval of full recounts of resource quotas [default: 5m0s].
    #[arg(long, value_parser = duration)]
    pub resource_quota_sync_period: Option<Duration>,
    /// Interval of syncs of all volumes and claims [default: 15s].
    #[arg(long, value_parser = duration)]
    pub pvclaimbinder_sync_period: Option<Duration>,
}

fn set<T>(target: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *target = given;
    }
}

impl TuningArguments {
    /// The settings with what is given.
    pub fn apply(&self, mut settings: Settings) -> Settings {
        let nodes = &mut settings.node_health;
        set(&mut nodes.monitor_period, self.node_monitor_period);
        set(&mut nodes.monitor_grace_period, self.node_monitor_grace_period);
        set(&mut nodes.startup_grace_period, self.node_startup_grace_period);
        set(&mut nodes.eviction_rate, self.node_eviction_rate);
        set(&mut nodes.secondary_eviction_rate, self.secondary_node_eviction_rate);
        set(&mut nodes.unhealthy_zone_threshold, self.unhealthy_zone_threshold);
        set(&mut nodes.large_cluster_size_threshold, self.large_cluster_size_threshold);
        let autoscaler = &mut settings.autoscaler;
        set(&mut autoscaler.sync_period, self.horizontal_pod_autoscaler_sync_period);
        set(&mut autoscaler.tolerance, self.horizontal_pod_autoscaler_tolerance);
        set(&mut autoscaler.downscale_stabilization, self.horizontal_pod_autoscaler_downscale_stabilization);
        set(&mut autoscaler.cpu_initialization_period, self.horizontal_pod_autoscaler_cpu_initialization_period);
        set(&mut autoscaler.initial_readiness_delay, self.horizontal_pod_autoscaler_initial_readiness_delay);
        let endpoints = &mut settings.endpoints;
        set(&mut endpoints.batch_period, self.endpointslice_updates_batch_period);
        set(&mut endpoints.max_per_slice, self.max_endpoints_per_slice);
        set(&mut endpoints.mirroring_max_per_subset, self.mirroring_max_endpoints_per_subset);
        // Zero and less mean that finished pods are never deleted.
        let threshold = |count: i64| usize::try_from(count).ok().filter(|count| *count > 0).unwrap_or(usize::MAX);
        set(&mut settings.terminated_pod_threshold, self.terminated_pod_gc_threshold.map(threshold));
        let masks = &mut settings.node_cidr_mask_sizes;
        set(&mut masks.ipv4, self.node_cidr_mask_size_ipv4.filter(|size| *size > 0));
        set(&mut masks.ipv6, self.node_cidr_mask_size_ipv6.filter(|size| *size > 0));
        set(&mut settings.resource_quota_sync_period, self.resource_quota_sync_period);
        set(&mut settings.volume_sync_period, self.pvclaimbinder_sync_period);
        settings
    }
}
