//! The metrics that the kubelet updates as it works, served under `/metrics`.
//!
//! Each metric is a row in [`FAMILIES`] and is updated by its name. Names, labels and buckets are the ones that
//! Kubernetes dashboards expect.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

/// One family of values.
pub struct Family {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: Kind,
    /// Values have labels. A family without labels is shown from the start, with zero.
    pub has_labels: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Counter,
    Gauge,
    /// With the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

const DEFAULT_BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const START: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
const PULL: &[f64] = &[
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0,
    3600.0,
];
const OPERATION: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078125,
    0.1953125,
    0.48828125,
    1.220703125,
    3.0517578125,
    7.62939453125,
    19.073486328125,
    47.6837158203125,
    119.20928955078125,
    298.0232238769531,
    745.0580596923828,
];
const SYNC: &[f64] = &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

const CONTAINERS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0];
const MILLISECONDS: &[f64] = &[0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2];
const RESIZE: &[f64] = &[
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1000.0,
    2000.0,
    5000.0,
    10_000.0,
    20_000.0,
    50_000.0,
    100_000.0,
    200_000.0,
    500_000.0,
    1_000_000.0,
];
const ROTATION: &[f64] =
    &[60.0, 3600.0, 14_400.0, 86_400.0, 604_800.0, 2_592_000.0, 7_776_000.0, 15_552_000.0, 31_104_000.0, 124_416_000.0];
const VOLUME: &[f64] = &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: Kind::Counter, has_labels: false }
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: Kind::Gauge, has_labels: false }
}

const fn histogram(name: &'static str, buckets: &'static [f64], help: &'static str) -> Family {
    Family { name, help, kind: Kind::Histogram(buckets), has_labels: false }
}

const fn by_labels(family: Family) -> Family {
    Family { has_labels: true, ..family }
}

