//! Accepts or refuses writes before they are durable.
//!
//! A write is checked against the newest version of its key, durable or not, and gets the next revision at once, so that
//! the next write can build on it while the disk is busy. Writes become durable in order: when one fails, all that were
//! accepted after it fail too.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::space::{Space, Write};
use crate::contract::{Entry, Error, Revision};
use crate::index::{Change, Index};

/// How long an update that can be deferred waits for others.
const MAX_DEFERRAL: Duration = Duration::from_millis(20);

/// Resolves when the write, or the write that caused a refusal, is durable.
pub(super) type Durable = oneshot::Receiver<Result<(), Error>>;

pub(super) struct Pending {
    next: Revision,
    /// The newest version of each key that has a write in progress; `None` is a deletion.
    latest: HashMap<Arc<str>, (Revision, Option<Arc<Entry>>)>,
    queue: VecDeque<Queued>,
    /// When the queue has to be written; `None` if it is empty.
    due: Option<Instant>,
    deferrable: Option<&'static str>,
    /// When the newest version of each key expires, soonest first: one item for each, however often it is written. What a
    /// failed write leaves here is ignored.
    expiring: BTreeSet<(u64, Arc<str>)>,
    /// Why the store accepts no more writes.
    pub refusal: Option<String>,
    /// Why the last write failed, if it did.
    pub last_failure: Option<String>,
    pub space: Space,
    pub closing: bool,
}

pub(super) struct Queued {
    /// `None` only waits for the writes queued before it.
    pub change: Option<Change>,
    /// `None` for an expiry, which has no caller.
    pub reply: Option<oneshot::Sender<Result<(), Error>>>,
}

/// The decision on a submitted write.
pub(super) enum Decision {
    Accepted(Durable),
    /// Refused for good.
    Refused(Error),
    /// Refused because of a version that is not durable yet: the caller must not learn of it before it is.
    RefusedAfter(Durable, Error),
}

fn size_change(old: Option<usize>, current: Option<&Arc<Entry>>) -> Write {
    match (old, current) {
        (_, None) => Write::Delete,
        (None, Some(entry)) => Write::Create { bytes: entry.bytes() },
        (Some(old), Some(entry)) => Write::Update { old, new: entry.bytes() },
    }
}

/// At least what the record of a change takes in the log.
fn written_bytes(change: &Change) -> usize {
    change.current.as_ref().map_or(size_of::<Change>() + change.key.len(), |entry| entry.bytes())
}

impl Pending {
    pub(super) fn new(
        index: &Index,
        entries: impl IntoIterator<Item = Arc<Entry>>,
        quota: u64,
        deferrable: Option<&'static str>,
    ) -> Self {
        Self {
            next: index.revision() + 1,
            latest: HashMap::new(),
            queue: VecDeque::new(),
            due: None,
            deferrable,
            expiring: entries.into_iter().filter_map(|entry| expiry(&entry)).collect(),
            refusal: None,
            last_failure: None,
            space: Space { quota, used: index.current_bytes() as u64, refused: 0, full_disk: None },
            closing: false,
        }
    }

    /// Checks and queues a write: `decide` gets the newest version of the key and the revision the write would have, and
    /// returns the new version or `None` for a deletion.
    pub(super) fn submit(
        &mut self,
        index: &Index,
        key: &Arc<str>,
        decide: impl FnOnce(Option<&Arc<Entry>>, Revision) -> Result<Option<Arc<Entry>>, Error>,
    ) -> Decision {
        if let Some(refusal) = &self.refusal {
            return Decision::Refused(Error::Unavailable(refusal.clone()));
        }
        if self.closing {
            return Decision::Refused(Error::Unavailable("the store is closing".to_owned()));
        }
        let unsynced = self.latest.get(key).map(|(_, entry)| entry.clone());
        let durable = if unsynced.is_none() { index.get(key) } else { None };
        let newest = unsynced.as_ref().map_or(durable.as_ref(), Option::as_ref);
        let (reply, waiting) = oneshot::channel();
        match decide(newest, self.next) {
            Ok(current) => {
                let change = size_change(newest.map(|entry| entry.bytes()), current.as_ref());
                if !self.space.allows(change) {
                    self.space.refuse(change);
                    return Decision::Refused(Error::SpaceExceeded);
                }
                self.push(key.clone(), newest, current, Some(reply));
                Decision::Accepted(waiting)
            }
            Err(error) if unsynced.is_some() => {
                self.enqueue(Queued { change: None, reply: Some(reply) }, Duration::ZERO);
                Decision::RefusedAfter(waiting, error)
            }
            Err(error) => Decision::Refused(error),
        }
    }

