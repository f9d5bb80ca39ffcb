//! Request metrics of the ingress controller, in the Prometheus text format.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::worker;

const BOUNDS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// The counters of one worker, on separate cache lines: workers must not contend for them.
#[repr(align(128))]
struct Counts {
    by_class: [AtomicU64; 5],
    retries: AtomicU64,
    upgrades: AtomicU64,
    in_flight: AtomicU64,
    buckets: [AtomicU64; BOUNDS.len()],
    microseconds: AtomicU64,
}

impl Counts {
    const fn none() -> Self {
        Counts {
            by_class: [const { AtomicU64::new(0) }; 5],
            retries: AtomicU64::new(0),
            upgrades: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BOUNDS.len()],
            microseconds: AtomicU64::new(0),
        }
    }
}

static COUNTS: [Counts; worker::MAX_WORKERS] = [const { Counts::none() }; worker::MAX_WORKERS];

fn own() -> &'static Counts {
    &COUNTS[worker::current() % worker::MAX_WORKERS]
}

/// Counts a request as in flight until dropped.
pub struct InFlight(&'static Counts);

/// Counts a request.
pub fn request_started() -> InFlight {
    let counts = own();
    counts.in_flight.fetch_add(1, Ordering::Relaxed);
    InFlight(counts)
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts a response and its duration.
pub fn record_response(status: u16, took: Duration) {
    let class = usize::from(status / 100).clamp(1, 5) - 1;
    let counts = own();
    counts.by_class[class].fetch_add(1, Ordering::Relaxed);
    counts.microseconds.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    if let Some(bucket) = BOUNDS.iter().position(|bound| took.as_secs_f64() <= *bound) {
        counts.buckets[bucket].fetch_add(1, Ordering::Relaxed);
    }
}

pub fn retried() {
    own().retries.fetch_add(1, Ordering::Relaxed);
}

pub fn upgraded() {
    own().upgrades.fetch_add(1, Ordering::Relaxed);
}

/// All metrics as text.
pub fn render() -> String {
    let mut text = String::new();
    let read = |of: &dyn Fn(&'static Counts) -> &'static AtomicU64| -> u64 {
        COUNTS.iter().map(|counts| of(counts).load(Ordering::Relaxed)).sum()
    };
    let by_class: Vec<u64> = (0..5).map(|class| read(&|counts| &counts.by_class[class])).collect();
    let _ = writeln!(text, "# TYPE knarr_ingress_requests_total counter");
    for (index, count) in by_class.iter().enumerate() {
        let _ = writeln!(text, "knarr_ingress_requests_total{{code=\"{}xx\"}} {count}", index + 1);
    }
    for (name, kind, count) in [
        ("knarr_ingress_retries_total", "counter", read(&|counts| &counts.retries)),
        ("knarr_ingress_upgrades_total", "counter", read(&|counts| &counts.upgrades)),
        ("knarr_ingress_requests_in_flight", "gauge", read(&|counts| &counts.in_flight)),
    ] {
        let _ = writeln!(text, "# TYPE {name} {kind}\n{name} {count}");
    }
    let name = "knarr_ingress_request_duration_seconds";
    let _ = writeln!(text, "# TYPE {name} histogram");
    let mut sum = 0;
    for (index, bound) in BOUNDS.iter().enumerate() {
        sum += read(&|counts| &counts.buckets[index]);
        let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {sum}");
    }
    let total: u64 = by_class.iter().sum();
    let seconds = Duration::from_micros(read(&|counts| &counts.microseconds)).as_secs_f64();
    let _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {total}\n{name}_sum {seconds}\n{name}_count {total}");
    text
}
