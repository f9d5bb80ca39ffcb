//! The one thread that writes: it takes all that is waiting, makes it durable with one sync, and answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use super::Shared;
use super::log::{LogWriter, Segment, WriteFailure};
use super::pending::{Pending, Queued};
use crate::index::Change;

/// How much one sync takes at most, so that a burst of large values does not keep the others waiting.
const MOST_BATCH: usize = 8 << 20;
/// How often expired entries are looked for.
const EXPIRY_PACE: Duration = Duration::from_secs(1);

pub(super) struct Writer {
    pub shared: Arc<Shared>,
    pub log: LogWriter,
    pub last_expiry: Instant,
}

impl Writer {
    /// Runs until the store closes and nothing is waiting any more.
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
            if self.last_expiry.elapsed() >= EXPIRY_PACE && !pending.closing {
                self.last_expiry = Instant::now();
                pending.expire(&shared.index, shared.clock.now());
            }
            if !pending.queue.is_empty() {
                return Some(pending.take_batch(MOST_BATCH));
            }
            if pending.closing {
                return None;
            }
            self.wait(&mut pending);
        }
    }

    fn wait(&self, pending: &mut MutexGuard<'_, Pending>) {
        if pending.any_expiring() {
            self.shared.work.wait_for(pending, EXPIRY_PACE);
        } else {
            self.shared.work.wait(pending);
        }
    }

    fn commit(&mut self, batch: Vec<Queued>) {
        let Some(newest) = batch.iter().rev().find_map(|queued| queued.change.as_ref()).map(|change| change.revision)
        else {
            // Only answers that waited for writes before them, which are durable by now.
            batch.into_iter().for_each(|queued| answer(queued.reply));
            return;
        };
        if let Err(failure) =
            self.rotate().and_then(|()| self.log.write(batch.iter().filter_map(|queued| queued.change.as_ref())))
        {
            return self.fail(batch, failure);
        }
        let (changes, replies): (Vec<Option<Change>>, Vec<_>) =
            batch.into_iter().map(|queued| (queued.change, queued.reply)).unzip();
        let changes: Vec<Change> = changes.into_iter().flatten().collect();
        let keys: Vec<Arc<str>> = changes.iter().map(|change| change.key.clone()).collect();
        let wake = self.shared.index.apply(changes, newest);
        self.shared.pending.lock().settle(&keys, newest);
        replies.into_iter().for_each(answer);
        wake.wake();
        if let Some(active) = self.shared.segments.lock().last_mut() {
            active.bytes = self.log.length;
        }
    }

    fn fail(&mut self, batch: Vec<Queued>, failure: WriteFailure) {
        let WriteFailure { mut message, undone } = failure;
        let mut pending = self.shared.pending.lock();
        if !undone {
            message.push_str("; the store takes no further writes until it is opened again");
            pending.refusal = Some(message.clone());
        }
        tracing::error!(message, "a write to the store failed");
        pending.fail(&self.shared.index, batch, &message);
        // What failed to expire is tried again at the usual pace.
        self.last_expiry = Instant::now();
    }

    /// Begins a new segment when the present one is full. A failure leaves the present one in use for the next try.
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

fn answer(reply: Option<tokio::sync::oneshot::Sender<Result<(), crate::contract::Error>>>) {
    if let Some(reply) = reply {
        // The caller may be gone: the write is durable all the same.
        drop(reply.send(Ok(())));
    }
}
