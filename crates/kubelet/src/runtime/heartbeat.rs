//! Detects a stuck kubelet: the runtime must respond, and every pod's worker must finish its relists.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The kubelet is stuck after this time without a finished relist.
const STUCK_AFTER: Duration = Duration::from_secs(300);

/// When the last relist finished in which the runtime responded. Clones share it.
#[derive(Clone)]
pub struct Heartbeat(Arc<Mutex<Instant>>);

impl Heartbeat {
    pub fn new(now: Instant) -> Self {
        Self(Arc::new(Mutex::new(now)))
    }

    pub fn beat(&self, now: Instant) {
        *self.0.lock() = now;
    }

    pub fn is_stuck(&self, now: Instant) -> bool {
        now.saturating_duration_since(*self.0.lock()) > STUCK_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_round_for_minutes_is_stuck() {
        let started = Instant::now();
        let heartbeat = Heartbeat::new(started);
        for (seconds, beats, expected) in
            [(60, true, false), (360, false, false), (361, false, true), (400, true, false), (699, false, false)]
        {
            let now = started + Duration::from_secs(seconds);
            if beats {
                heartbeat.beat(now);
            }
            assert_eq!(heartbeat.is_stuck(now), expected, "after {seconds} s");
        }
    }
}
