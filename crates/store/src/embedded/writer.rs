//! The writer thread: drains the queue of writes, makes them durable with one sync, and replies to the callers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use super::Shared;
use super::log::{LogWriter, Segment, WriteFailure};
use super::metrics;
use super::pending::{Pending, Queued};
use super::space::FullDisk;
use crate::index::Change;

/// The maximum size of one sync, so that a burst of large values does not delay other writes.
const MAX_BATCH_BYTES: usize = 8 << 20;
/// How often expired entries are deleted.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);
/// How often the reserve of a full disk is tried to be allocated again.
const ALLOCATION_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Writer {
    pub shared: Arc<Shared>,
    pub log: LogWriter,
    pub last_expiry: Instant,
    /// When the reserve of a full disk was last tried to be allocated again.
    pub last_allocation: Instant,
}

impl Writer {
    /// Runs until the store closes and the queue is empty.
    pub(super) fn run(mut self) {
        while let Some(batch) = self.next_batch() {
            self.commit(batch);
        }
        if self.shared.pending.lock().refusal.is_none()
            && let Err(failure) = self.log.seal()
        {
            tracing::warn!(failure.message, "the log was closed without its seal; nothing is lost");
        }
    }

    fn next_batch(&mut self) -> Option<Vec<Queued>> {
        let shared = self.shared.clone();
        let mut pending = shared.pending.lock();
        loop {
            if pending.space.full_disk.is_some() && self.last_allocation.elapsed() >= ALLOCATION_INTERVAL {
                self.last_allocation = Instant::now();
                // Slow: callers must not wait for it.
                let allocated = MutexGuard::unlocked(&mut pending, || shared.reserve.allocate());
                if allocated.is_ok() {
                    tracing::info!("the disk has space again; the store accepts all writes");
                    pending.space.full_disk = None;
                }
            }
            if self.last_expiry.elapsed() >= EXPIRY_INTERVAL && !pending.closing {
                self.last_expiry = Instant::now();
                pending.expire(&shared.index, shared.clock.now());
            }
            match pending.deferral() {
                Some(Duration::ZERO) => return Some(pending.next_batch(MAX_BATCH_BYTES)),
                Some(deferral) => {
                    self.shared.work.wait_for(&mut pending, deferral);
                    continue;
                }
                None => {}
            }
            if pending.closing {
                return None;
            }
            self.wait(&mut pending);
        }
    }

    fn wait(&self, pending: &mut MutexGuard<'_, Pending>) {
        if pending.any_expiring() || pending.space.full_disk.is_some() {
            self.shared.work.wait_for(pending, EXPIRY_INTERVAL);
        } else {
            self.shared.work.wait(pending);
        }
    }

    fn commit(&mut self, batch: Vec<Queued>) {
        let Some(newest) = batch.iter().rev().find_map(|queued| queued.change.as_ref()).map(|change| change.revision)
        else {
            // Only refusals that waited for writes before them, which are durable by now.
            batch.into_iter().for_each(|queued| acknowledge(queued.reply));
            return;
        };
        knarr_supervisor::fault::point_of("store", "write");
        let (started, writes) = (Instant::now(), batch.len());
        let mut written = self.write(&batch);
        if let Err(failure) = &written
            && failure.undone
            && failure.full
            && self.shared.reserve.release()
        {
            tracing::error!(failure.message, "the disk is full: the store accepts only deletions until there is space");
            let (message, reserve) = (failure.message.clone(), self.shared.reserve.bytes);
            self.shared.pending.lock().space.full_disk = Some(FullDisk { message, reserve, written: 0 });
            self.last_allocation = Instant::now();
            written = self.write(&batch);
        }
        if let Err(failure) = written {
            return self.fail(batch, failure);
        }
        let (changes, replies): (Vec<Option<Change>>, Vec<_>) =
            batch.into_iter().map(|queued| (queued.change, queued.reply)).unzip();
        let changes: Vec<Change> = changes.into_iter().flatten().collect();
        let keys: Vec<Arc<str>> = changes.iter().map(|change| change.key.clone()).collect();
        let wake = self.shared.index.apply(changes, newest);
        {
            let mut pending = self.shared.pending.lock();
            pending.mark_durable(&keys, newest);
            pending.last_failure = None;
        }
        replies.into_iter().for_each(acknowledge);
        wake.wake();
        metrics::COMMIT.observe(&[], started.elapsed().as_secs_f64());
        metrics::COMMITTED.add(&[], writes as f64);
        metrics::APPLIED.add(&[], writes as f64);
        if let Some(active) = self.shared.segments.lock().last_mut() {
            active.bytes = self.log.length;
        }
    }

    fn write(&mut self, batch: &[Queued]) -> Result<(), WriteFailure> {
        self.rotate()?;
        self.log.write(batch.iter().filter_map(|queued| queued.change.as_ref()))
    }

    fn fail(&mut self, batch: Vec<Queued>, failure: WriteFailure) {
        let WriteFailure { mut message, undone, full } = failure;
        metrics::FAILED.add(&[], batch.len() as u64);
        let mut pending = self.shared.pending.lock();
        // When even the reserve is used up, deletions cannot make space either.
        let exhausted = full && pending.space.full_disk.is_some();
        if !undone || exhausted {
            message.push_str("; the store accepts no more writes until it is reopened");
            pending.refusal = Some(message.clone());
            metrics::HAS_LEADER.set(&[], 0.0);
            self.shared.failure.send_replace(Some(message.clone()));
        }
        tracing::error!(message, "a write to the store failed");
        pending.fail(&self.shared.index, batch, &message);
        // Failed expiries are retried after the usual interval.
        self.last_expiry = Instant::now();
    }

    /// Starts a new segment when the current one is full. After a failure the current one stays in use for the next try.
    fn rotate(&mut self) -> Result<(), WriteFailure> {
        if self.log.length < self.shared.segment_bytes {
            return Ok(());
        }
        let first = self.shared.index.revision() + 1;
        self.log = LogWriter::create(&self.shared.disk, &self.shared.directory, first)?;
        self.shared.segments.lock().push(Segment { first, bytes: self.log.length });
        Ok(())
    }
}

fn acknowledge(reply: Option<tokio::sync::oneshot::Sender<Result<(), crate::contract::Error>>>) {
    if let Some(reply) = reply {
        // Fails only when the caller has gone away; the write is durable anyway.
        drop(reply.send(Ok(())));
    }
}