#[rustfmt::skip]
pub const FAMILIES: &[Family] = &[
    by_labels(counter("kubelet_admission_rejections_total", "Pods that the kubelet refused to run, by reason.")),
    histogram("kubelet_certificate_manager_server_rotation_seconds", ROTATION, "Seconds a serving certificate was in use when it was replaced."),
    by_labels(histogram("csi_operations_seconds", VOLUME, "Seconds that calls to CSI drivers took.")),
    by_labels(histogram("kubelet_cgroup_manager_duration_seconds", DEFAULT_BUCKETS, "Seconds to create, update or remove a pod's cgroups.")),
    by_labels(counter("kubelet_container_requested_resizes_total", "Requested changes of containers' resources.")),
    histogram("kubelet_containers_per_pod_count", CONTAINERS, "Containers that a pod has."),
    counter("kubelet_cpu_manager_pinning_errors_total", "Failed assignments of exclusive CPUs to containers."),
    counter("kubelet_cpu_manager_pinning_requests_total", "Requests of containers for exclusive CPUs."),
    by_labels(gauge("kubelet_credential_provider_config_info", "The digest of the configuration of credential providers.")),
    by_labels(histogram("kubelet_credential_provider_plugin_duration", DEFAULT_BUCKETS, "Seconds that credential provider plugins ran.")),
    by_labels(counter("kubelet_credential_provider_plugin_errors_total", "Failed runs of credential provider plugins.")),
    by_labels(histogram("kubelet_device_plugin_alloc_duration_seconds", DEFAULT_BUCKETS, "Seconds that device plugins took to allocate devices.")),
    by_labels(counter("kubelet_device_plugin_registration_total", "Registrations of device plugins.")),
    counter("kubelet_evented_pleg_connection_error_count", "Broken subscriptions to the runtime's events."),
    histogram("kubelet_evented_pleg_connection_latency_seconds", DEFAULT_BUCKETS, "Seconds from an event in the runtime until the kubelet received it."),
    counter("kubelet_evented_pleg_connection_success_count", "Subscriptions to the runtime's events."),
    by_labels(histogram("kubelet_eviction_stats_age_seconds", DEFAULT_BUCKETS, "Age of the measurement on which an eviction was based, in seconds.")),
    by_labels(counter("kubelet_evictions", "Evicted pods, by eviction signal.")),
    gauge("kubelet_first_network_pod_start_sli_duration_seconds", "Seconds until the first pod with its own network ran, without image pulls."),
    gauge("kubelet_graceful_shutdown_end_time_seconds", "Unix time at which the last graceful shutdown finished."),
    gauge("kubelet_graceful_shutdown_start_time_seconds", "Unix time at which the last graceful shutdown started."),
    by_labels(gauge("kubelet_http_inflight_requests", "Requests to the node's endpoints in progress.")),
    by_labels(counter("kubelet_http_requests_total", "Requests to the node's endpoints.")),
    by_labels(histogram("kubelet_http_requests_duration_seconds", DEFAULT_BUCKETS, "Seconds to serve a request.")),
    by_labels(counter("kubelet_image_garbage_collected_total", "Images removed to make room.")),
    by_labels(counter("kubelet_image_manager_ensure_image_requests_total", "Images that containers needed, and whether they were there.")),
    by_labels(counter("kubelet_imagemanager_image_mustpull_checks_total", "Checks whether a pod may use a local image, by result.")),
    gauge("kubelet_imagemanager_ondisk_pulledrecords", "Images with a record of the credentials they were pulled with."),
    gauge("kubelet_imagemanager_ondisk_pullintents", "Image pulls that are recorded as started."),
    by_labels(histogram("kubelet_image_pull_duration_seconds", PULL, "Seconds to pull an image, by its size.")),
    counter("kubelet_image_volume_mounted_errors_total", "Image volumes that could not be mounted."),
    counter("kubelet_image_volume_mounted_succeed_total", "Image volumes that were mounted."),
    counter("kubelet_image_volume_requested_total", "Requested image volumes."),
    counter("kubelet_memory_manager_pinning_errors_total", "Failed assignments of reserved memory to containers."),
    counter("kubelet_memory_manager_pinning_requests_total", "Requests of containers for reserved memory."),
    gauge("kubelet_node_startup_duration_seconds", "Seconds from the host's boot until the node was ready."),
    gauge("kubelet_node_startup_post_registration_duration_seconds", "Seconds from the node's registration until it was ready."),
    gauge("kubelet_node_startup_pre_kubelet_duration_seconds", "Seconds from the host's boot to the kubelet's start."),
    gauge("kubelet_node_startup_pre_registration_duration_seconds", "Seconds from the kubelet's start to its registration."),
    gauge("kubelet_node_startup_registration_duration_seconds", "Seconds until the node was registered."),
    gauge("kubelet_orphan_pod_cleaned_volumes", "Orphaned pods whose volumes were removed at the last check."),
    gauge("kubelet_orphan_pod_cleaned_volumes_errors", "Orphaned pods whose volumes could not be removed."),
    counter("kubelet_orphaned_runtime_pods_total", "Pods in the runtime that the API server no longer has."),
    gauge("kubelet_pleg_last_seen_seconds", "Unix time of the runtime's last response or event."),
    histogram("kubelet_pleg_pod_relist_duration_seconds", DEFAULT_BUCKETS, "Seconds to list one pod's containers in the runtime."),
    histogram("kubelet_pleg_relist_duration_seconds", DEFAULT_BUCKETS, "Seconds to list all containers in the runtime."),
    histogram("kubelet_pleg_relist_interval_seconds", DEFAULT_BUCKETS, "Seconds between two lists of all containers."),
    by_labels(counter("kubelet_pod_deferred_accepted_resizes_total", "Deferred changes of pods' resources that were granted later.")),
    by_labels(counter("kubelet_pod_infeasible_resizes_total", "Changes of pods' resources that can never fit on this node.")),
    by_labels(histogram("kubelet_pod_resize_duration_milliseconds", RESIZE, "Milliseconds to apply a granted change of resources.")),
    by_labels(counter("kubelet_pod_resources_endpoint_requests_get", "Requests for one pod's resources.")),
    by_labels(counter("kubelet_pod_resources_endpoint_requests_get_allocatable", "Requests for the allocatable resources.")),
    by_labels(counter("kubelet_pod_resources_endpoint_requests_list", "Requests for the resources of all pods.")),
    by_labels(counter("kubelet_pod_resources_endpoint_requests_total", "Requests for pods' resources.")),
    histogram("kubelet_pod_start_duration_seconds", START, "Seconds from when the kubelet first saw a pod until it ran."),
    histogram("kubelet_pod_start_sli_duration_seconds", START, "Seconds from a pod's creation until it ran, without image pulls."),
    histogram("kubelet_pod_start_total_duration_seconds", START, "Seconds from a pod's creation until it ran."),
    histogram("kubelet_pod_status_sync_duration_seconds", SYNC, "Seconds to write a pod's status to the API."),
    by_labels(histogram("kubelet_pod_worker_duration_seconds", DEFAULT_BUCKETS, "Seconds to reconcile a pod once.")),
    histogram("kubelet_pod_worker_start_duration_seconds", DEFAULT_BUCKETS, "Seconds from when the kubelet first saw a pod to its first reconciliation."),
    by_labels(counter("kubelet_preemptions", "Pods preempted for critical ones, by the resource that was short.")),
    by_labels(histogram("kubelet_run_podsandbox_duration_seconds", DEFAULT_BUCKETS, "Seconds to create a sandbox, by runtime handler.")),
    by_labels(counter("kubelet_run_podsandbox_errors_total", "Sandboxes that could not be created, by runtime handler.")),
    by_labels(counter("kubelet_runtime_operations_total", "Calls to the container runtime.")),
    by_labels(histogram("kubelet_runtime_operations_duration_seconds", OPERATION, "Seconds that calls to the runtime took.")),
    by_labels(counter("kubelet_runtime_operations_errors_total", "Calls to the container runtime that failed.")),
    counter("kubelet_server_expiration_renew_errors", "Failed renewals of the serving certificate."),
    counter("kubelet_sleep_action_terminated_early_total", "Sleep actions that were cut short by the grace period."),
    by_labels(counter("kubelet_restarted_pods_total", "Pods that returned with the same uid while they were terminating.")),
    by_labels(counter("kubelet_started_containers_total", "Attempts to start a container.")),
    by_labels(counter("kubelet_started_containers_errors_total", "Containers that failed to start, by reason.")),
    counter("kubelet_started_pods_total", "Attempts to create a pod's sandbox."),
    counter("kubelet_started_pods_errors_total", "Failed attempts to create a pod's sandbox."),
    counter("kubelet_started_user_namespaced_pods_total", "Attempts to start a pod with a user namespace."),
    counter("kubelet_started_user_namespaced_pods_errors_total", "Attempts to start a pod with a user namespace in which the sandbox or a container failed."),
    by_labels(counter("kubelet_terminated_containers_total", "Containers that terminated.")),
    histogram("kubelet_topology_manager_admission_duration_ms", MILLISECONDS, "Milliseconds to allocate a pod's exclusive resources."),
    counter("kubelet_topology_manager_admission_errors_total", "Pods whose exclusive resources could not be allocated."),
    counter("kubelet_topology_manager_admission_requests_total", "Pods that need exclusive resources."),
    by_labels(histogram("kubelet_volume_metric_collection_duration_seconds", DEFAULT_BUCKETS, "Seconds to measure a volume.")),
    by_labels(counter("kubelet_websocket_streaming_requests_total", "Streams into containers over WebSocket.")),
    by_labels(histogram("prober_probe_duration_seconds", DEFAULT_BUCKETS, "Seconds that a probe took.")),
    by_labels(counter("prober_probe_total", "Probes of a container, by kind of probe and result.")),
    by_labels(histogram("storage_operation_duration_seconds", VOLUME, "Seconds to mount or unmount a volume.")),
    by_labels(histogram("volume_operation_total_seconds", VOLUME, "Seconds until a volume was mounted, all attempts included.")),
];

