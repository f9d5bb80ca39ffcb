//! Metrics of work queues, by Kubernetes' names.
//!
//! A queue is named after the component that creates it, so that label values are bounded. A restarted component continues
//! the counters of its predecessor.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use knarr_metrics::{Described, Kind};
use parking_lot::Mutex;

/// Upper bounds of the histograms' buckets, in seconds, and as labels.
const BUCKETS: [(f64, &str); 10] = [
    (1e-8, "1e-08"),
    (1e-7, "1e-07"),
    (1e-6, "1e-06"),
    (1e-5, "1e-05"),
    (1e-4, "0.0001"),
    (1e-3, "0.001"),
    (1e-2, "0.01"),
    (1e-1, "0.1"),
    (1.0, "1"),
    (10.0, "10"),
];

/// Kubernetes' names of the queues of a controller, in the order in which it creates them.
const NAMES: &[(&str, &[&str])] = &[
    ("cronjob-controller", &["cronjob"]),
    ("daemonset-controller", &["daemonset"]),
    ("deployment-controller", &["deployment"]),
    ("disruption-controller", &["disruption", "stale_pod_disruption"]),
    ("endpoints-controller", &["endpoint"]),
    ("endpointslice-controller", &["endpoint_slice"]),
    ("endpointslice-mirroring-controller", &["endpoint_slice_mirroring"]),
    ("ephemeral-volume-controller", &["ephemeral_volume"]),
    ("garbage-collector-controller", &["garbage_collector_attempt_to_delete", "garbage_collector_attempt_to_orphan"]),
    ("horizontal-pod-autoscaler-controller", &["horizontalpodautoscaler"]),
    ("job-controller", &["job", "job_orphan_pod"]),
    ("namespace-controller", &["namespace"]),
    ("node-lifecycle-controller", &["node_lifecycle_controller"]),
    ("persistentvolume-binder-controller", &["claims", "volumes"]),
    ("persistentvolume-expander-controller", &["volume_expand"]),
    ("persistentvolume-protection-controller", &["pvprotection"]),
    ("persistentvolumeclaim-protection-controller", &["pvcprotection"]),
    ("replicaset-controller", &["replicaset"]),
    ("replicationcontroller-controller", &["replicationmanager"]),
    ("resourceclaim-controller", &["resource_claim"]),
    ("resourcequota-controller", &["resourcequota_primary", "resourcequota_priority"]),
    ("root-ca-certificate-publisher-controller", &["root_ca_cert_publisher"]),
    ("service-cidr-controller", &["servicecidr"]),
    ("serviceaccount-controller", &["serviceaccount"]),
    ("serviceaccount-token-controller", &["serviceaccount_tokens_service", "serviceaccount_tokens_secret"]),
    ("statefulset-controller", &["statefulset"]),
    ("ttl-after-finished-controller", &["ttl_jobs_to_delete"]),
    ("ttl-controller", &["ttlcontroller"]),
];

/// All named queues of this process.
static QUEUES: LazyLock<Mutex<BTreeMap<String, Arc<QueueMetrics>>>> = LazyLock::new(Mutex::default);

/// The metrics of all queues, as part of the pages of this process.
struct AllQueues;

impl knarr_metrics::Family for AllQueues {
    fn name(&self) -> &'static str {
        "workqueue"
    }

    fn write(&self, out: &mut String) {
        write_metrics(out);
    }

    fn described(&self) -> Vec<Described> {
        const BOUNDS: &[f64] = &[1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0];
        let one = |name, kind, bounds| Described { name, kind, labels: &["name"], bounds };
        vec![
            one("workqueue_adds_total", Kind::Counter, &[]),
            one("workqueue_depth", Kind::Gauge, &[]),
            one("workqueue_longest_running_processor_seconds", Kind::Gauge, &[]),
            one("workqueue_queue_duration_seconds", Kind::Histogram, BOUNDS),
            one("workqueue_retries_total", Kind::Counter, &[]),
            one("workqueue_unfinished_work_seconds", Kind::Gauge, &[]),
            one("workqueue_work_duration_seconds", Kind::Histogram, BOUNDS),
        ]
    }
}

/// The counters of a queue.
#[derive(Default)]
pub(crate) struct QueueMetrics {
    pub adds: AtomicU64,
    pub retries: AtomicU64,
    queued: Mutex<Histogram>,
    worked: Mutex<Histogram>,
    /// The queue that uses them now.
    current: Mutex<Option<Weak<dyn Observed>>>,
}

/// What a queue holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Holding {
    pub depth: usize,
    /// The total and the longest time of the keys that are processed.
    pub unfinished: Duration,
    pub longest: Duration,
    /// Keys whose processing keeps failing.
    pub failing: usize,
}

pub(crate) trait Observed: Send + Sync {
    fn holding(&self) -> Holding;
}

#[derive(Default)]
struct Histogram {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    seconds: f64,
}

impl Histogram {
    fn observe(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        for (bucket, (limit, _)) in self.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(seconds <= limit);
        }
        self.count += 1;
        self.seconds += seconds;
    }

    fn write(&self, out: &mut String, metric: &str, name: &str) {
        for ((_, limit), count) in BUCKETS.iter().zip(self.buckets) {
            let _ = writeln!(out, "{metric}_bucket{{name={name:?},le=\"{limit}\"}} {count}");
        }
        let (count, seconds) = (self.count, self.seconds);
        let _ = writeln!(out, "{metric}_bucket{{name={name:?},le=\"+Inf\"}} {count}");
        let _ = writeln!(out, "{metric}_sum{{name={name:?}}} {seconds}\n{metric}_count{{name={name:?}}} {count}");
    }
}

