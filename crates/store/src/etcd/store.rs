//! The contract of a store, kept by [`Etcd`].

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tonic::{Code, Status};

use super::wire::operation::Request;
use super::{Etcd, Outcome, feed, unavailable, wire};
use crate::contract::{
    ChangeObserver, Entry, Error, Page, Range, Revision, Scope, Store, StoreStatus, TopicIndex, Watch,
};

const COMPACT: &str = "/etcdserverpb.KV/Compact";
const TIME_LEFT: &str = "/etcdserverpb.Lease/LeaseTimeToLive";

#[async_trait]
impl Store for Etcd {
    fn revision(&self) -> Revision {
        self.index.revision()
    }

    fn peek(&self, key: &str) -> Option<Arc<Entry>> {
        self.index.get(key)
    }

    fn peek_range(&self, range: &Range<'_>) -> Result<Page, Error> {
        self.index.range(range)
    }

    fn count(&self, prefix: &str) -> usize {
        self.index.count(prefix)
    }

    fn weigh(&self, range: &Range<'_>, max_bytes: usize) -> usize {
        self.index.weigh(range, max_bytes)
    }

    async fn sync(&self) -> Result<Revision, Error> {
        let ticket = self.syncs.requested.fetch_add(1, Ordering::SeqCst) + 1;
        let mut completed = self.syncs.completed.lock().await;
        if *completed < ticket {
            // The next query serves every request made before it.
            let all = self.syncs.requested.load(Ordering::SeqCst);
            let newest = self.newest().await.map_err(unavailable)?;
            self.catch_up(newest).await.map_err(unavailable)?;
            *completed = all;
        }
        Ok(self.index.revision())
    }

    async fn reach(&self, revision: Revision, timeout: Duration) -> Result<(), Error> {
        self.index.reach(revision, timeout).await
    }

    async fn create(&self, key: &str, value: Bytes, ttl: Option<Duration>) -> Result<Arc<Entry>, Error> {
        let before = self.index.revision();
        match self.put(key, &value, 0, ttl).await? {
            Outcome::Done(revision) => Ok(self.written(key, value, revision, revision)),
            Outcome::Refused { retried: true, .. } => {
                self.earlier_attempt(key, &value, before)?.ok_or(Error::Exists(key.into()))
            }
            Outcome::Refused { .. } => Err(Error::Exists(key.into())),
        }
    }

    async fn update(
        &self,
        key: &str,
        value: Bytes,
        expected: Revision,
        ttl: Option<Duration>,
    ) -> Result<Arc<Entry>, Error> {
        if expected == 0 {
            return Err(Error::Conflict { key: key.into(), expected, current: self.peek(key) });
        }
        let created = self.index.version(key, expected).map_or(expected, |entry| entry.created);
        let before = self.index.revision();
        match self.put(key, &value, expected, ttl).await? {
            Outcome::Done(revision) => Ok(self.written(key, value, created, revision)),
            Outcome::Refused { current, retried: true } => {
                self.earlier_attempt(key, &value, before)?.ok_or(Error::Conflict { key: key.into(), expected, current })
            }
            Outcome::Refused { current, .. } => Err(Error::Conflict { key: key.into(), expected, current }),
        }
    }

    async fn delete(&self, key: &str, expected: Revision) -> Result<Revision, Error> {
        if expected == 0 {
            return Err(Error::Conflict { key: key.into(), expected, current: self.peek(key) });
        }
        self.check(key)?;
        let delete = wire::DeleteRequest { key: self.key_space.stored(key) };
        match self.transact(key, expected, Request::Delete(delete)).await.map_err(unavailable)? {
            Outcome::Done(revision) => Ok(revision),
            Outcome::Refused { current, retried } => {
                let ours = if retried { self.index.deletion(key, expected) } else { None };
                ours.ok_or(Error::Conflict { key: key.into(), expected, current })
            }
        }
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, Error> {
        self.index.watch(Scope::Prefix(prefix), after)
    }

    fn watch_scope(&self, scope: Scope<'_>, after: Revision) -> Result<Box<dyn Watch>, Error> {
        self.index.watch(scope, after)
    }

    fn index_topics(&self, index: TopicIndex) {
        self.index.index_topics(index);
    }

    fn observe_changes(&self, observer: ChangeObserver) {
        self.index.observe_changes(observer);
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        self.index.compact(revision)?;
        let request = wire::CompactionRequest { revision: revision as i64 };
        match self.client.call::<_, wire::CompactionResponse>(COMPACT, request).await {
            Ok(_) => Ok(()),
            // Other users of the same etcd compact it too.
            Err(status) if status.code() == Code::OutOfRange && status.message().contains("compacted") => Ok(()),
            Err(status) => Err(unavailable(status)),
        }
    }

    async fn pack(&self) -> Result<(), Error> {
        self.index.pack().await
    }

    fn history_within(&self, bytes: usize) -> Revision {
        self.index.history_within(bytes)
    }

    /// etcd enforces its own quota.
    fn status(&self) -> StoreStatus {
        StoreStatus::default()
    }

    async fn failed(&self) -> String {
        const INTERVAL: Duration = Duration::from_secs(1);
        // Without its watch on etcd, the index would stay as it is for ever.
        while self.tasks.first().is_some_and(|feed| !feed.is_finished()) {
            tokio::time::sleep(INTERVAL).await;
        }
        "the watch on etcd ended".to_owned()
    }

    async fn snapshot(&self, image: &mut (dyn std::io::Write + Send)) -> Result<Revision, Error> {
        self.sync().await?;
        let mut page = self.index.range(&Range::default())?;
        let expiries = self.expiries(page.revision).await.map_err(unavailable)?;
        for entry in &mut page.entries {
            if let Some(expires) = expiries.get(&*self.key_space.stored(&entry.key)) {
                let copy = Entry::new(entry.key.clone(), entry.value(), entry.created, entry.revision);
                *entry = Arc::new(copy.expiring(*expires));
            }
        }
        crate::embedded::save(&page, image)
    }
}

impl Etcd {
    /// When the entries with a lease expire, by key.
    pub(super) async fn expiries(&self, at: Revision) -> Result<HashMap<Vec<u8>, u64>, Status> {
        let mut leased: HashMap<i64, Vec<Vec<u8>>> = HashMap::new();
        let visit = |pair: wire::KeyValue| {
            if pair.lease != 0 {
                leased.entry(pair.lease).or_default().push(pair.key);
            }
        };
        feed::pages(&self.client, &self.key_space, at, true, visit).await?;
        let mut expiries = HashMap::new();
        for (id, keys) in leased {
            let left: wire::LeaseLeftResponse = self.client.call(TIME_LEFT, wire::LeaseLeftRequest { id }).await?.body;
            let expires = self.clock.now() + left.ttl.max(0) as u64 * 1000;
            expiries.extend(keys.into_iter().map(|key| (key, expires)));
        }
        Ok(expiries)
    }
}