    fn push(
        &mut self,
        key: Arc<str>,
        old: Option<&Arc<Entry>>,
        current: Option<Arc<Entry>>,
        reply: Option<oneshot::Sender<Result<(), Error>>>,
    ) {
        let bytes = |entry: &Arc<Entry>| entry.bytes();
        self.space.add(old.map_or(0, bytes), current.as_ref().map_or(0, bytes));
        let revision = self.next;
        self.next += 1;
        if let Some(replaced) = old.and_then(|entry| expiry(entry)) {
            self.expiring.remove(&replaced);
        }
        self.expiring.extend(current.as_ref().and_then(|entry| expiry(entry)));
        self.latest.insert(key.clone(), (revision, current.clone()));
        let is_update = old.is_some() && current.is_some();
        let can_wait = is_update && self.deferrable.is_some_and(|prefix| key.starts_with(prefix));
        let deferral = if can_wait { MAX_DEFERRAL } else { Duration::ZERO };
        self.enqueue(Queued { change: Some(Change { key, revision, current }), reply }, deferral);
    }

    fn enqueue(&mut self, queued: Queued, deferral: Duration) {
        let due = Instant::now() + deferral;
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
        self.queue.push_back(queued);
    }

    /// How many writes are not durable yet.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// How long the queue can still wait for more writes; `None` if it is empty.
    pub(super) fn deferral(&self) -> Option<Duration> {
        let deferral = self.due?.saturating_duration_since(Instant::now());
        Some(if self.closing { Duration::ZERO } else { deferral })
    }

    /// Queues the deletion of entries that have expired by `now`.
    pub(super) fn expire(&mut self, index: &Index, now: u64) {
        if self.refusal.is_some() {
            return;
        }
        while self.expiring.first().is_some_and(|(expires, _)| *expires <= now) {
            let Some((expires, key)) = self.expiring.pop_first() else { return };
            let current = match self.latest.get(&key) {
                Some((_, entry)) => entry.clone(),
                None => index.get(&key),
            };
            if let Some(entry) = current.filter(|entry| entry.expires == expires) {
                self.push(key, Some(&entry), None, None);
            }
        }
    }

    pub(super) fn any_expiring(&self) -> bool {
        !self.expiring.is_empty()
    }

    /// Removes the next writes from the queue, in order, up to about `bytes` of what is written for them. Deletions count,
    /// too: hours of entries may expire at once, and a frame that is too long cannot be read again.
    pub(super) fn next_batch(&mut self, bytes: usize) -> Vec<Queued> {
        let mut size = 0;
        let mut count = 0;
        for queued in &self.queue {
            size += queued.change.as_ref().map_or(0, written_bytes);
            if count > 0 && size > bytes {
                break;
            }
            count += 1;
        }
        let batch = self.queue.drain(..count).collect();
        self.due = if self.queue.is_empty() { None } else { self.due };
        batch
    }

    /// Records that everything up to `revision` is durable and in the index.
    pub(super) fn mark_durable<'a>(&mut self, keys: impl IntoIterator<Item = &'a Arc<str>>, revision: Revision) {
        for key in keys {
            if self.latest.get(key).is_some_and(|(latest, _)| *latest <= revision) {
                self.latest.remove(key);
            }
        }
    }

    /// Fails all writes in progress; the pending state is again that of the index.
    pub(super) fn fail(&mut self, index: &Index, mut failed: Vec<Queued>, message: &str) {
        failed.extend(self.queue.drain(..));
        self.due = None;
        self.latest.clear();
        self.next = index.revision() + 1;
        self.space.used = index.current_bytes() as u64;
        self.last_failure = Some(message.to_owned());
        for Queued { change, reply } in failed {
            // What would have been replaced expires as before; an expiry is tried again.
            let kept = change.and_then(|change| index.get(&change.key));
            self.expiring.extend(kept.and_then(|entry| expiry(&entry)));
            if let Some(reply) = reply {
                // Fails only when the caller has gone away.
                drop(reply.send(Err(Error::Unavailable(message.to_owned()))));
            }
        }
    }
}

