//! Decides how much history to keep: a duration, limited by a number of bytes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::contract::{Revision, Store};

/// Decides which revision to compact to. The owner calls `due` periodically and compacts to the revision it returns.
#[derive(Debug)]
pub struct Retention {
    keep: Duration,
    max_bytes: usize,
    /// The newest revision at each previous call, oldest first. Time is monotonic: a step of the clock must not drop history
    /// that watches may still start from, nor keep it for longer.
    samples: VecDeque<(Instant, Revision)>,
    /// The revision returned last.
    floor: Revision,
}

impl Retention {
    /// Keeps the history of the last `keep`, or less when it would use more than `max_bytes` of memory.
    pub fn new(keep: Duration, max_bytes: usize) -> Self {
        Self { keep, max_bytes, samples: VecDeque::new(), floor: 0 }
    }

    /// The revision to compact to at `now`, if there is anything to drop.
    pub fn due(&mut self, store: &dyn Store, now: Instant) -> Option<Revision> {
        let by_age = self.older_than_kept(store.revision(), now);
        let by_size = store.history_within(self.max_bytes);
        let due = by_age.unwrap_or(0).max(by_size);
        let risen = due > self.floor;
        self.floor = self.floor.max(due);
        risen.then_some(due)
    }

    /// Records the newest revision, and returns the one that was newest when the kept period started.
    fn older_than_kept(&mut self, newest: Revision, now: Instant) -> Option<Revision> {
        self.samples.push_back((now, newest));
        let mut due = None;
        while let Some((_, revision)) =
            self.samples.front().copied().filter(|(time, _)| now.saturating_duration_since(*time) >= self.keep)
        {
            due = Some(revision);
            self.samples.pop_front();
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_history_older_than_the_kept_period() {
        let mut retention = Retention::new(Duration::from_secs(60), usize::MAX);
        let calls = [
            (0, 10, None),
            (30_000, 20, None),
            (59_999, 25, None),
            (60_000, 30, Some(10)),
            (89_999, 40, None),
            (200_000, 50, Some(40)),
        ];
        let start = Instant::now();
        for (milliseconds, newest, due) in calls {
            let now = start + Duration::from_millis(milliseconds);
            assert_eq!(retention.older_than_kept(newest, now), due, "at {milliseconds}");
        }
    }
}
