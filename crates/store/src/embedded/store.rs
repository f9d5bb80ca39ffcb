//! The contract of a store, kept by [`Embedded`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{Embedded, save};
use crate::contract::{
    ChangeObserver, Entry, Error, Page, Range, Revision, Scope, Store, StoreStatus, TopicIndex, Watch,
};

/// The maximum size of a value, twice that of etcd. An object grows by many small changes, too, and each of them costs in
/// proportion to its size. Larger values of an older release are still read.
pub const MAX_VALUE_BYTES: usize = 3 << 20;

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

    async fn pack(&self) -> Result<(), Error> {
        self.shared.index.pack().await
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

/// Copies a value into its own memory, so that it does not keep a larger buffer alive.
fn copy_value(key: &Arc<str>, value: &Bytes) -> Result<Bytes, Error> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(Error::TooLarge { key: key.clone(), bytes: value.len(), max: MAX_VALUE_BYTES });
    }
    Ok(Bytes::copy_from_slice(value))
}
