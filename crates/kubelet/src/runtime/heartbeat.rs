//! Whether the node still gets anywhere: the runtime answers, and every pod's worker looks when it is told to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A node that got nowhere for so long is stuck.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// When the last round of looks was over in which the runtime answered. Clones share it.
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
        now.saturating_duration_since(*self.0.lock()) > LONGEST_PAUSE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_round_for_minutes_is_stuck() {
        let begun = Instant::now();
        let heartbeat = Heartbeat::new(begun);
        for (seconds, beats, expected) in
            [(60, true, false), (360, false, false), (361, false, true), (400, true, false), (699, false, false)]
        {
            let now = begun + Duration::from_secs(seconds);
            if beats {
                heartbeat.beat(now);
            }
            assert_eq!(heartbeat.is_stuck(now), expected, "after {seconds} s");
        }
    }
}
