//! A watch over the index: a cursor into the history of one group, or of all.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;

use super::Index;
use super::group::Group;
use super::state::key_of;
use crate::contract::{Event, Notice, Revision, Watch};

/// The maximum number of changes in one notice; a revision is never split.
const MAX_EVENTS: usize = 1000;
/// About how many bytes of values one notice may keep in memory while its reader is slow.
pub(super) const MAX_BYTES: usize = 256 * 1024;

pub(super) struct IndexWatch {
    index: Arc<Index>,
    /// `None` when the prefix spans groups.
    group: Option<Arc<Group>>,
    cursor: Cursor,
}

/// The progress of a watch.
struct Cursor {
    prefix: Box<str>,
    /// Everything up to here has been delivered.
    seen: Revision,
    progress_requested: bool,
    closed: bool,
}

impl IndexWatch {
    pub(super) fn new(index: Arc<Index>, group: Option<Arc<Group>>, prefix: &str, after: Revision) -> Self {
        let cursor = Cursor { prefix: prefix.into(), seen: after, progress_requested: false, closed: false };
        Self { index, group, cursor }
    }
}

#[async_trait]
impl Watch for IndexWatch {
    async fn next(&mut self) -> Option<Notice> {
        let Self { index, group, cursor } = self;
        let changed = group.as_ref().map_or(&index.any_change, |group| &group.changed);
        loop {
            // Subscribed before the log is read, so that no change is missed in between.
            let woken = changed.notified();
            let store_closed = index.closed.load(Ordering::Acquire);
            if let Some(notice) = cursor.advance(index, group.as_deref()) {
                return Some(notice);
            }
            if store_closed || cursor.closed {
                return None;
            }
            woken.await;
        }
    }

    fn request_progress(&mut self) {
        self.cursor.progress_requested = true;
    }
}

impl Cursor {
    fn advance(&mut self, index: &Index, group: Option<&Group>) -> Option<Notice> {
        if self.closed {
            return None;
        }
        // Read before the log: everything up to here is in it.
        let published = index.revision();
        if self.seen < published {
            let found = match group {
                Some(group) => self.collect(group, published),
                None => self.collect_all(index, published),
            };
            let Some(mut events) = found else {
                self.closed = true;
                return Some(Notice::Compacted);
            };
            self.seen = truncate(&mut events).unwrap_or(published);
            if !events.is_empty() {
                return Some(Notice::Events(events));
            }
        }
        if std::mem::take(&mut self.progress_requested) {
            return Some(Notice::Progress(self.seen));
        }
        None
    }

    /// The changes not yet delivered; `None` when some of them have been compacted.
    fn collect(&self, group: &Group, published: Revision) -> Option<Vec<Event>> {
        let log = group.log.read();
        if self.seen < log.dropped() {
            return None;
        }
        let (mut events, mut bytes) = (Vec::new(), 0);
        for event in log.after(self.seen).take_while(|event| event.revision <= published) {
            let full = events.len() > MAX_EVENTS || bytes > MAX_BYTES;
            if full && events.last().is_some_and(|last: &Event| last.revision != event.revision) {
                break;
            }
            if key_of(event).is_some_and(|key| key.starts_with(&*self.prefix)) {
                bytes += size(event);
                events.push(event.clone());
            }
        }
        Some(events)
    }

    fn collect_all(&self, index: &Index, published: Revision) -> Option<Vec<Event>> {
        let state = index.state.read();
        let mut events = Vec::new();
        for group in state.groups_of(&self.prefix) {
            events.extend(self.collect(group, published)?);
        }
        // The sort is stable: changes of one revision keep their order.
        events.sort_by_key(|event| event.revision);
        Some(events)
    }
}

/// The bytes that an event keeps in memory.
fn size(event: &Event) -> usize {
    [&event.current, &event.previous].into_iter().flatten().map(|entry| entry.value_len()).sum()
}

/// Truncates `events` at the end of a revision to fit one notice, and returns that revision; `None` when all fit.
fn truncate(events: &mut Vec<Event>) -> Option<Revision> {
    let mut bytes = 0;
    let fits = |event: &Event| {
        bytes += size(event);
        bytes <= MAX_BYTES
    };
    let fitting = events.iter().take(MAX_EVENTS).map(fits).take_while(|fits| *fits).count();
    if fitting == events.len() {
        return None;
    }
    // At least one revision, however large.
    let last = events.get(fitting.saturating_sub(1))?.revision;
    events.truncate(events.partition_point(|event| event.revision <= last));
    Some(last)
}
