//! A store wrapper that encrypts the values of selected resources.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use knarr_store::{
    Decode, Entry, Error, Event, Notice, Page, Range, Revision, Scope, Store, StoreStatus, TopicIndex, Watch,
};

use arc_swap::ArcSwap;

use super::configuration::Configuration;
use crate::persist::foreign;
use crate::stored;

/// The configuration in use, which can be replaced.
#[derive(Clone)]
pub struct Encryption {
    configuration: Arc<ArcSwap<Configuration>>,
    /// The store of encrypted values.
    sealed: Arc<OnceLock<Weak<dyn Store>>>,
}

impl Encryption {
    pub fn new(configuration: Configuration) -> Self {
        Encryption { configuration: Arc::new(ArcSwap::from_pointee(configuration)), sealed: Arc::default() }
    }

    /// Whether all KMS plugins work, or what is wrong with them; `None` if there are none.
    pub fn health(&self) -> Option<Result<(), String>> {
        let providers = self.configuration.load().kms_providers();
        if providers.is_empty() {
            return None;
        }
        let unhealthy: Vec<String> = providers.iter().filter_map(|one| one.health().err()).collect();
        Some(match unhealthy.as_slice() {
            [] => Ok(()),
            [one] => Err(one.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        })
    }

    fn current(&self) -> arc_swap::Guard<Arc<Configuration>> {
        self.configuration.load()
    }

    /// Uses another configuration from now on. Its plugins have opened the keys of all values before and after: what the server
    /// reads for itself does not wait for them, and values arrive meanwhile.
    pub(super) async fn replace(&self, configuration: Arc<Configuration>) {
        self.open_all(&configuration).await;
        self.configuration.store(configuration.clone());
        self.open_all(&configuration).await;
    }

    async fn open_all(&self, configuration: &Configuration) {
        if let Some(store) = self.sealed.get().and_then(Weak::upgrade)
            && configuration.asks_plugins(ALL)
        {
            let all = store.peek_range(&Range { prefix: ALL, ..Range::default() });
            open(configuration, &all.map(|page| page.entries).unwrap_or_default()).await;
        }
    }
}

/// Has plugins open the keys of values that other servers write, as they arrive. Requests wait for keys that are not open yet;
/// what the server reads for itself finds them.
pub async fn open_keys(store: Arc<dyn Store>, mut stopping: tokio::sync::watch::Receiver<bool>) {
    loop {
        let mut watch = match store.watch(ALL, store.revision()) {
            Ok(watch) => watch,
            Err(error) => return tracing::warn!(%error, "cannot watch encrypted values"),
        };
        store.prepare_read(&Range { prefix: ALL, ..Range::default() }).await;
        loop {
            tokio::select! {
                notice = watch.next() => match notice {
                    Some(Notice::Events(_) | Notice::Progress(_)) => {}
                    Some(Notice::Compacted) => break,
                    None => return,
                },
                _ = stopping.wait_for(|stopping| *stopping) => return,
            }
        }
    }
}

/// What the keys of all objects start with.
const ALL: &str = "/registry/";
/// What keys start with: `--etcd-prefix` of kube-apiserver.
const DEFAULT_PREFIX: &str = "/registry";

/// Encrypts values written to another store and decrypts those read from it.
pub struct Encrypted {
    inner: Arc<dyn Store>,
    reader: Reader,
}

impl Encrypted {
    pub fn new(inner: Arc<dyn Store>, configuration: Encryption) -> Encrypted {
        // One configuration is for one store; of another, keys are opened as they are needed.
        let _ = configuration.sealed.set(Arc::downgrade(&inner));
        Encrypted { inner, reader: Reader { configuration, decode: foreign::decoder(), prefix: None } }
    }

    /// Binds values to the keys that they have in an etcd with another prefix.
    pub fn with_prefix(mut self, prefix: &str) -> Encrypted {
        self.reader.prefix = (prefix != DEFAULT_PREFIX).then(|| prefix.into());
        self
    }

