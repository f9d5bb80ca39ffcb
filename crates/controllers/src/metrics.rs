//! Metrics of single controllers, by Kubernetes' names. Those of their queues are in `client`.

use std::time::Duration;

use knarr_metrics::{Counter, Family, Gauge, Histogram};

/// From 1 ms on, each twice the one before.
const MILLISECOND_BOUNDS: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];
/// From 4 ms on.
const JOB_BOUNDS: &[f64] =
    &[0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384, 32.768, 65.536];
/// From 2 on.
pub(crate) const COUNT_BOUNDS: &[f64] =
    &[2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 32_768.0];

static RUNNING: Gauge =
    Gauge::new("running_managed_controllers", "[BETA] 1 for each controller that runs here.", &["manager", "name"]);

pub(crate) static CRON_JOB_SKEW: Histogram = Histogram::new(
    "cronjob_controller_job_creation_skew_duration_seconds",
    "[STABLE] How long after its scheduled time a job of a cron job was created.",
    &[],
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0],
);
pub(crate) static NODE_EVICTIONS: Counter = Counter::new(
    "node_collector_evictions_total",
    "[STABLE] Nodes from which pods are evicted because they are unhealthy, by zone.",
    &["zone"],
);

static JOB_SYNCS: Counter = Counter::new(
    "job_controller_job_syncs_total",
    "[STABLE] Syncs of jobs, by what was done.",
    &["action", "completion_mode", "result"],
);
static JOB_SYNC_DURATION: Histogram = Histogram::new(
    "job_controller_job_sync_duration_seconds",
    "[STABLE] Time to sync a job, by what was done.",
    &["action", "completion_mode", "result"],
    JOB_BOUNDS,
);
pub(crate) static JOBS_FINISHED: Counter = Counter::new(
    "job_controller_jobs_finished_total",
    "[STABLE] Finished jobs, by result and reason.",
    &["completion_mode", "reason", "result"],
);
pub(crate) static JOB_PODS_FINISHED: Counter = Counter::new(
    "job_controller_job_pods_finished_total",
    "[STABLE] Finished pods that jobs counted, by result.",
    &["completion_mode", "result"],
);
pub(crate) static JOB_FAILURE_POLICY: Counter = Counter::new(
    "job_controller_pod_failures_handled_by_failure_policy_total",
    "[BETA] Failed pods that a rule of their job's policy matched, by its action.",
    &["action"],
);
pub(crate) static JOB_FINALIZERS: Counter = Counter::new(
    "job_controller_terminated_pods_tracking_finalizer_total",
    "[BETA] Terminated pods of jobs that have (add) or lost (delete) the finalizer that keeps them until they are counted.",
    &["event"],
);

static RECONCILIATIONS: Counter = Counter::new(
    "horizontal_pod_autoscaler_controller_reconciliations_total",
    "[BETA] Syncs of autoscalers, by result.",
    &["action", "error"],
);
static RECONCILIATION_DURATION: Histogram = Histogram::new(
    "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds",
    "[BETA] Time to sync an autoscaler, by result.",
    &["action", "error"],
    MILLISECOND_BOUNDS,
);
static COMPUTATIONS: Counter = Counter::new(
    "horizontal_pod_autoscaler_controller_metric_computation_total",
    "[BETA] Replica counts that were computed from a metric, by result.",
    &["action", "error", "metric_type"],
);
static COMPUTATION_DURATION: Histogram = Histogram::new(
    "horizontal_pod_autoscaler_controller_metric_computation_duration_seconds",
    "[BETA] Time to compute a replica count from a metric, by result.",
    &["action", "error", "metric_type"],
    MILLISECOND_BOUNDS,
);

/// What a process with controllers exposes.
pub const FAMILIES: &[&dyn Family] = &[
    &RUNNING,
    &CRON_JOB_SKEW,
    &NODE_EVICTIONS,
    &JOB_SYNCS,
    &JOB_SYNC_DURATION,
    &JOBS_FINISHED,
    &JOB_PODS_FINISHED,
    &JOB_FAILURE_POLICY,
    &JOB_FINALIZERS,
    &RECONCILIATIONS,
    &RECONCILIATION_DURATION,
    &COMPUTATIONS,
    &COMPUTATION_DURATION,
];

/// A controller that is counted as running until this is dropped.
pub(crate) struct Running(&'static str);

impl Running {
    pub(crate) fn start(name: &'static str) -> Running {
        RUNNING.set(&["kube-controller-manager", name], 1.0);
        Running(name)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.set(&["kube-controller-manager", self.0], 0.0);
    }
}

pub(crate) fn job_synced(action: &str, mode: &str, succeeded: bool, took: Duration) {
    let labels = [action, mode, if succeeded { "success" } else { "error" }];
    JOB_SYNCS.add(&labels, 1);
    JOB_SYNC_DURATION.observe(&labels, took.as_secs_f64());
}

/// Which way an autoscaler changes a number of replicas.
pub(crate) fn scaling(current: i32, proposed: i32) -> &'static str {
    match proposed.cmp(&current) {
        std::cmp::Ordering::Greater => "scale_up",
        std::cmp::Ordering::Less => "scale_down",
        std::cmp::Ordering::Equal => "none",
    }
}

/// `error` is not empty but `none` without one; all errors here are of other components, as specifications are validated.
fn error_label(failed: bool) -> &'static str {
    if failed { "internal" } else { "none" }
}

pub(crate) fn autoscaler_synced(action: &str, failed: bool, took: Duration) {
    let labels = [action, error_label(failed)];
    RECONCILIATIONS.add(&labels, 1);
    RECONCILIATION_DURATION.observe(&labels, took.as_secs_f64());
}

pub(crate) fn metric_computed(action: &str, failed: bool, kind: &str, took: Duration) {
    let labels = [action, error_label(failed), kind];
    COMPUTATIONS.add(&labels, 1);
    COMPUTATION_DURATION.observe(&labels, took.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_controllers_is_complete() {
        let families = FAMILIES.iter().chain(crate::endpoint_slice::METRICS);
        let described: Vec<_> = families.flat_map(|family| family.described()).collect();
        let differences = knarr_metrics::reference::differences("kube-controller-manager", "/metrics", "", &described);
        // Those of every process and of clients are on the page, which `crates/knarr/tests/control_plane` compares.
        let shared = ["_metrics_total", "kubernetes_", "workqueue_", "rest_client_", "process_", "go_"];
        let own: Vec<&String> =
            differences.iter().filter(|text| !shared.iter().any(|name| text.contains(name))).collect();
        assert_eq!(own, Vec::<&String>::new());
    }

    #[test]
    fn a_controller_is_counted_while_it_runs() {
        let line = |value: u8| format!("{{manager=\"kube-controller-manager\",name=\"a-test\"}} {value}\n");
        let page = || {
            let mut page = String::new();
            RUNNING.write(&mut page);
            page
        };
        let running = Running::start("a-test");
        assert!(page().contains(&line(1)));
        drop(running);
        assert!(page().contains(&line(0)));
    }
}
