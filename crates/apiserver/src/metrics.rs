//! Metrics of what requests go through and of what the server does beside them, by Kubernetes' names.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use knarr_metrics::{Counter, Family, Gauge, Histogram};

/// The bounds of Prometheus' libraries.
const DEFAULT_BOUNDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

pub static WEBHOOK_DURATION: Histogram = Histogram::new(
    "apiserver_admission_webhook_admission_duration_seconds",
    "[STABLE] How long admission webhooks took, by webhook.",
    &["name", "operation", "rejected", "type"],
    &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0],
);
static COMPILATION: Histogram = Histogram::new(
    "apiserver_cel_compilation_duration_seconds",
    "[BETA] How long the compilation of a CEL expression took.",
    &[],
    DEFAULT_BOUNDS,
);
static EVALUATION: Histogram = Histogram::new(
    "apiserver_cel_evaluation_duration_seconds",
    "[BETA] How long the evaluation of a CEL expression took.",
    &[],
    DEFAULT_BOUNDS,
);
static POLICY_CHECKS: Counter = Counter::new(
    "apiserver_validating_admission_policy_check_total",
    "[BETA] Validations that failed, by policy, binding and what followed.",
    &["enforcement_action", "error_type", "policy", "policy_binding"],
);
static POLICY_DURATION: Histogram = Histogram::new(
    "apiserver_validating_admission_policy_check_duration_seconds",
    "[BETA] How long validations took that failed, by policy, binding and what followed.",
    &["enforcement_action", "error_type", "policy", "policy_binding"],
    &[5e-7, 0.001, 0.01, 0.1, 1.0],
);
static CERTIFICATE_EXPIRATION: Histogram = Histogram::new(
    "apiserver_client_certificate_expiration_seconds",
    "[ALPHA] How long the client certificates of connections remain valid.",
    &[],
    &[
        0.0,
        1800.0,
        3600.0,
        7200.0,
        21_600.0,
        43_200.0,
        86_400.0,
        172_800.0,
        345_600.0,
        604_800.0,
        2_592_000.0,
        7_776_000.0,
        15_552_000.0,
        31_104_000.0,
    ],
);
pub static UNAVAILABLE: Gauge = Gauge::new(
    "aggregator_unavailable_apiservice",
    "[ALPHA] 1 for each APIService whose server is not available.",
    &["name"],
);
pub static BECAME_UNAVAILABLE: Counter = Counter::new(
    "aggregator_unavailable_apiservice_total",
    "[ALPHA] How often APIServices became unavailable, by reason.",
    &["name", "reason"],
);
pub static STORAGE_EVENTS: Counter = Counter::new(
    "apiserver_storage_events_received_total",
    "[BETA] Changes that watches received from the store, by resource.",
    &["group", "resource"],
);

pub const FAMILIES: &[&dyn Family] = &[
    &WEBHOOK_DURATION,
    &COMPILATION,
    &EVALUATION,
    &POLICY_CHECKS,
    &POLICY_DURATION,
    &CERTIFICATE_EXPIRATION,
    &UNAVAILABLE,
    &BECAME_UNAVAILABLE,
    &STORAGE_EVENTS,
    &AUTHENTICATION_RELOADS.count,
    &AUTHENTICATION_RELOADS.last,
    &AUTHORIZATION_RELOADS.count,
    &AUTHORIZATION_RELOADS.last,
];

/// Runs a compilation of a CEL expression and records how long it took.
pub fn compiling<T>(compile: impl FnOnce() -> T) -> T {
    timed(&COMPILATION, compile)
}

/// Runs an evaluation of a CEL expression and records how long it took.
pub fn evaluating<T>(evaluate: impl FnOnce() -> T) -> T {
    timed(&EVALUATION, evaluate)
}

fn timed<T>(histogram: &Histogram, run: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = run();
    histogram.observe(&[], started.elapsed().as_secs_f64());
    result
}

/// Records a validation that failed, or that could not be evaluated.
pub fn policy_checked(action: &str, error: &str, policy: &str, binding: &str, took: Duration) {
    let labels = [action, error, policy, binding];
    POLICY_CHECKS.add(&labels, 1);
    POLICY_DURATION.observe(&labels, took.as_secs_f64());
}

/// Records for how many seconds the client certificate of a new connection remains valid.
pub fn certificate_presented(seconds: i64) {
    CERTIFICATE_EXPIRATION.observe(&[], seconds as f64);
}

/// Reloads of a configuration file.
pub struct Reloads {
    count: Counter,
    last: Gauge,
}

pub static AUTHENTICATION_RELOADS: Reloads = Reloads {
    count: Counter::new(
        "apiserver_authentication_config_controller_automatic_reloads_total",
        "[BETA] Reloads of the changed authentication configuration, by result.",
        RELOAD_LABELS,
    ),
    last: Gauge::new(
        "apiserver_authentication_config_controller_automatic_reload_last_timestamp_seconds",
        "[BETA] When the changed authentication configuration was last reloaded, by result.",
        RELOAD_LABELS,
    ),
};
pub static AUTHORIZATION_RELOADS: Reloads = Reloads {
    count: Counter::new(
        "apiserver_authorization_config_controller_automatic_reloads_total",
        "[BETA] Reloads of the changed authorization configuration, by result.",
        RELOAD_LABELS,
    ),
    last: Gauge::new(
        "apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds",
        "[BETA] When the changed authorization configuration was last reloaded, by result.",
        RELOAD_LABELS,
    ),
};

const RELOAD_LABELS: &[&str] = &["apiserver_id_hash", "status"];

impl Reloads {
    pub fn record(&self, succeeded: bool, now: Timestamp) {
        let labels = [server_hash(), if succeeded { "success" } else { "failure" }];
        self.count.add(&labels, 1);
        self.last.set(&labels, now.as_millisecond() as f64 / 1e3);
    }
}

/// The hash of this server's identity.
fn server_hash() -> &'static str {
    static HASH: OnceLock<String> = OnceLock::new();
    HASH.get_or_init(|| {
        use sha2::{Digest, Sha256};
        let identity = format!("apiserver-{}", uuid::Uuid::new_v4());
        let digest = Sha256::digest(identity.as_bytes());
        format!("sha256:{}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reloads_are_counted_by_result() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().expect("a moment");
        // Other tests reload configurations meanwhile: these are this test's own.
        static RELOADS: Reloads = Reloads {
            count: Counter::new("reloads_total", "Reloads.", RELOAD_LABELS),
            last: Gauge::new("last_seconds", "The last reload.", RELOAD_LABELS),
        };
        RELOADS.record(true, now);
        RELOADS.record(false, now);
        let mut page = String::new();
        RELOADS.count.write(&mut page);
        RELOADS.last.write(&mut page);
        assert!(
            page.contains("status=\"failure\"} 1\n") && page.contains("status=\"success\"} 1.767323045e+09\n"),
            "{page}"
        );
        assert!(page.contains("_total{apiserver_id_hash=\"sha256:"), "{page}");
    }
}