impl QueueMetrics {
    /// The counters of the next queue of the current component; those of other queues are not exposed.
    pub(crate) fn of_current_component() -> Arc<Self> {
        let Some(run) = knarr_supervisor::current_run() else { return Arc::default() };
        knarr_metrics::register(&[&AllQueues]);
        let name = queue_name(run.name(), run.next_number());
        QUEUES.lock().entry(name).or_default().clone()
    }

    pub(crate) fn observe(&self, queue: Weak<dyn Observed>) {
        *self.current.lock() = Some(queue);
    }

    pub(crate) fn started(&self, waited: Duration) {
        self.queued.lock().observe(waited);
    }

    pub(crate) fn done(&self, worked: Duration) {
        self.worked.lock().observe(worked);
    }

    fn holding(&self) -> Holding {
        let queue = self.current.lock().as_ref().and_then(Weak::upgrade);
        queue.map(|queue| queue.holding()).unwrap_or_default()
    }
}

/// The name of a component's queue.
fn queue_name(component: &str, number: usize) -> String {
    let known = NAMES.iter().find(|(name, _)| *name == component).and_then(|(_, queues)| queues.get(number));
    match known {
        Some(name) => (*name).to_owned(),
        None => {
            let name = component.strip_suffix("-controller").unwrap_or(component).replace(['-', '/'], "_");
            if number == 0 { name } else { format!("{name}_{number}") }
        }
    }
}

/// Appends the metrics of all queues of this process.
pub fn write_metrics(out: &mut String) {
    let queues: Vec<(String, Arc<QueueMetrics>)> =
        QUEUES.lock().iter().map(|(name, queue)| (name.clone(), queue.clone())).collect();
    let mut family = |metric: &str, kind: &str, help: &str, write: &dyn Fn(&mut String, &str, &QueueMetrics)| {
        let _ = writeln!(out, "# HELP {metric} [BETA] {help}\n# TYPE {metric} {kind}");
        for (name, queue) in &queues {
            write(out, name, queue);
        }
    };
    let value = |metric: &'static str, read: fn(&QueueMetrics) -> f64| {
        move |out: &mut String, name: &str, queue: &QueueMetrics| {
            let _ = writeln!(out, "{metric}{{name={name:?}}} {}", read(queue));
        }
    };
    let metric = "workqueue_adds_total";
    let read = value(metric, |queue| queue.adds.load(Ordering::Relaxed) as f64);
    family(metric, "counter", "Keys added, whether or not they were already queued.", &read);
    let metric = "workqueue_depth";
    family(
        metric,
        "gauge",
        "Keys that wait to be processed now.",
        &value(metric, |queue| queue.holding().depth as f64),
    );
    let metric = "workqueue_longest_running_processor_seconds";
    let read = value(metric, |queue| queue.holding().longest.as_secs_f64());
    family(metric, "gauge", "How long the key that is processed longest has been.", &read);
    let metric = "workqueue_queue_duration_seconds";
    let help = "How long keys wait until they are processed.";
    family(metric, "histogram", help, &|out, name, queue| queue.queued.lock().write(out, metric, name));
    let metric = "workqueue_retries_total";
    let read = value(metric, |queue| queue.retries.load(Ordering::Relaxed) as f64);
    family(metric, "counter", "Keys added again after a backoff.", &read);
    let metric = "workqueue_unfinished_work_seconds";
    let read = value(metric, |queue| queue.holding().unfinished.as_secs_f64());
    family(metric, "gauge", "Processing time so far of the keys that are processed now, in total.", &read);
    let metric = "workqueue_work_duration_seconds";
    let help = "How long the processing of a key takes.";
    family(metric, "histogram", help, &|out, name, queue| queue.worked.lock().write(out, metric, name));
    let metric = "knarr_workqueue_failing_keys";
    let read = value(metric, |queue| queue.holding().failing as f64);
    family(metric, "gauge", "Keys whose processing has failed for five seconds or more.", &read);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_have_the_names_of_kubernetes() {
        for (component, number, name) in [
            ("deployment-controller", 0, "deployment"),
            ("job-controller", 1, "job_orphan_pod"),
            ("job-controller", 2, "job_2"),
            ("taint-eviction-controller", 0, "taint_eviction"),
        ] {
            assert_eq!(queue_name(component, number), name);
        }
    }

    #[test]
    fn durations_are_counted_in_all_buckets_above_them() {
        let mut histogram = Histogram::default();
        histogram.observe(Duration::from_millis(50));
        let mut out = String::new();
        histogram.write(&mut out, "m", "q");
        assert!(out.contains("m_bucket{name=\"q\",le=\"0.01\"} 0\n"), "{out}");
        assert!(out.contains("m_bucket{name=\"q\",le=\"0.1\"} 1\n"), "{out}");
        assert!(
            out.contains("m_bucket{name=\"q\",le=\"+Inf\"} 1\nm_sum{name=\"q\"} 0.05\nm_count{name=\"q\"} 1\n"),
            "{out}"
        );
    }
}
