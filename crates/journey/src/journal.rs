//! The journal: the newest steps in memory, limited by a number of bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::step::Step;

/// Enough for about three thousand steps.
const CAPACITY_BYTES: usize = 1 << 20;

/// Steps as lines of JSON, oldest first. Clones share the journal.
#[derive(Clone)]
pub struct Journal {
    shared: Arc<Shared>,
}

struct Shared {
    lines: Mutex<Lines>,
    /// The number of lines ever written.
    written: watch::Sender<u64>,
    capacity: usize,
}

#[derive(Default)]
struct Lines {
    stored: VecDeque<Box<str>>,
    bytes: usize,
    written: u64,
}

impl Default for Journal {
    fn default() -> Journal {
        Journal::with_capacity(CAPACITY_BYTES)
    }
}

impl Journal {
    /// A journal that keeps at most this many bytes.
    pub fn with_capacity(capacity: usize) -> Journal {
        let shared = Shared { lines: Mutex::default(), written: watch::Sender::new(0), capacity };
        Journal { shared: Arc::new(shared) }
    }

    /// Adds a step that another process recorded.
    pub fn append(&self, step: &Step) {
        // A step has only strings and numbers, so this does not fail.
        if let Ok(line) = serde_json::to_string(step) {
            self.append_line(line);
        }
    }

    /// Adds a step as a line of JSON; drops the oldest beyond the capacity.
    pub(crate) fn append_line(&self, line: String) {
        let mut lines = self.shared.lines.lock();
        lines.bytes += line.len();
        lines.stored.push_back(line.into());
        lines.written += 1;
        while lines.bytes > self.shared.capacity {
            let Some(oldest) = lines.stored.pop_front() else { break };
            lines.bytes -= oldest.len();
        }
        let written = lines.written;
        drop(lines);
        self.shared.written.send_replace(written);
    }

    /// All stored steps, one per line.
    pub fn text(&self) -> String {
        self.since(0).0
    }

    /// Subscribes to the stored and all further steps.
    pub fn subscribe(&self) -> Subscription {
        Subscription { journal: self.clone(), seen: 0, changes: self.shared.written.subscribe() }
    }

    /// The lines after the first `seen` ever written, and the number of lines written so far.
    fn since(&self, seen: u64) -> (String, u64) {
        let lines = self.shared.lines.lock();
        let dropped = lines.written - lines.stored.len() as u64;
        let skip = usize::try_from(seen.saturating_sub(dropped)).unwrap_or(usize::MAX);
        let mut text = String::new();
        for line in lines.stored.iter().skip(skip) {
            text.push_str(line);
            text.push('\n');
        }
        (text, lines.written)
    }
}

/// Reads a journal as it grows.
pub struct Subscription {
    journal: Journal,
    seen: u64,
    changes: watch::Receiver<u64>,
}

impl Subscription {
    /// Waits for new lines and returns all of them. `None` only after the journal is dropped.
    pub async fn next(&mut self) -> Option<String> {
        let seen = self.seen;
        self.changes.wait_for(|written| *written > seen).await.ok()?;
        let (text, written) = self.journal.since(seen);
        self.seen = written;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(number: u64) -> String {
        let step = Step {
            started: number,
            took: 0,
            step: "reconciled".into(),
            object: "pods/a/b".into(),
            process: String::new(),
            fields: Default::default(),
        };
        serde_json::to_string(&step).expect("JSON")
    }

    fn moments(text: &str) -> Vec<u64> {
        text.lines().map(|line| serde_json::from_str::<Step>(line).unwrap().started).collect()
    }

    #[test]
    fn the_oldest_lines_are_dropped() {
        let size = step(1).len();
        let journal = Journal::with_capacity(size * 3);
        (1..=5).for_each(|number| journal.append_line(step(number)));
        assert_eq!(moments(&journal.text()), [3, 4, 5]);
    }

    #[tokio::test]
    async fn a_subscription_gets_every_line_once() {
        let journal = Journal::default();
        journal.append_line(step(1));
        let mut all = journal.subscribe();
        assert_eq!(moments(&all.next().await.unwrap()), [1]);
        journal.append_line(step(2));
        journal.append_line(step(3));
        assert_eq!(moments(&all.next().await.unwrap()), [2, 3]);
    }

    #[tokio::test]
    async fn a_subscription_continues_after_dropped_lines() {
        let size = step(1).len();
        let journal = Journal::with_capacity(size * 2);
        let mut subscription = journal.subscribe();
        (1..=5).for_each(|number| journal.append_line(step(number)));
        assert_eq!(moments(&subscription.next().await.unwrap()), [4, 5]);
        journal.append_line(step(6));
        assert_eq!(moments(&subscription.next().await.unwrap()), [6]);
    }
}
