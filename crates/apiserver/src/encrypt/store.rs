//! A store wrapper that encrypts the values of selected resources.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use knarr_store::{Entry, Error, Event, Notice, Page, Range, Revision, Store, Watch};

use super::configuration::Configuration;

/// Encrypts values written to another store and decrypts those read from it.
pub struct Encrypted {
    inner: Arc<dyn Store>,
    configuration: Arc<Configuration>,
}

impl Encrypted {
    pub fn new(inner: Arc<dyn Store>, configuration: Configuration) -> Encrypted {
        Encrypted { inner, configuration: Arc::new(configuration) }
    }

    fn encrypted(&self, key: &str, value: Bytes) -> Result<Bytes, Error> {
        if !self.configuration.concerns(key) {
            return Ok(value);
        }
        let encrypted = self.configuration.encrypt(key, &value);
        encrypted.map(Bytes::from).ok_or_else(|| Error::Unavailable(format!("the value of {key} cannot be encrypted")))
    }
}

/// The decrypted entry. One that no key decrypts is returned unchanged, so that parsing it fails with an error.
fn decrypted(configuration: &Configuration, entry: Arc<Entry>) -> Arc<Entry> {
    if !configuration.concerns(&entry.key) {
        return entry;
    }
    match configuration.decrypt(&entry.key, &entry.value) {
        Some(plain) if plain == entry.value => entry,
        Some(plain) => Arc::new(Entry::new(entry.key.clone(), plain.into(), entry.created, entry.revision)),
        None => {
            tracing::error!(key = %entry.key, "no key of the encryption configuration decrypts a value");
            entry
        }
    }
}

fn decrypted_error(configuration: &Configuration, error: Error) -> Error {
    match error {
        Error::Conflict { key, expected, current } => {
            Error::Conflict { key, expected, current: current.map(|entry| decrypted(configuration, entry)) }
        }
        other => other,
    }
}

#[async_trait]
impl Store for Encrypted {
    fn revision(&self) -> Revision {
        self.inner.revision()
    }

    fn peek(&self, key: &str) -> Option<Arc<Entry>> {
        self.inner.peek(key).map(|entry| decrypted(&self.configuration, entry))
    }

    fn peek_range(&self, range: &Range<'_>) -> Result<Page, Error> {
        let mut page = self.inner.peek_range(range)?;
        if self.configuration.concerns(range.prefix) {
            page.entries = page.entries.into_iter().map(|entry| decrypted(&self.configuration, entry)).collect();
        }
        Ok(page)
    }

    fn count(&self, prefix: &str) -> usize {
        self.inner.count(prefix)
    }

    async fn sync(&self) -> Result<Revision, Error> {
        self.inner.sync().await
    }

    async fn reach(&self, revision: Revision, timeout: Duration) -> Result<(), Error> {
        self.inner.reach(revision, timeout).await
    }

    async fn create(&self, key: &str, value: Bytes, ttl: Option<Duration>) -> Result<Arc<Entry>, Error> {
        let stored = self.inner.create(key, self.encrypted(key, value)?, ttl).await;
        stored.map(|entry| decrypted(&self.configuration, entry))
    }

    async fn update(
        &self,
        key: &str,
        value: Bytes,
        expected: Revision,
        ttl: Option<Duration>,
    ) -> Result<Arc<Entry>, Error> {
        let stored = self.inner.update(key, self.encrypted(key, value)?, expected, ttl).await;
        stored
            .map(|entry| decrypted(&self.configuration, entry))
            .map_err(|error| decrypted_error(&self.configuration, error))
    }

    async fn delete(&self, key: &str, expected: Revision) -> Result<Revision, Error> {
        let gone = self.inner.delete(key, expected).await;
        gone.map_err(|error| decrypted_error(&self.configuration, error))
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, Error> {
        let inner = self.inner.watch(prefix, after)?;
        if !self.configuration.concerns(prefix) {
            return Ok(inner);
        }
        Ok(Box::new(DecryptingWatch { inner, configuration: self.configuration.clone() }))
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        self.inner.compact(revision).await
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
    configuration: Arc<Configuration>,
}

#[async_trait]
impl Watch for DecryptingWatch {
    async fn next(&mut self) -> Option<Notice> {
        let open = |entry: Option<Arc<Entry>>| entry.map(|entry| decrypted(&self.configuration, entry));
        Some(match self.inner.next().await? {
            Notice::Events(events) => {
                let events = events.into_iter().map(|event| Event {
                    revision: event.revision,
                    current: open(event.current),
                    previous: open(event.previous),
                });
                Notice::Events(events.collect())
            }
            other => other,
        })
    }

    fn request_progress(&mut self) {
        self.inner.request_progress();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_store::{Embedded, Options};

    #[tokio::test]
    async fn values_are_stored_encrypted_and_read_decrypted() {
        let directory = tempfile::tempdir().unwrap();
        let inner: Arc<dyn Store> = Arc::new(Embedded::open(directory.path(), Options::default()).unwrap());
        let key = "A".repeat(43) + "=";
        let text = format!(
            "kind: EncryptionConfiguration\nresources: [{{resources: [secrets], providers: [{{aesgcm: {{keys: [{{name: a, \
             secret: {key}}}]}}}}]}}]"
        );
        let store = Encrypted::new(inner.clone(), Configuration::parse(&text).unwrap());
        let place = "/registry/secrets/default/s";
        let mut watch = store.watch("/registry/secrets/", store.revision()).unwrap();
        let stored = store.create(place, Bytes::from_static(b"plain"), None).await.unwrap();
        assert_eq!(&stored.value[..], b"plain");
        assert!(inner.peek(place).unwrap().value.starts_with(b"k8s:enc:aesgcm:v1:a:"));
        assert_eq!(&store.peek(place).unwrap().value[..], b"plain");
        match watch.next().await {
            Some(Notice::Events(events)) => assert_eq!(&events[0].current.as_ref().unwrap().value[..], b"plain"),
            other => panic!("{other:?}"),
        }
        match store.update(place, Bytes::new(), 1_000_000, None).await {
            Err(Error::Conflict { current: Some(current), .. }) => assert_eq!(&current.value[..], b"plain"),
            other => panic!("{other:?}"),
        }
    }
}
