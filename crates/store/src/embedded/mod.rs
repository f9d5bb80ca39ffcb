//! The embedded backend: an append-only log on the local disk behind the in-memory index.
//!
//! A write is checked in memory (`pending`), queued, made durable together with all other queued writes (`writer`, `log`),
//! and only then visible to readers and watches. A checkpoint replaces the oldest segments of the log by an image of the
//! state at the compaction floor (`checkpoint`). Opening a directory reads the image and the log (`replay`, `recovery`).

mod checkpoint;
pub mod disk;
mod frame;
mod image;
mod log;
mod maintenance;
mod metrics;
mod pending;
mod record;
mod recovery;
mod replay;
mod snapshot;
mod space;
mod unsynced;
mod writer;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use knarr_supervisor::panic_message;
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use crate::clock::{Clock, SystemClock};
use crate::contract::{
    ChangeObserver, Entry, Error, Page, Range, Revision, Scope, Store, StoreStatus, TopicIndex, Watch,
};
use crate::index::Index;
use disk::{Disk, RealDisk, describe};
use log::{LOCK_NAME, Segment};
pub use maintenance::{CheckReport, check, compact, repair};
use pending::{Decision, Pending};
pub use snapshot::{export, restore};
pub(crate) use snapshot::{read_snapshot, save};
use space::{FullDisk, Reserve};
pub use unsynced::UnsyncedDisk;
use writer::Writer;

/// The maximum size of a value; a frame of the log can hold it.
const MAX_VALUE_BYTES: usize = 32 << 20;

/// Options of an embedded store. The defaults set no limits to its space.
#[derive(Clone)]
pub struct Options {
    /// The size at which a new log segment is started.
    pub segment_bytes: u64,
    /// The size of all current entries up to which more are accepted.
    pub quota_bytes: u64,
    /// Disk space that is kept for deletions on a full disk.
    pub reserve_bytes: u64,
    /// The clock by which entries expire.
    pub clock: Arc<dyn Clock>,
    /// The file system the store writes to.
    pub disk: Arc<dyn Disk>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 16 << 20,
            quota_bytes: u64::MAX,
            reserve_bytes: 0,
            clock: Arc::new(SystemClock),
            disk: Arc::new(RealDisk),
        }
    }
}

/// A store in a directory of the local disk.
pub struct Embedded {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
    checkpoints: Option<mpsc::Sender<()>>,
    checkpointer: Option<JoinHandle<()>>,
    /// Keeps other processes out; released last.
    _lock: Box<dyn Send + Sync>,
}

/// State shared by callers, the writer and the checkpointer. Lock order: `pending`, then the index.
struct Shared {
    index: Arc<Index>,
    pending: Mutex<Pending>,
    /// Wakes the writer.
    work: Condvar,
    /// The log's segments in order; the last one is being written.
    segments: Mutex<Vec<Segment>>,
    directory: PathBuf,
    segment_bytes: u64,
    clock: Arc<dyn Clock>,
    disk: Arc<dyn Disk>,
    reserve: Reserve,
    /// Why the store accepts no more writes.
    failure: watch::Sender<Option<String>>,
}