    async fn encrypted(&self, key: &str, value: Bytes) -> Result<Bytes, Error> {
        let configuration = self.reader.configuration.configuration.load_full();
        if !configuration.concerns(key) {
            return Ok(value);
        }
        configuration.prepare_write(key).await;
        let encrypted = configuration.encrypt_at(key, &self.reader.stored_key(key), &value);
        encrypted.map(Bytes::from).ok_or_else(|| Error::Unavailable(format!("the value of {key} cannot be encrypted")))
    }
}

/// Waits until plugins have opened the keys of entries, or failed to.
async fn open(configuration: &Configuration, entries: &[Arc<Entry>]) {
    let sealed = entries.iter().filter(|entry| configuration.asks_plugins(&entry.key));
    let asked: Vec<_> = sealed.filter_map(|entry| configuration.prepare_read(&entry.key, &entry.value())).collect();
    for mut opened in asked {
        // It closes without a value.
        let _ = opened.changed().await;
    }
}

/// Makes plain entries of stored ones.
#[derive(Clone)]
struct Reader {
    configuration: Encryption,
    /// What is inside may have been encrypted by kube-apiserver, in its own form: the store below cannot see that.
    decode: Decode,
    /// What the keys in etcd start with, if it is not the usual prefix.
    prefix: Option<Arc<str>>,
}

impl Reader {
    fn stored_key<'a>(&self, key: &'a str) -> Cow<'a, str> {
        match (&self.prefix, key.strip_prefix(DEFAULT_PREFIX)) {
            (Some(prefix), Some(rest)) => Cow::Owned(format!("{prefix}{rest}")),
            _ => Cow::Borrowed(key),
        }
    }

    /// The decrypted entry. One that cannot be decrypted has a value that is no object, and says why.
    fn entry(&self, entry: Arc<Entry>) -> Arc<Entry> {
        let configuration = self.configuration.current();
        if !configuration.concerns(&entry.key) {
            return entry;
        }
        let sealed = entry.value();
        let value = match configuration.decrypt_at(&entry.key, &self.stored_key(&entry.key), &sealed) {
            Ok(plain) if plain == *sealed => return entry,
            Ok(plain) => (self.decode)(&entry.key, plain),
            Err(error) => {
                tracing::error!(key = %entry.key, error, "failed to decrypt data");
                stored::unreadable(&error)
            }
        };
        Arc::new(Entry::new(entry.key.clone(), value, entry.created, entry.revision))
    }

    async fn prepare(&self, entries: Vec<Arc<Entry>>) {
        open(&self.configuration.configuration.load_full(), &entries).await;
    }

    /// The decrypted entry, once its key is known.
    async fn prepared(&self, entry: Arc<Entry>) -> Arc<Entry> {
        self.prepare(vec![entry.clone()]).await;
        self.entry(entry)
    }

    async fn error(&self, error: Error) -> Error {
        match error {
            Error::Conflict { key, expected, current: Some(current) } => {
                Error::Conflict { key, expected, current: Some(self.prepared(current).await) }
            }
            other => other,
        }
    }
}

#[async_trait]
impl Store for Encrypted {
    fn revision(&self) -> Revision {
        self.inner.revision()
    }

    fn peek(&self, key: &str) -> Option<Arc<Entry>> {
        self.inner.peek(key).map(|entry| self.reader.entry(entry))
    }

    fn peek_range(&self, range: &Range<'_>) -> Result<Page, Error> {
        let mut page = self.inner.peek_range(range)?;
        if self.reader.configuration.current().concerns(range.prefix) {
            page.entries = page.entries.into_iter().map(|entry| self.reader.entry(entry)).collect();
        }
        Ok(page)
    }

    async fn prepare_read(&self, range: &Range<'_>) {
        if self.reader.configuration.current().asks_plugins(range.prefix) {
            // The read itself reports what is wrong with the range.
            let entries = self.inner.peek_range(range).map(|page| page.entries).unwrap_or_default();
            self.reader.prepare(entries).await;
        }
    }

