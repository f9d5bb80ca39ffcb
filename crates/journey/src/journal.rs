//! The memory of what happened: the newest steps, never more than so many bytes of them.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::step::Step;

/// Enough for the last three thousand steps or so.
const CAPACITY: usize = 1 << 20;

/// Steps as lines of JSON, oldest first. All clones are the same journal.
#[derive(Clone)]
pub struct Journal {
    shared: Arc<Shared>,
}

struct Shared {
    lines: Mutex<Lines>,
    /// How many lines were ever written.
    written: watch::Sender<u64>,
    capacity: usize,
}

#[derive(Default)]
struct Lines {
    kept: VecDeque<Box<str>>,
    bytes: usize,
    written: u64,
}

impl Default for Journal {
    fn default() -> Journal {
        Journal::with_capacity(CAPACITY)
    }
}

impl Journal {
    pub fn with_capacity(capacity: usize) -> Journal {
        let shared = Shared { lines: Mutex::default(), written: watch::Sender::new(0), capacity };
        Journal { shared: Arc::new(shared) }
    }

    /// Adds a step that another process recorded.
    pub fn take_in(&self, step: &Step) {
        // A step is made of strings and numbers: there is nothing in it that JSON could not hold.
        if let Ok(line) = serde_json::to_string(step) {
            self.add(line);
        }
    }

    /// Adds a step as its line of JSON; the oldest make room for it.
    pub(crate) fn add(&self, line: String) {
        let mut lines = self.shared.lines.lock();
        lines.bytes += line.len();
        lines.kept.push_back(line.into());
        lines.written += 1;
        while lines.bytes > self.shared.capacity {
            let Some(oldest) = lines.kept.pop_front() else { break };
            lines.bytes -= oldest.len();
        }
        let written = lines.written;
        drop(lines);
        self.shared.written.send_replace(written);
    }

    /// Everything that is remembered, one step a line.
    pub fn text(&self) -> String {
        self.since(0).0
    }

    /// A reader of what is remembered and of what comes.
    pub fn follow(&self) -> Follower {
        Follower { journal: self.clone(), seen: 0, changes: self.shared.written.subscribe() }
    }

    /// A reader of what comes from now on.
    pub fn follow_new(&self) -> Follower {
        let seen = self.shared.lines.lock().written;
        Follower { seen, ..self.follow() }
    }

    /// The lines after the first `seen` that were ever written, and how many there are by now.
    fn since(&self, seen: u64) -> (String, u64) {
        let lines = self.shared.lines.lock();
        let forgotten = lines.written - lines.kept.len() as u64;
        let skip = usize::try_from(seen.saturating_sub(forgotten)).unwrap_or(usize::MAX);
        let mut text = String::new();
        for line in lines.kept.iter().skip(skip) {
            text.push_str(line);
            text.push('\n');
        }
        (text, lines.written)
    }
}

/// Reads a journal as it grows.
pub struct Follower {
    journal: Journal,
    seen: u64,
    changes: watch::Receiver<u64>,
}

impl Follower {
    /// The next lines, as many as there are; waits for the first. `None` never comes while the journal lives.
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
            began: number,
            took: 0,
            step: "seen".into(),
            object: "pods/a/b".into(),
            process: String::new(),
            fields: Default::default(),
        };
        serde_json::to_string(&step).expect("JSON")
    }

    fn moments(text: &str) -> Vec<u64> {
        text.lines().map(|line| serde_json::from_str::<Step>(line).unwrap().began).collect()
    }

    #[test]
    fn the_oldest_make_room() {
        let size = step(1).len();
        let journal = Journal::with_capacity(size * 3);
        (1..=5).for_each(|number| journal.add(step(number)));
        assert_eq!(moments(&journal.text()), [3, 4, 5]);
    }

    #[tokio::test]
    async fn a_follower_misses_nothing_and_sees_nothing_twice() {
        let journal = Journal::default();
        journal.add(step(1));
        let mut all = journal.follow();
        let mut new = journal.follow_new();
        assert_eq!(moments(&all.next().await.unwrap()), [1]);
        journal.add(step(2));
        journal.add(step(3));
        assert_eq!(moments(&all.next().await.unwrap()), [2, 3]);
        assert_eq!(moments(&new.next().await.unwrap()), [2, 3]);
    }

    #[tokio::test]
    async fn a_follower_goes_on_after_what_was_forgotten() {
        let size = step(1).len();
        let journal = Journal::with_capacity(size * 2);
        let mut follower = journal.follow();
        (1..=5).for_each(|number| journal.add(step(number)));
        assert_eq!(moments(&follower.next().await.unwrap()), [4, 5]);
        journal.add(step(6));
        assert_eq!(moments(&follower.next().await.unwrap()), [6]);
    }
}