impl Embedded {
    /// Opens the store in `directory`, creating it if necessary.
    pub fn open(directory: &Path, options: Options) -> Result<Self, Error> {
        let Options { segment_bytes, quota_bytes, reserve_bytes, clock, disk } = options;
        disk.make_directory(directory).map_err(|error| Error::Open(describe("creating", directory, &error)))?;
        let lock = disk.lock(&directory.join(LOCK_NAME)).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => {
                Error::Open(format!("{} is in use by another process", directory.display()))
            }
            _ => Error::Open(describe("locking", directory, &error)),
        })?;
        let started = Instant::now();
        let reserve = Reserve { disk: disk.clone(), directory: directory.to_owned(), bytes: reserve_bytes };
        let recovered = match recovery::recover(&disk, directory) {
            // Opening may need a little space.
            Err(_) if reserve.release() => recovery::recover(&disk, directory)?,
            recovered => recovered?,
        };
        let index = Arc::new(recovered.index);
        let entries = index.range(&Range::default())?.entries;
        tracing::info!(revision = index.revision(), entries = entries.len(), took = ?started.elapsed(), "opened the store");
        let shared = Arc::new(Shared {
            pending: Mutex::new(Pending::new(&index, entries, quota_bytes)),
            index,
            work: Condvar::new(),
            segments: Mutex::new(recovered.segments),
            directory: directory.to_owned(),
            segment_bytes,
            clock,
            disk,
            reserve,
            failure: watch::Sender::new(None),
        });
        knarr_metrics::register(metrics::FAMILIES);
        metrics::HAS_LEADER.set(&[], 1.0);
        shared.measure();
        shared.allocate_reserve();
        let now = Instant::now();
        let writer = Writer { shared: shared.clone(), log: recovered.writer, last_expiry: now, last_allocation: now };
        let (checkpoints, requests) = mpsc::channel();
        let checkpointer = {
            let shared = shared.clone();
            spawn("store-checkpoint", move || requests.into_iter().for_each(|()| shared.try_checkpoint()))?
        };
        let writer = {
            let shared = shared.clone();
            spawn("store-writer", move || {
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| writer.run())) {
                    shared.stop_writes(format!("the writer panicked: {}", panic_message(&*panic)));
                }
            })?
        };
        Ok(Self {
            shared,
            writer: Some(writer),
            checkpoints: Some(checkpoints),
            checkpointer: Some(checkpointer),
            _lock: lock,
        })
    }

    /// Deletes expired entries now instead of at the next periodic run.
    pub fn expire(&self) {
        self.shared.pending.lock().expire(&self.shared.index, self.shared.clock.now());
        self.shared.work.notify_one();
    }

    fn expiry(&self, ttl: Option<Duration>) -> u64 {
        ttl.map_or(0, |ttl| self.shared.clock.now() + ttl.as_millis() as u64)
    }

    async fn submit(
        &self,
        key: &Arc<str>,
        decide: impl FnOnce(Option<&Arc<Entry>>, Revision) -> Result<Option<Arc<Entry>>, Error>,
    ) -> Result<(), Error> {
        let decision = self.shared.pending.lock().submit(&self.shared.index, key, decide);
        let (durable, refusal) = match decision {
            Decision::Accepted(durable) => (durable, None),
            Decision::Refused(error) => return Err(error),
            Decision::RefusedAfter(durable, error) => (durable, Some(error)),
        };
        self.shared.work.notify_one();
        let closed = |_| Error::Unavailable("the store has closed".to_owned());
        durable.await.map_err(closed)??;
        refusal.map_or(Ok(()), Err)
    }
}

/// Copies a value into its own memory, so that it does not keep a larger buffer alive.
fn copy_value(key: &Arc<str>, value: &Bytes) -> Result<Bytes, Error> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(Error::TooLarge { key: key.clone(), bytes: value.len(), max: MAX_VALUE_BYTES });
    }
    Ok(Bytes::copy_from_slice(value))
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map_err(|error| Error::Open(format!("starting a thread: {error}")))
}

impl Shared {
    /// Updates the metrics of what there is now.
    fn measure(&self) {
        let (used, waiting) = {
            let pending = self.pending.lock();
            (pending.space.used, pending.queue.len())
        };
        let files = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let bytes: u64 = files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum();
        metrics::FILE_BYTES.set(&[], bytes as f64);
        metrics::USED_BYTES.set(&[], used as f64);
        metrics::PENDING.set(&[], waiting as f64);
    }

    /// A disk without space for the reserve is full.
    fn allocate_reserve(&self) {
        if let Err(error) = self.reserve.allocate() {
            let message = describe("reserving space in", &self.directory, &error);
            tracing::error!(reason = message, "the store accepts only deletions until there is space");
            let full = FullDisk { message, reserve: 0, written: 0 };
            self.pending.lock().space.full_disk = Some(full);
        }
    }

