//! Decides how much history to keep: a duration, limited by a number of bytes.

use std::collections::VecDeque;
use std::time::Duration;

use crate::contract::{Revision, Store};

/// Decides which revision to compact to. The owner calls `due` periodically and compacts to the revision it returns.
#[derive(Debug)]
pub struct Retention {
    keep: Duration,
    max_bytes: usize,
    /// The newest revision at each previous call, oldest first: milliseconds since 1970 and revision.
    samples: VecDeque<(u64, Revision)>,
    /// The revision returned last.
    floor: Revision,
}

impl Retention {
    /// Keeps the history of the last `keep`, or less when it would use more than `max_bytes` of memory.
    pub fn new(keep: Duration, max_bytes: usize) -> Self {
        Self { keep, max_bytes, samples: VecDeque::new(), floor: 0 }
    }

    /// The revision to compact to at `now` (milliseconds since 1970), if there is anything to drop.
    pub fn due(&mut self, store: &dyn Store, now: u64) -> Option<Revision> {
        let by_age = self.older_than_kept(store.revision(), now);
        let by_size = store.history_within(self.max_bytes);
        let due = by_age.unwrap_or(0).max(by_size);
        let risen = due > self.floor;
        self.floor = self.floor.max(due);
        risen.then_some(due)
    }

    /// Records the newest revision, and returns the one that was newest when the kept period started.
    fn older_than_kept(&mut self, newest: Revision, now: u64) -> Option<Revision> {
        let keep = self.keep.as_millis() as u64;
        self.samples.push_back((now, newest));
        let mut due = None;
        while let Some((_, revision)) =
            self.samples.front().copied().filter(|(time, _)| time.saturating_add(keep) <= now)
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
        for (now, newest, due) in calls {
            assert_eq!(retention.older_than_kept(newest, now), due, "at {now}");
        }
    }
}
