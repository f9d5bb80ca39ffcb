//! Metrics of how long the node takes from the host's boot until it is ready, step by step.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::counters::{Counters, FAMILIES, Values};

const BEFORE: &str = "kubelet_node_startup_pre_kubelet_duration_seconds";
const PREPARING: &str = "kubelet_node_startup_pre_registration_duration_seconds";
const REGISTERING: &str = "kubelet_node_startup_registration_duration_seconds";
const AFTER: &str = "kubelet_node_startup_post_registration_duration_seconds";
const WHOLE: &str = "kubelet_node_startup_duration_seconds";

/// To be called when the registration starts. `booted` is in seconds since 1970.
pub fn registering(metrics: &Counters, booted: i64) {
    let started = crate::host::own_process().map_or_else(now, |process| process.started);
    metrics.set_once(BEFORE, (started - booted as f64).max(0.0));
    metrics.set_once(PREPARING, (now() - started).max(0.0));
}

pub fn registered(metrics: &Counters, took: Duration) {
    metrics.set_once(REGISTERING, took.as_secs_f64());
}

/// To be called whenever the node is reported ready; only the first call counts.
pub fn ready(metrics: &Counters, booted: i64) {
    let whole = now() - booted as f64;
    let before: f64 = [BEFORE, PREPARING, REGISTERING].iter().map(|name| value(metrics, name)).sum();
    metrics.set_once(AFTER, (whole - before).max(0.0));
    metrics.set_once(WHOLE, whole);
}

fn now() -> f64 {
    Timestamp::now().as_millisecond() as f64 / 1e3
}

fn value(metrics: &Counters, name: &str) -> f64 {
    let family = FAMILIES.iter().find(|family| family.name == name);
    match family.and_then(|family| metrics.values(family)) {
        Some(Values::Numbers(values)) => values.values().sum(),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_add_up_to_the_whole() {
        let metrics = Counters::default();
        let booted = Timestamp::now().as_second() - 1000;
        registering(&metrics, booted);
        registered(&metrics, Duration::ZERO);
        ready(&metrics, booted);
        ready(&metrics, booted - 500);
        let steps: f64 = [BEFORE, PREPARING, REGISTERING, AFTER].iter().map(|name| value(&metrics, name)).sum();
        assert!((value(&metrics, WHOLE) - steps).abs() < 1.0);
        assert!((1000.0..1100.0).contains(&value(&metrics, WHOLE)));
    }
}
