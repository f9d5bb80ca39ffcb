//! Deciding on writes before they are durable.
//!
//! A write is judged against the newest version of its key, durable or not, and takes the next revision at once, so that
//! the next one can build on it while the disk is busy. They become durable in order: when one fails, all that were
//! judged after it fail too.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::contract::{Entry, Error, Revision};
use crate::index::{Change, Index};

/// What an accepted write, or one refused because of a write that is not durable yet, waits for.
pub(super) type Durable = oneshot::Receiver<Result<(), Error>>;

pub(super) struct Pending {
    next: Revision,
    /// The newest version of each key that has a write under way; `None` is a deletion.
    latest: HashMap<Arc<str>, (Revision, Option<Arc<Entry>>)>,
    pub queue: VecDeque<Queued>,
    /// When entries end, soonest first. An item whose entry has changed since means nothing.
    expiring: BinaryHeap<Reverse<(u64, Arc<str>)>>,
    /// Why no write is taken any more.
    pub refusal: Option<String>,
    pub closing: bool,
}

pub(super) struct Queued {
    /// `None` only waits for what was queued before it.
    pub change: Option<Change>,
    /// `None` when nobody waits: an expiry.
    pub reply: Option<oneshot::Sender<Result<(), Error>>>,
}

/// What became of a write that was submitted.
pub(super) enum Verdict {
    Accepted(Durable),
    /// Refused for good.
    Refused(Error),
    /// Refused because of a version that is not durable yet: the answer must not be known before that is.
    RefusedAfter(Durable, Error),
}

impl Pending {
    pub(super) fn new(index: &Index, entries: impl IntoIterator<Item = Arc<Entry>>) -> Self {
        let expiring = entries.into_iter().filter(|entry| entry.expires > 0);
        Self {
            next: index.revision() + 1,
            latest: HashMap::new(),
            queue: VecDeque::new(),
            expiring: expiring.map(|entry| Reverse((entry.expires, entry.key.clone()))).collect(),
            refusal: None,
            closing: false,
        }
    }

    /// Judges a write: `decide` gets the newest version of the key and the revision the write would have, and answers
    /// the new version or `None` for a deletion.
    pub(super) fn submit(
        &mut self,
        index: &Index,
        key: &Arc<str>,
        decide: impl FnOnce(Option<&Arc<Entry>>, Revision) -> Result<Option<Arc<Entry>>, Error>,
    ) -> Verdict {
        if let Some(refusal) = &self.refusal {
            return Verdict::Refused(Error::Unavailable(refusal.clone()));
        }
        if self.closing {
            return Verdict::Refused(Error::Unavailable("the store is closing".to_owned()));
        }
        let unsynced = self.latest.get(key).map(|(_, entry)| entry.clone());
        let durable = if unsynced.is_none() { index.get(key) } else { None };
        let newest = unsynced.as_ref().map_or(durable.as_ref(), Option::as_ref);
        let (reply, waiting) = oneshot::channel();
        match decide(newest, self.next) {
            Ok(current) => {
                self.push(key.clone(), current, Some(reply));
                Verdict::Accepted(waiting)
            }
            Err(error) if unsynced.is_some() => {
                self.queue.push_back(Queued { change: None, reply: Some(reply) });
                Verdict::RefusedAfter(waiting, error)
            }
            Err(error) => Verdict::Refused(error),
        }
    }

    fn push(&mut self, key: Arc<str>, current: Option<Arc<Entry>>, reply: Option<oneshot::Sender<Result<(), Error>>>) {
        let revision = self.next;
        self.next += 1;
        if let Some(entry) = current.as_ref().filter(|entry| entry.expires > 0) {
            self.expiring.push(Reverse((entry.expires, key.clone())));
        }
        self.latest.insert(key.clone(), (revision, current.clone()));
        self.queue.push_back(Queued { change: Some(Change { key, revision, current }), reply });
    }

    /// Queues the deletion of what has ended by `now`.
    pub(super) fn expire(&mut self, index: &Index, now: u64) {
        if self.refusal.is_some() {
            return;
        }
        while let Some(Reverse((expires, key))) = self.expiring.peek().filter(|Reverse((expires, _))| *expires <= now) {
            let current = match self.latest.get(key) {
                Some((_, entry)) => entry.clone(),
                None => index.get(key),
            };
            let key = key.clone();
            let ended = current.is_some_and(|entry| entry.expires == *expires);
            self.expiring.pop();
            if ended {
                self.push(key, None, None);
            }
        }
    }

    pub(super) fn any_expiring(&self) -> bool {
        !self.expiring.is_empty()
    }

    /// Takes the next writes off the queue, in order, up to about `bytes` of values.
    pub(super) fn take_batch(&mut self, bytes: usize) -> Vec<Queued> {
        let mut size = 0;
        let mut count = 0;
        for queued in &self.queue {
            let change = queued.change.as_ref();
            size += change.and_then(|change| change.current.as_ref()).map_or(0, |entry| entry.bytes());
            if count > 0 && size > bytes {
                break;
            }
            count += 1;
        }
        self.queue.drain(..count).collect()
    }

    /// Notes that everything up to `revision` is durable and in the index.
    pub(super) fn settle<'a>(&mut self, keys: impl IntoIterator<Item = &'a Arc<str>>, revision: Revision) {
        for key in keys {
            if self.latest.get(key).is_some_and(|(latest, _)| *latest <= revision) {
                self.latest.remove(key);
            }
        }
    }

    /// Drops all writes under way, so that what is pending is again what the index holds.
    pub(super) fn fail(&mut self, index: &Index, mut failed: Vec<Queued>, message: &str) {
        failed.extend(self.queue.drain(..));
        self.latest.clear();
        self.next = index.revision() + 1;
        for Queued { change, reply } in failed {
            match (reply, change) {
                // The caller may be gone: then nobody needs to know.
                (Some(reply), _) => drop(reply.send(Err(Error::Unavailable(message.to_owned())))),
                (None, Some(change)) => self.expire_later(index, change.key),
                (None, None) => {}
            }
        }
    }

    /// An expiry that did not become durable is due again.
    fn expire_later(&mut self, index: &Index, key: Arc<str>) {
        if let Some(entry) = index.get(&key).filter(|entry| entry.expires > 0) {
            self.expiring.push(Reverse((entry.expires, key)));
        }
    }
}
