//! Counts of what passed through, in the Prometheus text format.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BOUNDS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

struct Counts {
    by_class: [AtomicU64; 5],
    retries: AtomicU64,
    upgrades: AtomicU64,
    under_way: AtomicU64,
    buckets: [AtomicU64; BOUNDS.len()],
    microseconds: AtomicU64,
}

static COUNTS: Counts = Counts {
    by_class: [const { AtomicU64::new(0) }; 5],
    retries: AtomicU64::new(0),
    upgrades: AtomicU64::new(0),
    under_way: AtomicU64::new(0),
    buckets: [const { AtomicU64::new(0) }; BOUNDS.len()],
    microseconds: AtomicU64::new(0),
};

/// Counts a request as under way until dropped.
pub struct UnderWay(());

pub fn begun() -> UnderWay {
    COUNTS.under_way.fetch_add(1, Ordering::Relaxed);
    UnderWay(())
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        COUNTS.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

pub fn answered(status: u16, took: Duration) {
    let class = usize::from(status / 100).clamp(1, 5) - 1;
    COUNTS.by_class[class].fetch_add(1, Ordering::Relaxed);
    COUNTS.microseconds.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    if let Some(bucket) = BOUNDS.iter().position(|bound| took.as_secs_f64() <= *bound) {
        COUNTS.buckets[bucket].fetch_add(1, Ordering::Relaxed);
    }
}

pub fn retried() {
    COUNTS.retries.fetch_add(1, Ordering::Relaxed);
}

pub fn upgraded() {
    COUNTS.upgrades.fetch_add(1, Ordering::Relaxed);
}

/// All counts as text.
pub fn render() -> String {
    let mut text = String::new();
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let _ = writeln!(text, "# TYPE knarr_ingress_requests_total counter");
    for (index, count) in COUNTS.by_class.iter().enumerate() {
        let _ = writeln!(text, "knarr_ingress_requests_total{{code=\"{}xx\"}} {}", index + 1, read(count));
    }
    for (name, kind, count) in [
        ("knarr_ingress_retries_total", "counter", &COUNTS.retries),
        ("knarr_ingress_upgrades_total", "counter", &COUNTS.upgrades),
        ("knarr_ingress_requests_in_flight", "gauge", &COUNTS.under_way),
    ] {
        let _ = writeln!(text, "# TYPE {name} {kind}\n{name} {}", read(count));
    }
    let name = "knarr_ingress_request_duration_seconds";
    let _ = writeln!(text, "# TYPE {name} histogram");
    let mut sum = 0;
    for (bound, count) in BOUNDS.iter().zip(&COUNTS.buckets) {
        sum += read(count);
        let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {sum}");
    }
    let total: u64 = COUNTS.by_class.iter().map(read).sum();
    let seconds = Duration::from_micros(read(&COUNTS.microseconds)).as_secs_f64();
    let _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {total}\n{name}_sum {seconds}\n{name}_count {total}");
    text
}