/// When an entry expires, if it does, and its key, which the item shares with the entry.
fn expiry(entry: &Entry) -> Option<(u64, Arc<str>)> {
    (entry.expires > 0).then(|| (entry.expires, entry.key.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    /// Queues a version of a key.
    fn write(pending: &mut Pending, index: &Index, key: &str) {
        let key: Arc<str> = key.into();
        let decide = |_: Option<&Arc<Entry>>, revision| {
            Ok(Some(Arc::new(Entry::new(key.clone(), Bytes::from_static(b"v"), revision, revision))))
        };
        assert!(matches!(pending.submit(index, &key, decide), Decision::Accepted(_)));
    }

    #[test]
    fn only_updates_of_deferrable_keys_wait_and_no_other_write_waits_for_them() {
        let entry = |key: &str| Arc::new(Entry::new(key.into(), Bytes::from_static(b"v"), 1, 1));
        let index = Index::new(vec![entry("/r/leases/a"), entry("/r/leases/b"), entry("/r/pods/a")], 1, 1);
        let empty = || Pending::new(&index, [], u64::MAX, Some("/r/leases/"));
        for (key, waits) in [("/r/leases/a", true), ("/r/leases/new", false), ("/r/pods/a", false)] {
            let (mut pending, before) = (empty(), Instant::now());
            assert_eq!(pending.deferral(), None);
            write(&mut pending, &index, key);
            let (due, after) = (pending.due.unwrap(), Instant::now());
            assert!(if waits { due >= before + MAX_DEFERRAL } else { due <= after }, "{key}");
        }
        let mut pending = empty();
        write(&mut pending, &index, "/r/leases/a");
        let first = pending.due.unwrap();
        write(&mut pending, &index, "/r/leases/b");
        assert_eq!(pending.due, Some(first), "a later one does not prolong it");
        write(&mut pending, &index, "/r/pods/a");
        assert_eq!(pending.deferral(), Some(Duration::ZERO), "all are due with one that does not wait");
        assert_eq!((pending.next_batch(usize::MAX).len(), pending.deferral()), (3, None));
        write(&mut pending, &index, "/r/leases/b");
        pending.closing = true;
        assert_eq!(pending.deferral(), Some(Duration::ZERO), "a store that closes waits for nothing");
    }

    #[test]
    fn a_batch_is_as_long_as_its_records_whether_they_write_or_delete() {
        let entry = |number: usize| {
            let key = format!("/r/events/{number:0300}").into();
            Arc::new(Entry::new(key, Bytes::new(), 1, 1).expiring(1))
        };
        let entries: Vec<Arc<Entry>> = (0..100).map(entry).collect();
        let index = Index::new(entries.clone(), 1, 1);
        let mut pending = Pending::new(&index, entries, u64::MAX, None);
        // The server was down for as long as they live.
        pending.expire(&index, 2);
        let (mut batches, mut buffer) = (0, Vec::new());
        while pending.waiting() > 0 {
            let batch = pending.next_batch(4096);
            buffer.clear();
            batch
                .iter()
                .for_each(|queued| super::super::record::encode_change(queued.change.as_ref().unwrap(), &mut buffer));
            assert!(buffer.len() <= 4096, "{} bytes of {} deletions", buffer.len(), batch.len());
            batches += 1;
        }
        assert!(batches > 7, "{batches}");
    }

    #[test]
    fn an_entry_that_is_written_often_is_scheduled_once() {
        let key: Arc<str> = "/r/events/a".into();
        let version = |expires, revision| {
            Arc::new(Entry::new(key.clone(), Bytes::from_static(b"v"), 1, revision).expiring(expires))
        };
        let index = Index::new(vec![version(100, 1)], 1, 1);
        let mut pending = Pending::new(&index, [version(100, 1)], u64::MAX, None);
        for number in 1..1000 {
            let decide = |_: Option<&Arc<Entry>>, revision| Ok(Some(version(100 + number, revision)));
            assert!(matches!(pending.submit(&index, &key, decide), Decision::Accepted(_)));
        }
        assert_eq!(pending.expiring.len(), 1);
        pending.expire(&index, 1098);
        assert_eq!(pending.waiting(), 999, "the newest version has not expired");
        // None of it became durable: the first version expires when it would have.
        pending.fail(&index, Vec::new(), "the disk failed");
        pending.expire(&index, 99);
        assert_eq!(pending.waiting(), 0);
        pending.expire(&index, 100);
        assert_eq!(pending.waiting(), 1);
        let delete = |_: Option<&Arc<Entry>>, _| Ok(None);
        assert!(matches!(pending.submit(&index, &key, delete), Decision::Accepted(_)));
        pending.expire(&index, u64::MAX);
        assert_eq!((pending.waiting(), pending.any_expiring()), (2, false));
    }
}
