//! The history of one group of keys, and who waits for it to grow.

use std::collections::VecDeque;

use parking_lot::RwLock;
use tokio::sync::Notify;

use crate::contract::{Event, Revision};

pub(super) struct Group {
    pub log: RwLock<Log>,
    pub news: Notify,
}

/// The group's changes after the floor, in revision order.
pub(super) struct Log {
    events: VecDeque<Event>,
    /// The revision of the newest change that was forgotten: whoever has not seen it has missed something.
    forgotten: Revision,
}

impl Group {
    pub(super) fn new(forgotten: Revision) -> Self {
        Self { log: RwLock::new(Log { events: VecDeque::new(), forgotten }), news: Notify::new() }
    }
}

impl Log {
    pub(super) fn push(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(super) fn forgotten(&self) -> Revision {
        self.forgotten
    }

    /// The changes after a revision. What is asked for is mostly near the end.
    pub(super) fn after(&self, revision: Revision) -> impl Iterator<Item = &Event> {
        let start = match self.events.back() {
            Some(newest) if newest.revision > revision => {
                self.events.partition_point(|event| event.revision <= revision)
            }
            _ => self.events.len(),
        };
        self.events.range(start..)
    }

    pub(super) fn newest_first(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().rev()
    }

    /// Forgets the changes up to `revision` and hands them back to be freed.
    pub(super) fn forget(&mut self, revision: Revision) -> VecDeque<Event> {
        let kept_from = self.events.partition_point(|event| event.revision <= revision);
        let kept = self.events.split_off(kept_from);
        let dropped = std::mem::replace(&mut self.events, kept);
        if let Some(newest) = dropped.back() {
            self.forgotten = newest.revision;
        }
        dropped
    }

    /// Forgets everything, and that nothing is known of what happened up to `revision`.
    pub(super) fn lose(&mut self, revision: Revision) -> VecDeque<Event> {
        self.forgotten = revision;
        std::mem::take(&mut self.events)
    }
}
