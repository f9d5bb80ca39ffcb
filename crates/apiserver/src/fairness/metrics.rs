//! The metrics of priority and fairness, in Prometheus format.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::Fairness;
use super::level::State;
use super::queue_set::Reason;
use super::stats::{FlowStats, Histogram, WAIT_BUCKETS};

const PREFIX: &str = "apiserver_flowcontrol_";

type Gauge = (&'static str, &'static str, &'static str, fn(&FlowStats) -> &AtomicI64);

const FLOW_GAUGES: [Gauge; 4] = [
    ("current_executing_requests", "BETA", "Requests that execute; watches only until they have started", |stats| {
        &stats.executing
    }),
    (
        "current_executing_seats",
        "BETA",
        "Seats of requests that execute; watches only until they have started",
        |stats| &stats.seats,
    ),
    ("current_inqueue_requests", "BETA", "Requests that wait in queues", |stats| &stats.waiting),
    ("current_inqueue_seats", "ALPHA", "Seats of requests that wait in queues", |stats| &stats.waiting_seats),
];

type LevelGauge = (&'static str, &'static str, &'static str, fn(&State) -> f64);

const LEVEL_GAUGES: [LevelGauge; 8] = [
    ("nominal_limit_seats", "BETA", "Seats that a priority level has by its shares", |state| {
        state.limits.nominal.into()
    }),
    ("lower_limit_seats", "ALPHA", "Seats that a priority level never lends", |state| state.limits.min.into()),
    ("upper_limit_seats", "ALPHA", "Seats that a priority level may have with those it borrows", |state| {
        state.limits.max.into()
    }),
    ("current_limit_seats", "ALPHA", "Seats that a priority level has now", |state| state.set.limit().into()),
    ("demand_seats_average", "ALPHA", "Average seats needed in the last period", |state| state.demand.average),
    ("demand_seats_stdev", "ALPHA", "Standard deviation of the seats needed in the last period", |state| {
        state.demand.deviation
    }),
    ("demand_seats_high_watermark", "ALPHA", "Most seats needed in the last period", |state| {
        state.demand.high_watermark.into()
    }),
    ("demand_seats_smoothed", "ALPHA", "Smoothed seats needed", |state| state.demand.smoothed),
];

impl Fairness {
    pub fn write_metrics(&self, out: &mut String) {
        if !self.is_enabled() {
            return;
        }
        let flows = self.stats.all();
        head(out, "dispatched_requests_total", "BETA", "Requests that were executed", "counter");
        for (labels, stats) in &flows {
            series(out, "dispatched_requests_total", labels, "", stats.dispatched.load(Ordering::Relaxed));
        }
        head(out, "rejected_requests_total", "BETA", "Requests that were refused", "counter");
        for (labels, stats) in &flows {
            for reason in Reason::ALL.into_iter().filter(|reason| stats.rejected(*reason) > 0) {
                let label = format!(",reason={:?}", reason.name());
                series(out, "rejected_requests_total", labels, &label, stats.rejected(reason));
            }
        }
        for (name, stability, help, read) in FLOW_GAUGES {
            head(out, name, stability, help, "gauge");
            for (labels, stats) in &flows {
                series(out, name, labels, "", read(stats).load(Ordering::Relaxed));
            }
        }
        head(out, "request_wait_duration_seconds", "BETA", "How long requests waited in their queues", "histogram");
        for (labels, stats) in &flows {
            for (execute, histogram) in [("true", &stats.executed_waits), ("false", &stats.refused_waits)] {
                waits(out, labels, execute, histogram);
            }
        }
        for (name, stability, help, read) in LEVEL_GAUGES {
            head(out, name, stability, help, "gauge");
            for level in self.levels() {
                let value = level.read(read);
                let _ = writeln!(out, "{PREFIX}{name}{{priority_level={:?}}} {value}", level.name);
            }
        }
    }
}

fn head(out: &mut String, name: &str, stability: &str, help: &str, kind: &str) {
    let _ = writeln!(out, "# HELP {PREFIX}{name} [{stability}] {help}\n# TYPE {PREFIX}{name} {kind}");
}

fn series(
    out: &mut String,
    name: &str,
    (level, schema): &(Arc<str>, Arc<str>),
    more: &str,
    value: impl std::fmt::Display,
) {
    let _ = writeln!(out, "{PREFIX}{name}{{flow_schema={schema:?},priority_level={level:?}{more}}} {value}");
}

fn waits(out: &mut String, labels: &(Arc<str>, Arc<str>), execute: &str, histogram: &Histogram) {
    let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
    let count: u64 = histogram.buckets.iter().map(load).sum();
    if count == 0 {
        return;
    }
    let name = "request_wait_duration_seconds";
    let ends = WAIT_BUCKETS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
    let mut below = 0;
    for (end, bucket) in ends.zip(&histogram.buckets) {
        below += load(bucket);
        series(out, &format!("{name}_bucket"), labels, &format!(",execute={execute:?},le=\"{end}\""), below);
    }
    let more = format!(",execute={execute:?}");
    series(out, &format!("{name}_sum"), labels, &more, load(&histogram.nanoseconds) as f64 / 1e9);
    series(out, &format!("{name}_count"), labels, &more, count);
}
