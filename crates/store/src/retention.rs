//! How much history to keep: a time, and no more than so many bytes.

use std::collections::VecDeque;
use std::time::Duration;

use crate::contract::{Revision, Store};

/// Decides what to compact. Its owner calls it from time to time, say every ten seconds, and compacts to what it answers.
#[derive(Debug)]
pub struct Retention {
    keep: Duration,
    most_bytes: usize,
    /// What the newest revision was at earlier calls, oldest first, as milliseconds since 1970 and revision.
    samples: VecDeque<(u64, Revision)>,
    /// What was answered last.
    floor: Revision,
}

impl Retention {
    /// Keeps the history of the last `keep`, and less when it would take more than `most_bytes` of memory.
    pub fn new(keep: Duration, most_bytes: usize) -> Self {
        Self { keep, most_bytes, samples: VecDeque::new(), floor: 0 }
    }

    /// The revision to compact to at the time `now` (milliseconds since 1970), when there is something to forget.
    pub fn due(&mut self, store: &dyn Store, now: u64) -> Option<Revision> {
        let by_age = self.older_than_kept(store.revision(), now);
        let by_size = store.history_within(self.most_bytes);
        let due = by_age.unwrap_or(0).max(by_size);
        let risen = due > self.floor;
        self.floor = self.floor.max(due);
        risen.then_some(due)
    }

    /// Remembers the newest revision, and answers the one that was newest when the kept time began.
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
    fn forgets_what_is_older_than_the_kept_time() {
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
