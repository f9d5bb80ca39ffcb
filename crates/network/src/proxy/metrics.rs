//! Metrics of the service proxy, by the names of kube-proxy. They are registered, so that a node's page has them, too: its
//! collectors are elsewhere and do not reach the proxy's own page.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use knarr_metrics::{Counter, Family, Gauge, Histogram};

/// One transaction has the rules of both families; kube-proxy's dashboards expect a family.
const FAMILY: &[&str] = &["IPv4"];

/// Upper bounds of a sync's duration: each twice the one before.
const SYNC_BOUNDS: [f64; 15] = {
    let mut bounds = [0.001; 15];
    let mut index = 1;
    while index < bounds.len() {
        bounds[index] = bounds[index - 1] * 2.0;
        index += 1;
    }
    bounds
};

/// Upper bounds of the time until a change is in the kernel: seconds up to a minute, then coarser up to five.
const PROGRAMMING_BOUNDS: [f64; 80] = {
    let mut bounds = [0.25; 80];
    bounds[1] = 0.5;
    let mut index = 2;
    while index < bounds.len() {
        let step = match index {
            2 => 0.5,
            3..62 => 1.0,
            62..74 => 5.0,
            _ => 30.0,
        };
        bounds[index] = bounds[index - 1] + step;
        index += 1;
    }
    bounds
};

static SYNCS: Histogram = Histogram::new(
    "kubeproxy_sync_proxy_rules_duration_seconds",
    "Duration of syncs of the service rules.",
    &["ip_family"],
    &SYNC_BOUNDS,
);
static PROGRAMMING: Histogram = Histogram::new(
    "kubeproxy_network_programming_duration_seconds",
    "Time from a change of endpoints until the kernel has it.",
    &["ip_family"],
    &PROGRAMMING_BOUNDS,
);
static LAST_SYNC: Gauge = Gauge::new(
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
    "When the service rules were last applied, in seconds since 1970.",
    &[],
);
static LAST_QUEUED: Gauge = Gauge::new(
    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
    "When a sync of the service rules was last queued, in seconds since 1970.",
    &[],
);
static SERVICE_CHANGES: Counter =
    Counter::new("kubeproxy_sync_proxy_rules_service_changes_total", "Changes of Services.", &[]);
static ENDPOINT_CHANGES: Counter =
    Counter::new("kubeproxy_sync_proxy_rules_endpoint_changes_total", "Changes of endpoints.", &[]);
static FAILURES: Counter =
    Counter::new("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "Syncs that nftables refused.", &[]);

const FAMILIES: &[&dyn Family] =
    &[&SYNCS, &PROGRAMMING, &LAST_SYNC, &LAST_QUEUED, &SERVICE_CHANGES, &ENDPOINT_CHANGES, &FAILURES];

/// Adds the metrics to the pages of this process.
pub fn register() {
    knarr_metrics::register(FAMILIES);
}

pub fn service_changed() {
    SERVICE_CHANGES.add(&[], 1);
}

pub fn endpoints_changed() {
    ENDPOINT_CHANGES.add(&[], 1);
}

pub fn queued(now: SystemTime) {
    LAST_QUEUED.set(&[], seconds(now));
}

/// Records an applied transaction. `changed_at`: when its changes happened.
pub fn synced(now: SystemTime, took: Duration, changed_at: &[SystemTime]) {
    LAST_SYNC.set(&[], seconds(now));
    SYNCS.observe(FAMILY, took.as_secs_f64());
    for moment in changed_at {
        PROGRAMMING.observe(FAMILY, now.duration_since(*moment).unwrap_or_default().as_secs_f64());
    }
}

pub fn failed() {
    FAILURES.add(&[], 1);
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metrics_are_those_of_kube_proxy() {
        let described: Vec<_> = FAMILIES.iter().flat_map(|family| family.described()).collect();
        let differences = knarr_metrics::reference::differences("kube-proxy", "/metrics", "", &described);
        let own: Vec<&String> = differences.iter().filter(|text| text.contains("kubeproxy_")).collect();
        assert_eq!(own, Vec::<&String>::new());
    }
}
