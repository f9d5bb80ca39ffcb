//! Counters of one FlowSchema at one priority level.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use super::queue_set::Reason;

/// Upper bounds of the wait histogram's buckets, in seconds.
pub const WAIT_BUCKETS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];

#[derive(Default)]
pub struct FlowStats {
    pub dispatched: AtomicU64,
    rejected: [AtomicU64; Reason::ALL.len()],
    pub waiting: AtomicI64,
    pub waiting_seats: AtomicI64,
    pub executing: AtomicI64,
    pub seats: AtomicI64,
    /// How long requests waited that were executed, and that were not.
    pub executed_waits: Histogram,
    pub refused_waits: Histogram,
}

impl FlowStats {
    pub fn reject(&self, reason: Reason) {
        self.rejected[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn rejected(&self, reason: Reason) -> u64 {
        self.rejected[reason as usize].load(Ordering::Relaxed)
    }

    pub fn enqueue(&self, seats: u32) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.waiting_seats.fetch_add(i64::from(seats), Ordering::Relaxed);
    }

    pub fn dequeue(&self, seats: u32) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.waiting_seats.fetch_sub(i64::from(seats), Ordering::Relaxed);
    }

    pub fn start(&self, seats: u32) {
        self.dispatched.fetch_add(1, Ordering::Relaxed);
        self.executing.fetch_add(1, Ordering::Relaxed);
        self.seats.fetch_add(i64::from(seats), Ordering::Relaxed);
    }

    pub fn finish(&self, seats: u32) {
        self.executing.fetch_sub(1, Ordering::Relaxed);
        self.seats.fetch_sub(i64::from(seats), Ordering::Relaxed);
    }
}

/// A histogram of durations. `buckets` are not cumulative.
#[derive(Default)]
pub struct Histogram {
    pub buckets: [AtomicU64; WAIT_BUCKETS.len() + 1],
    pub nanoseconds: AtomicU64,
}

impl Histogram {
    pub fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let at = WAIT_BUCKETS.iter().position(|limit| seconds <= *limit).unwrap_or(WAIT_BUCKETS.len());
        self.buckets[at].fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }
}