    /// Fails all writes in progress and refuses all others, because nobody makes them durable any more.
    fn stop_writes(&self, reason: String) {
        let mut pending = self.pending.lock();
        pending.refusal = Some(reason.clone());
        metrics::HAS_LEADER.set(&[], 0.0);
        pending.fail(&self.index, Vec::new(), &reason);
        drop(pending);
        self.failure.send_replace(Some(reason));
    }

    /// Without checkpoints the log only stays long.
    fn try_checkpoint(&self) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.checkpoint())) {
            tracing::error!(reason = panic_message(&*panic), "a checkpoint panicked; the log stays as it is");
        }
    }

    fn checkpoint_is_due(&self) -> bool {
        let replaceable = checkpoint::replaceable(&self.segments.lock(), self.index.floor());
        checkpoint::worthwhile(replaceable, self.segment_bytes, self.index.current_bytes())
    }

    fn checkpoint(&self) {
        if !self.checkpoint_is_due() {
            return;
        }
        match checkpoint::checkpoint(&self.disk, &self.directory, &self.index) {
            Ok(revision) => {
                let mut segments = self.segments.lock();
                let covered = segments.iter().skip(1).take_while(|next| next.first <= revision + 1).count();
                segments.drain(..covered);
            }
            Err(error) => tracing::warn!(%error, "writing the checkpoint failed; the log stays as it is"),
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.shared.pending.lock().closing = true;
        self.shared.work.notify_one();
        self.checkpoints.take();
        for thread in [self.writer.take(), self.checkpointer.take()].into_iter().flatten() {
            if thread.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        }
        self.shared.index.close();
    }
}

#[async_trait]
impl Store for Embedded {
    fn revision(&self) -> Revision {
        self.shared.index.revision()
    }

    fn peek(&self, key: &str) -> Option<Arc<Entry>> {
        self.shared.index.get(key)
    }

    fn peek_range(&self, range: &Range<'_>) -> Result<Page, Error> {
        self.shared.index.range(range)
    }

    fn count(&self, prefix: &str) -> usize {
        self.shared.index.count(prefix)
    }

    fn weigh(&self, range: &Range<'_>, max_bytes: usize) -> usize {
        self.shared.index.weigh(range, max_bytes)
    }

    async fn sync(&self) -> Result<Revision, Error> {
        Ok(self.shared.index.revision())
    }

    async fn reach(&self, revision: Revision, timeout: Duration) -> Result<(), Error> {
        self.shared.index.reach(revision, timeout).await
    }

    async fn create(&self, key: &str, value: Bytes, ttl: Option<Duration>) -> Result<Arc<Entry>, Error> {
        let (key, expires) = (Arc::<str>::from(key), self.expiry(ttl));
        let value = copy_value(&key, &value)?;
        let mut created = None;
        self.submit(&key, |existing, revision| match existing {
            Some(existing) => Err(Error::Exists(existing.key.clone())),
            None => {
                let entry = Arc::new(Entry::new(key.clone(), value, revision, revision).expiring(expires));
                created = Some(entry.clone());
                Ok(Some(entry))
            }
        })
        .await?;
        created.ok_or_else(|| Error::Exists(key))
    }

    async fn update(
        &self,
        key: &str,
        value: Bytes,
        expected: Revision,
        ttl: Option<Duration>,
    ) -> Result<Arc<Entry>, Error> {
        let (key, expires) = (Arc::<str>::from(key), self.expiry(ttl));
        let value = copy_value(&key, &value)?;
        let mut updated = None;
        self.submit(&key, |existing, revision| {
            let existing = at_revision(&key, existing, expected)?;
            let entry = Entry::new(existing.key.clone(), value, existing.created, revision).expiring(expires);
            let entry = Arc::new(entry);
            updated = Some(entry.clone());
            Ok(Some(entry))
        })
        .await?;
        updated.ok_or(Error::Conflict { key, expected, current: None })
    }

