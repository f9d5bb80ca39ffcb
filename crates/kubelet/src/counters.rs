//! What the node counts and measures as it works, for `/metrics`.
//!
//! A family is a row in [`FAMILIES`]; whoever has something to tell names it. Names, labels and buckets are those that
//! dashboards for Kubernetes know.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

/// One family of counters or histograms.
pub struct Family {
    pub name: &'static str,
    pub help: &'static str,
    /// The upper bounds of a histogram's buckets; none for a counter.
    pub buckets: Option<&'static [f64]>,
}

const USUAL: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
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

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family { name, help, buckets: None }
}

const fn histogram(name: &'static str, buckets: &'static [f64], help: &'static str) -> Family {
    Family { name, help, buckets: Some(buckets) }
}

pub const FAMILIES: &[Family] = &[
    counter("kubelet_admission_rejections_total", "Pods that were not let in, by reason."),
    counter("kubelet_evictions", "Pods that were evicted, by what the node or the pod was short of."),
    histogram("kubelet_eviction_stats_age_seconds", USUAL, "Age of what was measured when a pod was evicted for it."),
    counter("kubelet_http_requests_total", "Requests to the node's endpoints."),
    histogram("kubelet_http_requests_duration_seconds", USUAL, "Seconds until a request was answered."),
    counter("kubelet_image_garbage_collected_total", "Images removed to make room."),
    histogram("kubelet_image_pull_duration_seconds", PULL, "Seconds to pull an image, by its size."),
    histogram("kubelet_pod_start_duration_seconds", START, "Seconds from a pod's first sight to its running."),
    histogram("kubelet_pod_start_total_duration_seconds", START, "Seconds from a pod's creation to its running."),
    histogram("kubelet_pod_status_sync_duration_seconds", SYNC, "Seconds to write a pod's status to the API."),
    histogram("kubelet_run_podsandbox_duration_seconds", USUAL, "Seconds to make a sandbox, by runtime handler."),
    counter("kubelet_run_podsandbox_errors_total", "Sandboxes that could not be made, by runtime handler."),
    counter("kubelet_runtime_operations_total", "Calls to the container runtime."),
    histogram("kubelet_runtime_operations_duration_seconds", OPERATION, "Seconds that calls to the runtime took."),
    counter("kubelet_runtime_operations_errors_total", "Calls to the container runtime that failed."),
    counter("kubelet_started_containers_total", "Containers whose start was tried."),
    counter("kubelet_started_containers_errors_total", "Containers that did not start, by what came of it."),
    counter("kubelet_started_pods_total", "Pods whose sandbox was asked for."),
    counter("kubelet_started_pods_errors_total", "Pods whose sandbox was not made."),
    counter("kubelet_terminated_containers_total", "Containers that ended."),
    histogram("storage_operation_duration_seconds", USUAL, "Seconds to mount or unmount volumes."),
    counter(
        "prober_probe_total",
        "Cumulative number of a liveness, readiness or startup probe for a container by result.",
    ),
];

type Labels = Vec<(&'static str, String)>;

/// The values of one family by their labels.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    Counters(BTreeMap<Labels, u64>),
    Histograms(BTreeMap<Labels, Histogram>),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// How many fell into each bucket and into none before it, in the order of their bounds.
    pub counts: Vec<u64>,
    pub count: u64,
    pub sum: f64,
}

#[derive(Default)]
pub struct Counters(Mutex<BTreeMap<&'static str, Values>>);

impl Counters {
    pub fn count(&self, name: &'static str, labels: &[(&'static str, &str)]) {
        let mut families = self.0.lock();
        if let Values::Counters(values) = families.entry(name).or_insert_with(|| Values::Counters(BTreeMap::new())) {
            *values.entry(owned(labels)).or_default() += 1;
        }
    }

    pub fn observe(&self, name: &'static str, labels: &[(&'static str, &str)], duration: Duration) {
        let Some(buckets) = FAMILIES.iter().find(|family| family.name == name).and_then(|family| family.buckets) else {
            return;
        };
        let seconds = duration.as_secs_f64();
        let mut families = self.0.lock();
        if let Values::Histograms(values) = families.entry(name).or_insert_with(|| Values::Histograms(BTreeMap::new()))
        {
            let histogram = values.entry(owned(labels)).or_default();
            histogram.counts.resize(buckets.len(), 0);
            if let Some(place) = buckets.iter().position(|bound| seconds <= *bound) {
                histogram.counts[place] += 1;
            }
            histogram.count += 1;
            histogram.sum += seconds;
        }
    }

    /// What was counted for one thing, named by a label, is of no interest any more.
    pub fn forget(&self, name: &'static str, label: &str, value: &str) {
        if let Some(Values::Counters(values)) = self.0.lock().get_mut(name) {
            values.retain(|labels, _| !labels.iter().any(|(known, own)| *known == label && own == value));
        }
    }

    pub fn values(&self, name: &str) -> Option<Values> {
        self.0.lock().get(name).cloned()
    }
}

fn owned(labels: &[(&'static str, &str)]) -> Labels {
    labels.iter().map(|(name, value)| (*name, (*value).to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_durations_are_kept_by_labels() {
        let counters = Counters::default();
        counters.count("kubelet_evictions", &[("eviction_signal", "memory.available")]);
        counters.count("kubelet_evictions", &[("eviction_signal", "memory.available")]);
        counters.count("kubelet_evictions", &[("eviction_signal", "pid.available")]);
        let Some(Values::Counters(values)) = counters.values("kubelet_evictions") else { panic!("counters") };
        assert_eq!(values.values().copied().collect::<Vec<_>>(), [2, 1]);
        counters.forget("kubelet_evictions", "eviction_signal", "pid.available");
        let Some(Values::Counters(values)) = counters.values("kubelet_evictions") else { panic!("counters") };
        assert_eq!(values.len(), 1);
        for milliseconds in [3, 30, 20_000] {
            let duration = Duration::from_millis(milliseconds);
            counters.observe("kubelet_run_podsandbox_duration_seconds", &[("runtime_handler", "")], duration);
        }
        let Some(Values::Histograms(values)) = counters.values("kubelet_run_podsandbox_duration_seconds") else {
            panic!("histograms")
        };
        let histogram = values.values().next().expect("one");
        assert_eq!((histogram.count, &histogram.counts[..4]), (3, &[1, 0, 0, 1][..]));
        assert!((histogram.sum - 20.033).abs() < 1e-9);
    }

    #[test]
    fn families_are_told_apart_and_buckets_rise() {
        let mut names: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FAMILIES.len());
        for family in FAMILIES {
            let buckets = family.buckets.unwrap_or_default();
            assert!(buckets.windows(2).all(|pair| pair[0] < pair[1]), "{}", family.name);
        }
    }
}
