//! A queue of requests, and what a request waits for in it: work, which is seats times time.

use std::collections::VecDeque;
use std::time::Duration;

use crate::fairness::estimate::Estimate;

/// How long a request takes, before it is known.
pub(super) const ESTIMATED_SERVICE: Duration = Duration::from_millis(3);

/// Seats times nanoseconds.
pub(super) type Work = i128;

/// Identifies a request from its arrival until it finishes or leaves its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(super) usize);

/// A request that waits or executes. `T` describes it to readers of dumps.
pub struct Request<T> {
    pub description: T,
    pub estimate: Estimate,
    pub arrived: Duration,
    pub started: Option<Duration>,
    pub queue: Option<usize>,
    pub(super) arrival_progress: Work,
}

#[derive(Default)]
pub struct Queue {
    pub waiting: VecDeque<RequestId>,
    pub executing: usize,
    /// Also those of finished requests whose seats are still occupied.
    pub seats_in_use: u32,
    pub(super) seats_waiting: u32,
    pub(super) initial_seats_waiting: u32,
    pub(super) work_waiting: Work,
    pub(super) next_dispatch: Work,
}

impl Queue {
    pub(super) fn is_active(&self) -> bool {
        !self.waiting.is_empty() || self.executing > 0
    }

    pub fn initial_seats_waiting(&self) -> u32 {
        self.initial_seats_waiting
    }

    pub fn seats_waiting(&self) -> u32 {
        self.seats_waiting
    }

    /// In seat-seconds.
    pub fn work_waiting(&self) -> f64 {
        self.work_waiting as f64 / 1e9
    }

    /// In seat-seconds.
    pub fn next_dispatch(&self) -> f64 {
        self.next_dispatch as f64 / 1e9
    }
}

/// Seats that are released later than their request finished.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lingering {
    pub(super) until: Duration,
    pub(super) seats: u32,
    pub(super) queue: Option<usize>,
}

pub(super) fn work(seats: u32, time: Duration) -> Work {
    Work::from(seats) * time.as_nanos() as Work
}

pub(super) fn total_work(estimate: &Estimate) -> Work {
    work(estimate.initial_seats, ESTIMATED_SERVICE) + work(estimate.final_seats, estimate.additional_latency)
}
