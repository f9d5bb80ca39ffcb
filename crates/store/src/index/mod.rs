//! The in-memory index from which every backend serves reads and watches: the newest version of each key in key order,
//! and the changes since the compaction floor, from which any state between the floor and now can be reconstructed.
//!
//! For example, after `a=1` at revision 2, `b=1` at 3 and `a=2` at 4, `current` holds `a=2` and `b=1`, and the history is
//! `[2: – → a=1] [3: – → b=1] [4: a=1 → a=2]`. To read at revision 3, the changes after 3 are undone: the oldest of
//! them that touched `a` records that `a` was `a=1` before.
//!
//! Each group of keys (see `prefix::group_of`) has its own log of changes, so that a change wakes only the watches of its
//! group. Watches of less than a group share the log of their scope (`scopes`): they neither wake for other changes nor
//! read over them. Lock order: `Index::packing`, `Index::state`, then `Group::log`.

mod group;
mod packing;
pub(crate) mod prefix;
mod scopes;
mod state;
mod topics;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch as watch_channel};

use crate::contract::{ChangeObserver, Entry, Error, Page, Range, Revision, Scope, TopicIndex, Watch};
use group::Group;
use packing::Packing;
use state::State;
use watch::IndexWatch;

/// A durable change: one key's new version, or its deletion.
pub(crate) struct Change {
    pub key: Arc<str>,
    pub revision: Revision,
    pub current: Option<Arc<Entry>>,
}

pub(crate) struct Index {
    state: RwLock<State>,
    /// The newest revision whose changes are all in the logs. Watches read no further, so they never see part of one.
    published: AtomicU64,
    revisions: watch_channel::Sender<Revision>,
    /// Wakes the watches that span groups.
    any_change: Notify,
    closed: AtomicBool,
    packing: Mutex<Packing>,
}

impl Index {
    /// An index holding `entries` as they were at `revision`, with no history before `floor`.
    pub(crate) fn new(entries: Vec<Arc<Entry>>, revision: Revision, floor: Revision) -> Self {
        Self {
            state: RwLock::new(State::new(entries, revision, floor)),
            published: AtomicU64::new(revision),
            revisions: watch_channel::Sender::new(revision),
            any_change: Notify::new(),
            closed: AtomicBool::new(false),
            packing: Mutex::default(),
        }
    }

    /// Applies changes in revision order, after which the index is complete up to `revision`. Readers see them when this
    /// returns. The caller wakes the watches through the returned `Wake`, so that a backend can reply to its writers
    /// first.
    #[must_use = "watches sleep until they are woken"]
    pub(crate) fn apply(&self, changes: impl IntoIterator<Item = Change>, revision: Revision) -> Wake<'_> {
        let groups = {
            let mut state = self.state.write();
            let groups = state.apply(changes, revision);
            self.published.store(revision, Ordering::Release);
            groups
        };
        self.revisions.send_replace(revision);
        Wake { index: self, groups }
    }

    /// Replaces everything by the state at `revision` after an unknown gap; watches that are behind it are closed.
    pub(crate) fn reset(&self, entries: Vec<Arc<Entry>>, revision: Revision) {
        let groups = {
            let mut state = self.state.write();
            let groups = state.reset(entries, revision);
            self.published.store(revision, Ordering::Release);
            groups
        };
        self.revisions.send_replace(revision);
        Wake { index: self, groups }.wake();
    }

    pub(crate) fn compact(&self, revision: Revision) -> Result<(), Error> {
        // Freeing a long history takes time, so it happens after the lock is released.
        let dropped = self.state.write().compact(revision)?;
        drop(dropped);
        Ok(())
    }

    pub(crate) fn revision(&self) -> Revision {
        self.published.load(Ordering::Acquire)
    }

    pub(crate) fn floor(&self) -> Revision {
        self.state.read().floor
    }

    pub(crate) fn current_bytes(&self) -> usize {
        self.state.read().current_bytes
    }

    pub(crate) fn get(&self, key: &str) -> Option<Arc<Entry>> {
        self.state.read().current.get(key).cloned()
    }

    /// The version of a key written at a revision, if it is still in the history.
    pub(crate) fn version(&self, key: &str, revision: Revision) -> Option<Arc<Entry>> {
        self.state.read().version(key, revision)
    }

    /// The version of a key with this value that was written after a revision.
    pub(crate) fn written_after(&self, key: &str, value: &bytes::Bytes, after: Revision) -> Option<Arc<Entry>> {
        self.state.read().written_after(key, value, after)
    }

    /// The revision at which a version was deleted, if the deletion is still in the history.
    pub(crate) fn deletion(&self, key: &str, version: Revision) -> Option<Revision> {
        self.state.read().deletion(key, version)
    }

    pub(crate) fn range(&self, range: &Range<'_>) -> Result<Page, Error> {
        self.state.read().range(range)
    }

    pub(crate) fn count(&self, prefix: &str) -> usize {
        self.state.read().count(prefix)
    }

    pub(crate) fn weigh(&self, range: &Range<'_>, max_bytes: usize) -> usize {
        self.state.read().weigh(range, max_bytes)
    }

    pub(crate) fn history_within(&self, bytes: usize) -> Revision {
        self.state.read().history_within(bytes)
    }

    pub(crate) async fn reach(&self, revision: Revision, timeout: Duration) -> Result<(), Error> {
        if self.revision() >= revision {
            return Ok(());
        }
        let mut revisions = self.revisions.subscribe();
        let reached = tokio::time::timeout(timeout, revisions.wait_for(|newest| *newest >= revision)).await;
        match reached {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Error::Future { requested: revision, newest: self.revision() }),
        }
    }

    pub(crate) fn watch(self: &Arc<Self>, scope: Scope<'_>, after: Revision) -> Result<Box<dyn Watch>, Error> {
        let known = {
            let state = self.state.read();
            state.check_watchable(after)?;
            state.known_log(scope, after)
        };
        let log = match known {
            Some(log) => log,
            None => {
                let mut state = self.state.write();
                // It may have been compacted in between.
                state.check_watchable(after)?;
                state.log(scope, after)
            }
        };
        Ok(Box::new(IndexWatch::new(self.clone(), log, scope.prefix(), after)))
    }

    pub(crate) fn index_topics(&self, index: TopicIndex) {
        self.state.write().index_topics(index);
    }

    pub(crate) fn observe_changes(&self, observer: ChangeObserver) {
        self.state.write().observer = Some(observer);
    }

    /// Closes all watches once they have delivered what is pending.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let groups = self.state.read().groups();
        Wake { index: self, groups }.wake();
    }
}

/// The watches that a batch of changes concerns.
pub(crate) struct Wake<'a> {
    index: &'a Index,
    groups: Vec<Arc<Group>>,
}

impl Wake<'_> {
    pub(crate) fn wake(self) {
        for group in &self.groups {
            group.changed.notify_waiters();
        }
        self.index.any_change.notify_waiters();
    }
}

#[cfg(test)]
mod scope_tests;
#[cfg(test)]
mod tests;
