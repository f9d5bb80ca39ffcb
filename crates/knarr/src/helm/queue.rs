//! The work queue of charts, with the backoff of those that failed. No I/O.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Namespace and name of a chart.
pub type Key = (String, String);

/// The maximum number of charts that are installed concurrently.
const MAX_RUNNING: usize = 4;
const INITIAL_BACKOFF: Duration = Duration::from_secs(10);
const MAX_BACKOFF: Duration = Duration::from_secs(300);

/// A queue of charts in the order in which they were added. A chart is queued at most once, and no two workers process it at a time.
#[derive(Default)]
pub struct Queue {
    pending: VecDeque<Key>,
    running: BTreeSet<Key>,
    failures: BTreeMap<Key, Failure>,
}

struct Failure {
    retry_at: Instant,
    backoff: Duration,
    /// The generation that failed: a newer one is tried without a backoff.
    generation: Option<i64>,
}

impl Queue {
    /// Adds a chart that may need work.
    pub fn add(&mut self, key: Key) {
        if !self.pending.contains(&key) {
            self.pending.push_back(key);
        }
    }

    /// Adds a chart whose object was observed. A new specification ends the backoff of a failed chart; a change of its status does
    /// not.
    pub fn observe(&mut self, key: Key, generation: Option<i64>) {
        if self.failures.get(&key).is_some_and(|failure| failure.generation != generation) {
            self.failures.remove(&key);
        }
        self.add(key);
    }

    /// Adds a chart of which another object has changed, such as its configuration.
    pub fn reconsider(&mut self, key: Key) {
        self.failures.remove(&key);
        self.add(key);
    }

    /// The next chart to process. No other worker gets it before `finish`.
    pub fn next(&mut self, now: Instant) -> Option<Key> {
        if self.running.len() >= MAX_RUNNING {
            return None;
        }
        let is_due = |key: &Key| self.failures.get(key).is_none_or(|failure| failure.retry_at <= now);
        let position = self.pending.iter().position(|key| !self.running.contains(key) && is_due(key))?;
        let key = self.pending.remove(position)?;
        self.running.insert(key.clone());
        Some(key)
    }

    /// Finishes the processing of a chart. A failed one is retried after its backoff.
    pub fn finish(&mut self, key: Key, failed_generation: Option<Option<i64>>, now: Instant) {
        self.running.remove(&key);
        match failed_generation {
            None => {
                self.failures.remove(&key);
            }
            Some(generation) => {
                let last = self.failures.get(&key).map(|failure| failure.backoff);
                let backoff = last.map_or(INITIAL_BACKOFF, |last| (last * 2).min(MAX_BACKOFF));
                self.failures.insert(key.clone(), Failure { retry_at: now + backoff, backoff, generation });
                self.add(key);
            }
        }
    }

    /// The time until the next chart is due, if nothing changes.
    pub fn pause(&self, now: Instant) -> Option<Duration> {
        let waiting = self.pending.iter().filter(|key| !self.running.contains(*key));
        let retries = waiting.filter_map(|key| self.failures.get(key).map(|failure| failure.retry_at));
        retries.min().map(|at| at.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("default".to_owned(), name.to_owned())
    }

    #[test]
    fn a_chart_is_worked_on_once_for_each_change() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.observe(key("a"), Some(1));
        queue.observe(key("a"), Some(1));
        assert_eq!(queue.next(now), Some(key("a")));
        assert_eq!(queue.next(now), None, "it is added once");
        queue.observe(key("a"), Some(2));
        assert_eq!(queue.next(now), None, "and worked on once at a time");
        queue.finish(key("a"), None, now);
        assert_eq!(queue.next(now), Some(key("a")), "a change meanwhile is not lost");
        queue.finish(key("a"), None, now);
        assert_eq!((queue.next(now), queue.pause(now)), (None, None), "then there is nothing to do");
    }

    #[test]
    fn every_chart_has_its_turn() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for name in ["a", "b", "c", "d", "e", "f"] {
            queue.add(key(name));
        }
        let first: Vec<Key> = std::iter::from_fn(|| queue.next(now)).collect();
        assert_eq!(first, ["a", "b", "c", "d"].map(key), "few at a time");
        for one in first {
            queue.finish(one.clone(), None, now);
            queue.add(one);
        }
        assert_eq!(queue.next(now), Some(key("e")), "those that came before");
    }

    #[test]
    fn a_failed_chart_waits_longer_each_time_or_for_a_change() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        queue.observe(key("a"), Some(1));
        for backoff in [10, 20, 40, 80, 160, 300, 300] {
            assert_eq!(queue.next(now), Some(key("a")));
            queue.finish(key("a"), Some(Some(1)), now);
            queue.observe(key("a"), Some(1));
            assert_eq!(queue.next(now), None, "its new status is no reason to retry");
            assert_eq!(queue.pause(now), Some(Duration::from_secs(backoff)));
            now += Duration::from_secs(backoff);
        }
        assert_eq!(queue.next(now), Some(key("a")));
        queue.finish(key("a"), Some(Some(1)), now);
        queue.observe(key("a"), Some(2));
        assert_eq!(queue.next(now), Some(key("a")), "a new specification is tried at once");
        queue.finish(key("a"), Some(Some(2)), now);
        queue.reconsider(key("a"));
        assert_eq!(queue.next(now), Some(key("a")), "and so is a new configuration");
    }
}