    async fn delete(&self, key: &str, expected: Revision) -> Result<Revision, Error> {
        let key = Arc::<str>::from(key);
        let mut deleted = 0;
        self.submit(&key, |existing, revision| {
            at_revision(&key, existing, expected)?;
            deleted = revision;
            Ok(None)
        })
        .await?;
        Ok(deleted)
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, Error> {
        self.shared.index.watch(Scope::Prefix(prefix), after)
    }

    fn watch_scope(&self, scope: Scope<'_>, after: Revision) -> Result<Box<dyn Watch>, Error> {
        self.shared.index.watch(scope, after)
    }

    fn index_topics(&self, index: TopicIndex) {
        self.shared.index.index_topics(index);
    }

    fn observe_changes(&self, observer: ChangeObserver) {
        self.shared.index.observe_changes(observer);
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        self.shared.index.compact(revision)?;
        if let Some(checkpoints) = self.checkpoints.as_ref().filter(|_| self.shared.checkpoint_is_due()) {
            // Fails only when the checkpointer has exited; then the log just stays long.
            checkpoints.send(()).unwrap_or_default();
        }
        Ok(())
    }

    fn history_within(&self, bytes: usize) -> Revision {
        self.shared.index.history_within(bytes)
    }

    fn status(&self) -> StoreStatus {
        self.shared.measure();
        let pending = self.shared.pending.lock();
        let full_disk = pending.space.full_disk.as_ref().map(|full| full.message.clone());
        StoreStatus {
            failure: pending.refusal.clone().or(full_disk).or_else(|| pending.last_failure.clone()),
            alarm: pending.space.alarm(),
            bytes: Some(pending.space.used),
            quota: (pending.space.quota < u64::MAX).then_some(pending.space.quota),
        }
    }

    async fn failed(&self) -> String {
        let mut failure = self.shared.failure.subscribe();
        let failed = failure.wait_for(Option::is_some).await;
        match failed.map(|failure| failure.clone()) {
            Ok(Some(reason)) => reason,
            // The sender lives in `self`.
            _ => std::future::pending().await,
        }
    }

    async fn snapshot(&self, image: &mut (dyn std::io::Write + Send)) -> Result<Revision, Error> {
        save(&self.shared.index.range(&Range::default())?, image)
    }
}

/// The entry, if it is the expected version.
fn at_revision<'a>(
    key: &Arc<str>,
    existing: Option<&'a Arc<Entry>>,
    expected: Revision,
) -> Result<&'a Arc<Entry>, Error> {
    existing.filter(|entry| entry.revision == expected).ok_or_else(|| Error::Conflict {
        key: key.clone(),
        expected,
        current: existing.cloned(),
    })
}

/// The parsers of the on-disk format, for fuzzing.
#[doc(hidden)]
pub mod fuzzing {
    /// Reads arbitrary bytes as a log segment; must not panic or loop.
    pub fn log(bytes: &[u8]) {
        let mut frames = super::frame::FrameReader::new(bytes);
        let fault = loop {
            match frames.next() {
                Ok(Some(payload)) => {
                    let mut records = super::record::Records::new(payload);
                    while let Ok(Some(_)) = records.next() {}
                }
                Ok(None) => return,
                Err(fault) => break fault,
            }
        };
        drop(frames.rest_is_torn(&fault));
    }

    /// Reads bytes as the payload of a frame, as if its checksum were right.
    pub fn records(bytes: &[u8]) {
        let mut records = super::record::Records::new(bytes);
        while let Ok(Some(_)) = records.next() {}
    }

    /// Reads bytes as a database of etcd.
    pub fn database(bytes: &[u8]) {
        crate::etcd::fuzz_database(bytes);
    }

    /// A small database of etcd.
    pub fn database_seed() -> Vec<u8> {
        crate::etcd::seed_database()
    }

    /// Reads bytes as an image.
    pub fn image(bytes: &[u8]) {
        drop(super::image::read_image(bytes));
    }
}

#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod fake_disk;
#[cfg(test)]
mod tests;