type Labels = Vec<(&'static str, String)>;

/// The values of one family by their labels.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    Numbers(BTreeMap<Labels, f64>),
    Histograms(BTreeMap<Labels, Histogram>),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// The observations in each bucket but in no earlier one, in the order of the bounds.
    pub counts: Vec<u64>,
    pub count: u64,
    pub sum: f64,
}

#[derive(Default)]
pub struct Counters(Mutex<BTreeMap<&'static str, Values>>);

impl Counters {
    pub fn count(&self, name: &'static str, labels: &[(&'static str, &str)]) {
        self.add(name, labels, 1.0);
    }

    pub fn add(&self, name: &'static str, labels: &[(&'static str, &str)], more: f64) {
        self.number(name, labels, |number| *number += more);
    }

    pub fn set(&self, name: &'static str, labels: &[(&'static str, &str)], value: f64) {
        self.number(name, labels, |number| *number = value);
    }

    /// Sets the value unless it is already set.
    pub fn set_once(&self, name: &'static str, value: f64) {
        let is_new = !self.0.lock().contains_key(name);
        if is_new {
            self.set(name, &[], value);
        }
    }

    fn number(&self, name: &'static str, labels: &[(&'static str, &str)], change: impl FnOnce(&mut f64)) {
        let mut families = self.0.lock();
        if let Values::Numbers(values) = families.entry(name).or_insert_with(|| Values::Numbers(BTreeMap::new())) {
            change(values.entry(owned(labels)).or_default());
        }
    }

    pub fn observe(&self, name: &'static str, labels: &[(&'static str, &str)], duration: Duration) {
        self.observe_value(name, labels, duration.as_secs_f64());
    }

    pub fn observe_value(&self, name: &'static str, labels: &[(&'static str, &str)], value: f64) {
        let family = FAMILIES.iter().find(|family| family.name == name);
        let Some(Kind::Histogram(buckets)) = family.map(|family| family.kind) else { return };
        let mut families = self.0.lock();
        if let Values::Histograms(values) = families.entry(name).or_insert_with(|| Values::Histograms(BTreeMap::new()))
        {
            let histogram = values.entry(owned(labels)).or_default();
            histogram.counts.resize(buckets.len(), 0);
            if let Some(place) = buckets.iter().position(|bound| value <= *bound) {
                histogram.counts[place] += 1;
            }
            histogram.count += 1;
            histogram.sum += value;
        }
    }

    /// Removes the values that have these labels.
    pub fn forget(&self, name: &'static str, labels: &[(&str, &str)]) {
        let stays = |own: &Labels| !labels.iter().all(|(name, value)| own.iter().any(|(n, v)| n == name && v == value));
        match self.0.lock().get_mut(name) {
            Some(Values::Numbers(values)) => values.retain(|own, _| stays(own)),
            Some(Values::Histograms(values)) => values.retain(|own, _| stays(own)),
            None => {}
        }
    }

    /// None for a family with labels that has no values yet.
    pub fn values(&self, family: &Family) -> Option<Values> {
        let known = self.0.lock().get(family.name).cloned();
        known.or_else(|| match family.kind {
            _ if family.has_labels => None,
            Kind::Histogram(_) => Some(Values::Histograms(BTreeMap::from([(Labels::new(), Histogram::default())]))),
            _ => Some(Values::Numbers(BTreeMap::from([(Labels::new(), 0.0)]))),
        })
    }
}

