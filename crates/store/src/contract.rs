//! The contract that every backend fulfils: the `Store` trait and its types.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub use crate::entry::{Entry, Revision};

/// Which keys a range read returns.
#[derive(Clone, Debug, Default)]
pub struct Range<'a> {
    /// Only keys that start with this are returned.
    pub prefix: &'a str,
    /// Only keys after this one are returned: the last key of the previous page.
    pub after: Option<&'a str>,
    /// The maximum number of entries; 0 means all.
    pub limit: usize,
    /// The revision to read at; `None` means the newest.
    pub at: Option<Revision>,
    /// Only entries of this topic are needed (see [`TopicIndex`]); others may be returned, too.
    pub topic: Option<&'a str>,
}

impl<'a> Range<'a> {
    /// The range of one key; if it does not exist, of the next one that starts with it.
    pub fn key(key: &'a str) -> Range<'a> {
        Range { prefix: key, limit: 1, ..Range::default() }
    }
}

/// How entries of one group of keys are indexed by a topic, so that those of one topic are found without reading the
/// others, and a change wakes only the watches of its topic: for example, pods by their node.
#[derive(Clone, Copy, Debug)]
pub struct TopicIndex {
    /// The prefix of the group's keys, as in `/registry/pods/`.
    pub group: &'static str,
    /// The topic of a value; `None` if it is unknown, and then the entry belongs to all topics.
    pub topic_of: fn(&[u8]) -> Option<String>,
}

/// Which changes a watch delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// Those of all keys with this prefix.
    Prefix(&'a str),
    /// Those of this key; those of longer keys may be delivered, too.
    Key(&'a str),
    /// Those of keys with this prefix that have or had this topic (see [`TopicIndex`]); others may be delivered, too.
    Topic { prefix: &'a str, topic: &'a str },
    /// Those of keys with this prefix that change its topic, creations and deletions included; others may be delivered, too.
    Distinct(&'a str),
}

impl<'a> Scope<'a> {
    /// What all keys that it delivers start with.
    pub fn prefix(&self) -> &'a str {
        match self {
            Scope::Prefix(prefix) | Scope::Key(prefix) | Scope::Topic { prefix, .. } | Scope::Distinct(prefix) => {
                prefix
            }
        }
    }
}

/// The result of a range read.
#[derive(Debug)]
pub struct Page {
    /// The entries in key order, as they were at `revision`.
    pub entries: Vec<Arc<Entry>>,
    /// The revision that was read.
    pub revision: Revision,
    /// How many keys of the prefix come after the last entry.
    pub remaining: usize,
}

/// The change of one key at one revision.
#[derive(Clone, Debug)]
pub struct Event {
    /// The revision of the change.
    pub revision: Revision,
    /// The new version; `None` when the key was deleted.
    pub current: Option<Arc<Entry>>,
    /// The version before; `None` when the key was created.
    pub previous: Option<Arc<Entry>>,
}

/// A message from a watch.
#[derive(Clone, Debug)]
pub enum Notice {
    /// Changes in revision order, each exactly once; never empty.
    Events(Vec<Event>),
    /// Everything up to this revision has been delivered.
    Progress(Revision),
    /// The watch needs changes that have been compacted; it delivers nothing more.
    Compacted,
}

/// An open watch. Dropping it closes it.
#[async_trait]
pub trait Watch: Send {
    /// Waits for the next message. All pending changes come in one message, so that a slow reader catches up in few
    /// steps. `None` means that the store has closed.
    async fn next(&mut self) -> Option<Notice>;
    /// Requests a `Progress` once every change written before this call has been delivered.
    fn request_progress(&mut self);
}

/// Why an operation of the store failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The key to create exists.
    #[error("key {0} exists already")]
    Exists(Arc<str>),
    /// The key is not at the expected revision; `current` is its newest version, if any.
    #[error("key {key} is not at revision {expected}")]
    Conflict { key: Arc<str>, expected: Revision, current: Option<Arc<Entry>> },
    /// The requested revision is older than the kept history.
    #[error("revision {requested} has been compacted; the oldest kept is {oldest}")]
    Compacted { requested: Revision, oldest: Revision },
    /// The requested revision is newer than the newest one.
    #[error("revision {requested} has not happened yet; the newest is {newest}")]
    Future { requested: Revision, newest: Revision },
    /// The value exceeds the store's size limit; retrying cannot succeed.
    #[error("the value of key {key} is too large: {bytes} bytes, of at most {max}")]
    TooLarge { key: Arc<str>, bytes: usize, max: usize },
    /// The disk or the remote store failed. The write may or may not have happened.
    #[error("the store cannot write: {0}")]
    Unavailable(String),
    /// The store has no space for more data; deletions are still accepted.
    #[error("etcdserver: mvcc: database space exceeded")]
    SpaceExceeded,
    /// The stored data is inconsistent.
    #[error("the store is damaged: {0}")]
    Corrupt(String),
    /// The store cannot be opened: another process uses its directory, or its files cannot be read.
    #[error("the store cannot be opened: {0}")]
    Open(String),
}

/// What is called with the keys of changes.
pub type ChangeObserver = std::sync::Arc<dyn Fn(&str) + Send + Sync>;

/// Whether a store works, and how full it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStatus {
    /// Why it cannot make writes durable now.
    pub failure: Option<String>,
    /// Why it refuses writes that need more space, though it works.
    pub alarm: Option<String>,
    /// The size of the current data, if this process knows it.
    pub bytes: Option<u64>,
    /// The size up to which it accepts more data.
    pub quota: Option<u64>,
}

