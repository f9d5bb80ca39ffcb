//! The embedded backend: an append-only log on the local disk behind the in-memory index.
//!
//! A write is checked in memory (`pending`), queued, made durable together with all other queued writes (`writer`, `log`),
//! and only then visible to readers and watches. A checkpoint replaces the oldest segments of the log by an image of the
//! state at the compaction floor (`checkpoint`). Opening a directory reads the image and the log (`replay`, `recovery`).

mod checkpoint;
pub mod disk;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
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
mod store;
mod unsynced;
mod writer;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use knarr_supervisor::panic_message;
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use crate::clock::{Clock, SystemClock};
use crate::contract::{Entry, Error, Range, Revision};
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

/// Options of an embedded store. The defaults set no limits to its space.
#[derive(Clone)]
pub struct Options {
    /// The size at which a new log segment is started.
    pub segment_bytes: u64,
    /// The size of all current entries up to which more are accepted.
    pub quota_bytes: u64,
    /// Disk space that is kept for deletions on a full disk.
    pub reserve_bytes: u64,
    /// Updates of keys with this prefix wait a moment for other writes, to share their sync: heartbeats, which are many and which
    /// nobody waits for.
    pub deferrable: Option<&'static str>,
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
            deferrable: None,
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
        let Options { segment_bytes, quota_bytes, reserve_bytes, deferrable, clock, disk } = options;
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
            pending: Mutex::new(Pending::new(&index, entries, quota_bytes, deferrable)),
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

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map_err(|error| Error::Open(format!("starting a thread: {error}")))
}

impl Shared {
    /// Updates the metrics of what there is now.
    fn measure(&self) {
        let (used, waiting) = {
            let pending = self.pending.lock();
            (pending.space.used, pending.waiting())
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
        // What the reserve gave back to a full disk is for deletions. A short image, by which the log becomes shorter, may
        // take some of it; a long one may be what fills the disk.
        let allows = |bytes| bytes <= self.reserve.bytes / 4 || self.pending.lock().space.full_disk.is_none();
        match checkpoint::checkpoint(&self.disk, &self.directory, &self.index, allows) {
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

#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod fake_disk;
#[cfg(test)]
mod full_disk_tests;
#[cfg(test)]
mod power_loss_tests;
#[cfg(test)]
mod tests;