fn owned(labels: &[(&'static str, &str)]) -> Labels {
    labels.iter().map(|(name, value)| (*name, (*value).to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_buckets_are_those_of_kubernetes() {
        let described: Vec<knarr_metrics::Described> = FAMILIES
            .iter()
            .map(|family| {
                let (kind, bounds): (_, &'static [f64]) = match family.kind {
                    Kind::Counter => (knarr_metrics::Kind::Counter, &[]),
                    Kind::Gauge => (knarr_metrics::Kind::Gauge, &[]),
                    Kind::Histogram(bounds) => (knarr_metrics::Kind::Histogram, bounds),
                };
                knarr_metrics::Described { name: family.name, kind, labels: &[], bounds }
            })
            .collect();
        let differences: Vec<String> = ["/metrics", "/metrics/probes"]
            .into_iter()
            .flat_map(|page| knarr_metrics::reference::differences("kubelet", page, "", &described))
            .filter(|text| !text.contains("is missing") && !text.contains("has the labels"))
            .collect();
        assert_eq!(differences, Vec::<String>::new());
    }

    fn family(name: &str) -> &'static Family {
        FAMILIES.iter().find(|family| family.name == name).expect("a family")
    }

    #[test]
    fn counts_and_durations_are_kept_by_labels() {
        let counters = Counters::default();
        assert_eq!(counters.values(family("kubelet_evictions")), None);
        counters.count("kubelet_evictions", &[("eviction_signal", "memory.available")]);
        counters.count("kubelet_evictions", &[("eviction_signal", "memory.available")]);
        counters.count("kubelet_evictions", &[("eviction_signal", "pid.available")]);
        let Some(Values::Numbers(values)) = counters.values(family("kubelet_evictions")) else { panic!("counters") };
        assert_eq!(values.values().copied().collect::<Vec<_>>(), [2.0, 1.0]);
        counters.forget("kubelet_evictions", &[("eviction_signal", "pid.available")]);
        let Some(Values::Numbers(values)) = counters.values(family("kubelet_evictions")) else { panic!("counters") };
        assert_eq!(values.len(), 1);
        for milliseconds in [3, 30, 20_000] {
            let duration = Duration::from_millis(milliseconds);
            counters.observe("kubelet_run_podsandbox_duration_seconds", &[("runtime_handler", "")], duration);
        }
        let name = "kubelet_run_podsandbox_duration_seconds";
        let Some(Values::Histograms(values)) = counters.values(family(name)) else { panic!("histograms") };
        let histogram = values.values().next().expect("one");
        assert_eq!((histogram.count, &histogram.counts[..4]), (3, &[1, 0, 0, 1][..]));
        assert!((histogram.sum - 20.033).abs() < 1e-9);
        counters.forget(name, &[("runtime_handler", "other")]);
        assert_eq!(counters.values(family(name)), Some(Values::Histograms(values)));
        counters.forget(name, &[("runtime_handler", "")]);
        assert_eq!(counters.values(family(name)), Some(Values::Histograms(BTreeMap::new())));
    }

    #[test]
    fn families_have_types_and_buckets_are_cumulative() {
        let mut names: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FAMILIES.len());
        for family in FAMILIES {
            if let Kind::Histogram(buckets) = family.kind {
                assert!(buckets.windows(2).all(|pair| pair[0] < pair[1]), "{}", family.name);
            }
        }
    }
}