/// A revisioned key-value store. Writes are durable when they return; reads see every write that has returned.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The newest revision in this process's index; it may lag behind a remote store.
    fn revision(&self) -> Revision;

    /// The key's version in this process's index; never calls a remote store.
    fn peek(&self, key: &str) -> Option<Arc<Entry>>;

    /// Reads a range from this process's index; never calls a remote store.
    fn peek_range(&self, range: &Range<'_>) -> Result<Page, Error>;

    /// Waits for what a read of the range needs besides this process's index, such as keys of encrypted values, or until that
    /// has failed; the read then reports the failure. Immediate for a store that needs nothing.
    async fn prepare_read(&self, _range: &Range<'_>) {}

    /// How many keys in this process's index have the prefix.
    fn count(&self, prefix: &str) -> usize;

    /// The bytes of the newest values in a range, counted up to `max_bytes`: what a list of it costs. Reads only as much of
    /// this process's index as that takes.
    fn weigh(&self, range: &Range<'_>, max_bytes: usize) -> usize {
        let entries = self.peek_range(range).map(|page| page.entries).unwrap_or_default();
        entries.iter().map(|entry| entry.value_len()).sum::<usize>().min(max_bytes)
    }

    /// Waits until this process's index holds every write acknowledged anywhere before this call. Returns the index's
    /// revision. Immediate for an embedded store.
    async fn sync(&self) -> Result<Revision, Error>;

    /// Waits until this process's index has reached `revision`; fails with `Future` after `timeout`.
    async fn reach(&self, revision: Revision, timeout: Duration) -> Result<(), Error>;

    /// Creates a key that must not exist. With a `ttl` the store deletes it after that time.
    async fn create(&self, key: &str, value: Bytes, ttl: Option<Duration>) -> Result<Arc<Entry>, Error>;

    /// Replaces the version at revision `expected`.
    async fn update(
        &self,
        key: &str,
        value: Bytes,
        expected: Revision,
        ttl: Option<Duration>,
    ) -> Result<Arc<Entry>, Error>;

    /// Deletes the version at revision `expected` and returns the revision of the deletion.
    async fn delete(&self, key: &str, expected: Revision) -> Result<Revision, Error>;

    /// Watches a prefix: delivers every change after `after`, which must be neither compacted nor newer than this
    /// process's index (see `reach`).
    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, Error>;

    /// Watches a scope, like `watch`. Each change wakes only the watches whose scope it is in.
    fn watch_scope(&self, scope: Scope<'_>, after: Revision) -> Result<Box<dyn Watch>, Error> {
        self.watch(scope.prefix(), after)
    }

    /// Indexes the entries of a group by topic from now on. Without it, topics select nothing. There is one index per group.
    fn index_topics(&self, _index: TopicIndex) {}

    /// Calls the observer with the key of every change that reaches this process's index from now on. It must be quick.
    fn observe_changes(&self, _observer: ChangeObserver) {}

    /// Drops the history before `revision`; the newest version of each key stays.
    async fn compact(&self, revision: Revision) -> Result<(), Error>;

    /// Compresses in memory what was written before the last call, if the store is large. To be called every few seconds.
    async fn pack(&self) -> Result<(), Error>;

    /// The oldest revision since which the history uses at most `bytes` of memory: the revision to compact to when
    /// memory is short.
    fn history_within(&self, bytes: usize) -> Revision;

    /// Whether the store works, and how full it is.
    fn status(&self) -> StoreStatus;

    /// Waits until the store has failed for good, so that the process must end, and returns why.
    async fn failed(&self) -> String;

    /// Writes all current entries as one consistent, checksummed image, from which `restore` creates a new store.
    async fn snapshot(&self, image: &mut (dyn std::io::Write + Send)) -> Result<Revision, Error>;
}
