//! The history of a group of keys, or of a narrower scope, and the notification of its watches.

use std::collections::VecDeque;

use parking_lot::RwLock;
use tokio::sync::Notify;

use crate::contract::{Event, Revision};

pub(super) struct Group {
    pub log: RwLock<Log>,
    pub changed: Notify,
}

/// The changes after the floor, in revision order.
pub(super) struct Log {
    events: VecDeque<Event>,
    /// The revision of the newest change that was dropped: a watch that is behind it has missed changes.
    dropped: Revision,
}

impl Group {
    pub(super) fn new(dropped: Revision) -> Self {
        Self { log: RwLock::new(Log { events: VecDeque::new(), dropped }), changed: Notify::new() }
    }
}

impl Log {
    pub(super) fn push(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Adds older changes at the front, after which the log is complete since `complete_since`.
    pub(super) fn extend_back(&mut self, older: impl DoubleEndedIterator<Item = Event>, complete_since: Revision) {
        older.rev().for_each(|event| self.events.push_front(event));
        self.dropped = complete_since;
    }

    pub(super) fn dropped(&self) -> Revision {
        self.dropped
    }

    /// The changes after a revision.
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

    /// Drops the changes up to `revision` and returns them to be freed.
    pub(super) fn drop_until(&mut self, revision: Revision) -> VecDeque<Event> {
        let kept_from = self.events.partition_point(|event| event.revision <= revision);
        let kept = self.events.split_off(kept_from);
        let dropped = std::mem::replace(&mut self.events, kept);
        if let Some(newest) = dropped.back() {
            self.dropped = newest.revision;
        }
        dropped
    }

    /// Drops everything; the history up to `revision` is unknown.
    pub(super) fn reset(&mut self, revision: Revision) -> VecDeque<Event> {
        self.dropped = revision;
        std::mem::take(&mut self.events)
    }
}