    fn count(&self, prefix: &str) -> usize {
        self.inner.count(prefix)
    }

    fn weigh(&self, range: &Range<'_>, max_bytes: usize) -> usize {
        self.inner.weigh(range, max_bytes)
    }

    async fn sync(&self) -> Result<Revision, Error> {
        self.inner.sync().await
    }

    fn status(&self) -> StoreStatus {
        self.inner.status()
    }

    async fn failed(&self) -> String {
        self.inner.failed().await
    }

    async fn reach(&self, revision: Revision, timeout: Duration) -> Result<(), Error> {
        self.inner.reach(revision, timeout).await
    }

    async fn create(&self, key: &str, value: Bytes, ttl: Option<Duration>) -> Result<Arc<Entry>, Error> {
        let stored = self.inner.create(key, self.encrypted(key, value).await?, ttl).await?;
        Ok(self.reader.entry(stored))
    }

    async fn update(
        &self,
        key: &str,
        value: Bytes,
        expected: Revision,
        ttl: Option<Duration>,
    ) -> Result<Arc<Entry>, Error> {
        match self.inner.update(key, self.encrypted(key, value).await?, expected, ttl).await {
            Ok(stored) => Ok(self.reader.entry(stored)),
            Err(error) => Err(self.reader.error(error).await),
        }
    }

    async fn delete(&self, key: &str, expected: Revision) -> Result<Revision, Error> {
        match self.inner.delete(key, expected).await {
            Ok(revision) => Ok(revision),
            Err(error) => Err(self.reader.error(error).await),
        }
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, Error> {
        let inner = self.inner.watch(prefix, after)?;
        // The configuration may come to concern what it does not yet.
        Ok(Box::new(DecryptingWatch { inner, reader: self.reader.clone(), pending: None }))
    }

    fn watch_scope(&self, scope: Scope<'_>, after: Revision) -> Result<Box<dyn Watch>, Error> {
        let inner = self.inner.watch_scope(scope, after)?;
        Ok(Box::new(DecryptingWatch { inner, reader: self.reader.clone(), pending: None }))
    }

    /// The topic of an encrypted value is unknown: it belongs to all.
    fn index_topics(&self, index: TopicIndex) {
        self.inner.index_topics(index);
    }

    fn observe_changes(&self, observer: knarr_store::ChangeObserver) {
        self.inner.observe_changes(observer);
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        self.inner.compact(revision).await
    }

    async fn pack(&self) -> Result<(), Error> {
        self.inner.pack().await
    }

    fn history_within(&self, bytes: usize) -> Revision {
        self.inner.history_within(bytes)
    }

    async fn snapshot(&self, image: &mut (dyn std::io::Write + Send)) -> Result<Revision, Error> {
        self.inner.snapshot(image).await
    }
}

/// A watch that decrypts values.
struct DecryptingWatch {
    inner: Box<dyn Watch>,
    reader: Reader,
    /// Changes whose keys are waited for. They stay here when the caller stops waiting.
    pending: Option<Vec<Event>>,
}

#[async_trait]
impl Watch for DecryptingWatch {
    async fn next(&mut self) -> Option<Notice> {
        if self.pending.is_none() {
            match self.inner.next().await? {
                Notice::Events(events) => self.pending = Some(events),
                other => return Some(other),
            }
        }
        let entries = self.pending.iter().flatten().flat_map(|event| [&event.current, &event.previous]);
        self.reader.prepare(entries.flatten().cloned().collect()).await;
        let open = |entry: Option<Arc<Entry>>| entry.map(|entry| self.reader.entry(entry));
        let events = self.pending.take().unwrap_or_default().into_iter().map(|event| Event {
            revision: event.revision,
            current: open(event.current),
            previous: open(event.previous),
        });
        Some(Notice::Events(events.collect()))
    }

    fn request_progress(&mut self) {
        self.inner.request_progress();
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
