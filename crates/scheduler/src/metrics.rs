//! The scheduler's metrics, by Kubernetes' names.

use std::time::{Duration, Instant};

use knarr_metrics::{Counter, Family, Gauge, Histogram, register};

/// From 0.1 ms on, each twice the one before.
const STEP_BOUNDS: &[f64] =
    &[0.0001, 0.0002, 0.0004, 0.0008, 0.0016, 0.0032, 0.0064, 0.0128, 0.0256, 0.0512, 0.1024, 0.2048];
/// From 1 ms on, each twice the one before.
const ATTEMPT_BOUNDS: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];
const POD_BOUNDS: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36,
    1310.72, 2621.44, 5242.88,
];
/// Pods that needed more attempts are counted together.
const MAX_ATTEMPTS_LABEL: u32 = 15;

pub static ATTEMPTS: Counter = Counter::new(
    "scheduler_schedule_attempts_total",
    "[STABLE] Attempts to schedule pods, by their result.",
    &["profile", "result"],
);
pub static ATTEMPT_DURATION: Histogram = Histogram::new(
    "scheduler_scheduling_attempt_duration_seconds",
    "[STABLE] Time of an attempt: the decision and, where there was one, the binding.",
    &["profile", "result"],
    ATTEMPT_BOUNDS,
);
pub static ALGORITHM_DURATION: Histogram = Histogram::new(
    "scheduler_scheduling_algorithm_duration_seconds",
    "[ALPHA] Time of a decision.",
    &[],
    ATTEMPT_BOUNDS,
);
pub static EXTENSION_POINT_DURATION: Histogram = Histogram::new(
    "scheduler_framework_extension_point_duration_seconds",
    "[STABLE] Time of all plugins of an extension point together.",
    &["extension_point", "profile", "status"],
    STEP_BOUNDS,
);
pub static PLUGIN_EVALUATIONS: Counter = Counter::new(
    "scheduler_plugin_evaluation_total",
    "[BETA] Attempts in which a plugin had something to decide.",
    &["extension_point", "plugin", "profile"],
);
pub static POD_ATTEMPTS: Histogram = Histogram::new(
    "scheduler_pod_scheduling_attempts",
    "[STABLE] Attempts that scheduled pods needed.",
    &[],
    &[1.0, 2.0, 4.0, 8.0, 16.0],
);
pub static POD_DURATION: Histogram = Histogram::new(
    "scheduler_pod_scheduling_sli_duration_seconds",
    "[BETA] Time from when a pod was queued until it was scheduled, by how many attempts it took.",
    &["attempts"],
    POD_BOUNDS,
);
pub static PREEMPTION_ATTEMPTS: Counter =
    Counter::new("scheduler_preemption_attempts_total", "[STABLE] Searches for pods to preempt.", &[]);
pub static PREEMPTION_VICTIMS: Histogram = Histogram::new(
    "scheduler_preemption_victims",
    "[STABLE] Pods chosen to be preempted, per search that found some.",
    &[],
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0],
);
pub static INCOMING: Counter = Counter::new(
    "scheduler_queue_incoming_pods_total",
    "[STABLE] Pods added to each queue, by the event that moved them.",
    &["event", "queue"],
);
pub static PENDING: Gauge = Gauge::new("scheduler_pending_pods", "[STABLE] Pods that wait now, by queue.", &["queue"]);
pub static UNSCHEDULABLE: Gauge = Gauge::new(
    "scheduler_unschedulable_pods",
    "[BETA] Pods that wait now because a plugin rejected them.",
    &["plugin", "profile"],
);
pub static PERMIT_WAIT: Histogram = Histogram::new(
    "scheduler_permit_wait_duration_seconds",
    "[BETA] Time that pods waited for the permission to be bound.",
    &["result"],
    ATTEMPT_BOUNDS,
);
pub static TASKS: Gauge =
    Gauge::new("scheduler_goroutines", "[BETA] Concurrent tasks now, by what they do.", &["operation"]);

const ALL: &[&dyn Family] = &[
    &ATTEMPTS,
    &ATTEMPT_DURATION,
    &ALGORITHM_DURATION,
    &EXTENSION_POINT_DURATION,
    &PLUGIN_EVALUATIONS,
    &POD_ATTEMPTS,
    &POD_DURATION,
    &PREEMPTION_ATTEMPTS,
    &PREEMPTION_VICTIMS,
    &INCOMING,
    &PENDING,
    &UNSCHEDULABLE,
    &PERMIT_WAIT,
    &TASKS,
];

/// Adds the scheduler's families to the pages of this process. A scheduler that starts has nothing pending.
pub fn start() {
    UNSCHEDULABLE.replace([]);
    TASKS.replace([(vec!["binding"], 0.0)]);
    register(ALL);
}

/// How many pods are in each queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    pub active: usize,
    pub backoff: usize,
    pub unschedulable: usize,
    pub gated: usize,
}

impl Lengths {
    pub fn publish(self) {
        let Lengths { active, backoff, unschedulable, gated } = self;
        for (queue, length) in
            [("active", active), ("backoff", backoff), ("unschedulable", unschedulable), ("gated", gated)]
        {
            PENDING.set(&[queue], length as f64);
        }
    }
}

/// Counts a finished attempt.
pub fn finish_attempt(profile: &str, result: &str, took: Duration) {
    ATTEMPTS.add(&[profile, result], 1);
    ATTEMPT_DURATION.observe(&[profile, result], took.as_secs_f64());
}

/// Counts a pod that is bound.
pub fn finish_pod(attempts: u32, waited: Duration) {
    POD_ATTEMPTS.observe(&[], f64::from(attempts));
    let label = match attempts {
        many if many > MAX_ATTEMPTS_LABEL => format!("{MAX_ATTEMPTS_LABEL}+"),
        few => few.to_string(),
    };
    POD_DURATION.observe(&[&label], waited.as_secs_f64());
}

/// Counts the plugins of an extension point since `started`.
pub fn finish_step(extension_point: &str, profile: &str, is_success: bool, started: Instant) {
    let status = if is_success { "Success" } else { "Unschedulable" };
    EXTENSION_POINT_DURATION.observe(&[extension_point, profile, status], started.elapsed().as_secs_f64());
}
