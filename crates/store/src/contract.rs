//! The contract every backend keeps: what callers may rely on, and nothing about how it is done.

use std::any::Any;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

/// A point in the store's history. Each write takes the next one; 0 means "no such version".
pub type Revision = u64;

/// One version of one key, shared by every reader. It never changes after it was stored.
pub struct Entry {
    pub key: Arc<str>,
    pub value: Bytes,
    /// The revision that brought the key into being.
    pub created: Revision,
    /// The revision that wrote this version.
    pub revision: Revision,
    /// When the entry ends by itself, in milliseconds since 1970; 0 means never.
    pub(crate) expires: u64,
    /// What a reader has derived from `value`, kept so that it is derived once for all of them.
    memo: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Entry {
    pub fn new(key: Arc<str>, value: Bytes, created: Revision, revision: Revision) -> Self {
        Self { key, value, created, revision, expires: 0, memo: OnceLock::new() }
    }

    pub(crate) fn expiring(self, expires: u64) -> Self {
        Self { expires, ..self }
    }

    /// What the entry costs: its bytes, without what readers derived from them.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.key.len() + self.value.len()
    }

    /// What `derive` makes of the value, computed by the first caller only. All callers must agree on the type: an
    /// entry already holding another type answers `None`.
    pub fn memo<T: Any + Send + Sync>(&self, derive: impl FnOnce(&Bytes) -> T) -> Option<&T> {
        self.memo.get_or_init(|| Box::new(derive(&self.value))).downcast_ref()
    }
}

impl std::fmt::Debug for Entry {
    /// Leaves the value out: it may hold a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("key", &self.key)
            .field("created", &self.created)
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}

/// Which keys a range read returns.
#[derive(Clone, Debug, Default)]
pub struct Range<'a> {
    pub prefix: &'a str,
    /// Keys at or before this one are left out: where the page before this one ended.
    pub after: Option<&'a str>,
    /// 0 means all.
    pub limit: usize,
    /// `None` means the newest state.
    pub at: Option<Revision>,
}

/// The answer to a range read: entries in key order, all as they were at `revision`.
#[derive(Debug)]
pub struct Page {
    pub entries: Vec<Arc<Entry>>,
    pub revision: Revision,
    /// How many keys of the prefix follow the last entry.
    pub remaining: usize,
}

/// What happened to one key at one revision.
#[derive(Clone, Debug)]
pub struct Event {
    pub revision: Revision,
    /// The new version; `None` when the key was deleted.
    pub current: Option<Arc<Entry>>,
    /// The version before; `None` when the key was created.
    pub previous: Option<Arc<Entry>>,
}

/// What a watch delivers.
#[derive(Clone, Debug)]
pub enum Notice {
    /// Changes in revision order, none missed and none twice; never empty.
    Events(Vec<Event>),
    /// Everything up to this revision has been delivered.
    Progress(Revision),
    /// The watch fell further behind than the store remembers; it delivers nothing more.
    Compacted,
}

/// An open watch. Dropping it ends it.
#[async_trait]
pub trait Watch: Send {
    /// Waits for what comes next. Everything already there is handed over at once, so that a slow reader catches up in
    /// few steps. `None` means that the store has closed.
    async fn next(&mut self) -> Option<Notice>;
    /// Asks for a `Progress` as soon as all that was written before this call has been delivered.
    fn request_progress(&mut self);
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("key {0} exists already")]
    Exists(Arc<str>),
    /// The key's revision is not the expected one; `current` is what is there, if anything.
    #[error("key {key} is not at revision {expected}")]
    Conflict { key: Arc<str>, expected: Revision, current: Option<Arc<Entry>> },
    #[error("revision {requested} has been compacted; the oldest kept is {oldest}")]
    Compacted { requested: Revision, oldest: Revision },
    #[error("revision {requested} has not happened yet; the newest is {newest}")]
    Future { requested: Revision, newest: Revision },
    /// The value is more than the store can take, now and later.
    #[error("the value of key {key} is too large: {bytes} bytes, of at most {most}")]
    TooLarge { key: Arc<str>, bytes: usize, most: usize },
    /// The disk or the remote store did not take the write. Whether it happened is unknown to the caller.
    #[error("the store cannot write: {0}")]
    Unavailable(String),
    #[error("the store is damaged: {0}")]
    Corrupt(String),
    /// The store cannot be used at all: its directory is another process's, or its files cannot be read.
    #[error("the store cannot be opened: {0}")]
    Open(String),
}

/// A revisioned key-value store. Writes are durable when they return; reads see every write that has returned.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The newest revision this process knows of; it may lag behind a remote store.
    fn revision(&self) -> Revision;

    /// The version this process knows of, without asking a remote store.
    fn peek(&self, key: &str) -> Option<Arc<Entry>>;

    /// Like `range`, on what this process knows, without asking a remote store.
    fn peek_range(&self, range: &Range<'_>) -> Result<Page, Error>;

    /// How many keys have the prefix, on what this process knows.
    fn count(&self, prefix: &str) -> usize;

    /// Waits until what this process knows includes every write acknowledged anywhere before this call, and answers the
    /// revision it then knows. Immediate for an embedded store.
    async fn sync(&self) -> Result<Revision, Error>;

    /// Waits until this process knows `revision`. Fails with `Future` when it has not happened within `patience`.
    async fn reach(&self, revision: Revision, patience: Duration) -> Result<(), Error>;

    async fn create(&self, key: &str, value: Bytes, ttl: Option<Duration>) -> Result<Arc<Entry>, Error>;

    /// Replaces the version at `expected`.
    async fn update(
        &self,
        key: &str,
        value: Bytes,
        expected: Revision,
        ttl: Option<Duration>,
    ) -> Result<Arc<Entry>, Error>;

    /// Deletes the version at `expected` and answers the revision of the deletion.
    async fn delete(&self, key: &str, expected: Revision) -> Result<Revision, Error>;

    /// Watches a prefix: every change after `after`, which must be neither older than what is kept nor newer than what
    /// this process knows (see `reach`).
    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, Error>;

    /// Forgets history before `revision`; the newest version of each key stays.
    async fn compact(&self, revision: Revision) -> Result<(), Error>;

    /// The oldest revision from which on the history takes no more than `bytes` of memory: what to compact to when
    /// memory is short.
    fn history_within(&self, bytes: usize) -> Revision;

    /// All current entries in one consistent, checksummed image from which `restore` makes a new store.
    async fn snapshot(&self, image: &mut (dyn std::io::Write + Send)) -> Result<Revision, Error>;
}
