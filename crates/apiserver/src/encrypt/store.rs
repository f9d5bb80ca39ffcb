//! A store wrapper that encrypts the values of selected resources.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use knarr_store::{
    Decode, Entry, Error, Event, Notice, Page, Range, Revision, Scope, Store, StoreStatus, TopicIndex, Watch,
};

use arc_swap::ArcSwap;

use super::configuration::{Configuration, ConfigurationError};
use crate::persist::foreign;

/// The configuration in use, which can be replaced.
#[derive(Clone)]
pub struct Encryption(Arc<ArcSwap<Configuration>>);

impl Encryption {
    pub fn new(configuration: Configuration) -> Self {
        Encryption(Arc::new(ArcSwap::from_pointee(configuration)))
    }

    /// Replaces the configuration; an invalid one changes nothing.
    pub fn reload(&self, text: &str) -> Result<(), ConfigurationError> {
        self.0.store(Arc::new(Configuration::parse(text)?));
        Ok(())
    }

    /// Whether all KMS plugins work, or what is wrong with them; `None` if there are none.
    pub fn health(&self) -> Option<Result<(), String>> {
        let providers = self.0.load().kms_providers();
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
        self.0.load()
    }
}

/// Replaces the configuration whenever its file changes; an invalid file changes nothing.
pub async fn watch_configuration(
    encryption: Encryption,
    path: std::path::PathBuf,
    known: String,
    stopping: tokio::sync::watch::Receiver<bool>,
) {
    crate::configuration_file::watch(path.clone(), known, stopping, move |text| match encryption.reload(text) {
        Ok(()) => tracing::info!(path = %path.display(), "loaded new encryption configuration"),
        Err(error) => tracing::error!(path = %path.display(), %error, "cannot load the encryption configuration"),
    })
    .await;
}

/// What keys start with: `--etcd-prefix` of kube-apiserver.
const DEFAULT_PREFIX: &str = "/registry";

/// Encrypts values written to another store and decrypts those read from it.
pub struct Encrypted {
    inner: Arc<dyn Store>,
    reader: Reader,
}

impl Encrypted {
    pub fn new(inner: Arc<dyn Store>, configuration: Encryption) -> Encrypted {
        Encrypted { inner, reader: Reader { configuration, decode: foreign::decoder(), prefix: None } }
    }

    /// Binds values to the keys that they have in an etcd with another prefix.
    pub fn with_prefix(mut self, prefix: &str) -> Encrypted {
        self.reader.prefix = (prefix != DEFAULT_PREFIX).then(|| prefix.into());
        self
    }

    fn encrypted(&self, key: &str, value: Bytes) -> Result<Bytes, Error> {
        let configuration = self.reader.configuration.current();
        if !configuration.concerns(key) {
            return Ok(value);
        }
        let encrypted = configuration.encrypt_at(key, &self.reader.stored_key(key), &value);
        encrypted.map(Bytes::from).ok_or_else(|| Error::Unavailable(format!("the value of {key} cannot be encrypted")))
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

    /// The decrypted entry. One that no key decrypts is returned unchanged, so that parsing it fails with an error.
    fn entry(&self, entry: Arc<Entry>) -> Arc<Entry> {
        let configuration = self.configuration.current();
        if !configuration.concerns(&entry.key) {
            return entry;
        }
        match configuration.decrypt_at(&entry.key, &self.stored_key(&entry.key), &entry.value) {
            Some(plain) if plain == entry.value => entry,
            Some(plain) => {
                let value = (self.decode)(&entry.key, plain);
                Arc::new(Entry::new(entry.key.clone(), value, entry.created, entry.revision))
            }
            None => {
                tracing::error!(key = %entry.key, "no key of the encryption configuration decrypts a value");
                entry
            }
        }
    }

    fn error(&self, error: Error) -> Error {
        match error {
            Error::Conflict { key, expected, current } => {
                Error::Conflict { key, expected, current: current.map(|entry| self.entry(entry)) }
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
        let stored = self.inner.create(key, self.encrypted(key, value)?, ttl).await;
        stored.map(|entry| self.reader.entry(entry))
    }

    async fn update(
        &self,
        key: &str,
        value: Bytes,
        expected: Revision,
        ttl: Option<Duration>,
    ) -> Result<Arc<Entry>, Error> {
        let stored = self.inner.update(key, self.encrypted(key, value)?, expected, ttl).await;
        stored.map(|entry| self.reader.entry(entry)).map_err(|error| self.reader.error(error))
    }

    async fn delete(&self, key: &str, expected: Revision) -> Result<Revision, Error> {
        let gone = self.inner.delete(key, expected).await;
        gone.map_err(|error| self.reader.error(error))
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, Error> {
        let inner = self.inner.watch(prefix, after)?;
        // The configuration may come to concern what it does not yet.
        Ok(Box::new(DecryptingWatch { inner, reader: self.reader.clone() }))
    }

    fn watch_scope(&self, scope: Scope<'_>, after: Revision) -> Result<Box<dyn Watch>, Error> {
        let inner = self.inner.watch_scope(scope, after)?;
        Ok(Box::new(DecryptingWatch { inner, reader: self.reader.clone() }))
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
}

#[async_trait]
impl Watch for DecryptingWatch {
    async fn next(&mut self) -> Option<Notice> {
        let open = |entry: Option<Arc<Entry>>| entry.map(|entry| self.reader.entry(entry));
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
        let store = Encrypted::new(inner.clone(), Encryption::new(Configuration::parse(&text).unwrap()));
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

    /// As kube-apiserver with `--etcd-prefix` does it.
    #[tokio::test]
    async fn values_are_bound_to_the_key_in_etcd() {
        let directory = tempfile::tempdir().unwrap();
        let inner: Arc<dyn Store> = Arc::new(Embedded::open(directory.path(), Options::default()).unwrap());
        let text = format!(
            "kind: EncryptionConfiguration\nresources: [{{resources: [secrets], providers: [{{aesgcm: {{keys: [{{name: a, \
             secret: {}=}}]}}}}]}}]",
            "A".repeat(43)
        );
        let configuration = || Configuration::parse(&text).unwrap();
        let store = Encrypted::new(inner.clone(), Encryption::new(configuration())).with_prefix("/other");
        let place = "/registry/secrets/default/s";
        store.create(place, Bytes::from_static(b"plain"), None).await.unwrap();
        assert_eq!(&store.peek(place).unwrap().value[..], b"plain");
        let sealed = inner.peek(place).unwrap().value.clone();
        assert_eq!(configuration().decrypt(place, &sealed), None);
        let opened = configuration().decrypt_at(place, "/other/secrets/default/s", &sealed);
        assert_eq!(opened.as_deref(), Some(&b"plain"[..]));
    }

    /// kube-apiserver encrypts protobuf; it is read as what this server would have stored.
    #[tokio::test]
    async fn protobuf_that_another_server_encrypted_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let inner: Arc<dyn Store> = Arc::new(Embedded::open(directory.path(), Options::default()).unwrap());
        let secret = serde_json::json!({
            "kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s", "namespace": "default"},
            "data": {"key": "dmFsdWU="}, "type": "Opaque",
        });
        let place = "/registry/secrets/default/s";
        for provider in ["aesgcm", "aescbc", "secretbox"] {
            let text = format!(
                "kind: EncryptionConfiguration\nresources: [{{resources: [secrets], providers: [{{{provider}: {{keys: \
                 [{{name: a, secret: {}=}}]}}}}]}}]",
                "A".repeat(43)
            );
            let configuration = Configuration::parse(&text).unwrap();
            let protobuf = knarr_api::protobuf::encode(&secret).unwrap();
            let encrypted = configuration.encrypt(place, &protobuf).unwrap();
            let stored = inner.create(place, encrypted.into(), None).await.unwrap();
            let store = Encrypted::new(inner.clone(), Encryption::new(configuration));
            let mut watch = store.watch("/registry/secrets/", stored.revision - 1).unwrap();
            let read = |entry: &Entry| serde_json::from_slice::<serde_json::Value>(&entry.value).unwrap();
            assert_eq!(read(&store.peek(place).unwrap()), secret, "{provider}");
            match watch.next().await {
                Some(Notice::Events(events)) => assert_eq!(read(events[0].current.as_ref().unwrap()), secret),
                other => panic!("{provider}: {other:?}"),
            }
            store.delete(place, stored.revision).await.unwrap();
        }
    }

    #[tokio::test]
    async fn keys_are_replaced_while_the_server_runs() {
        let directory = tempfile::tempdir().unwrap();
        let inner: Arc<dyn Store> = Arc::new(Embedded::open(directory.path(), Options::default()).unwrap());
        let key = |letter: &str| letter.repeat(43) + "=";
        let text = |keys: &[(&str, &str)]| {
            let keys: Vec<String> =
                keys.iter().map(|(name, letter)| format!("{{name: {name}, secret: {}}}", key(letter))).collect();
            format!(
                "kind: EncryptionConfiguration\nresources: [{{resources: [secrets], providers: [{{aesgcm: {{keys: [{}]}}}}]}}]",
                keys.join(", ")
            )
        };
        let encryption = Encryption::new(Configuration::parse(&text(&[("a", "A")])).unwrap());
        let store = Encrypted::new(inner.clone(), encryption.clone());
        let place = |name: &str| format!("/registry/secrets/default/{name}");
        store.create(&place("old"), Bytes::from_static(b"old"), None).await.unwrap();
        assert!(encryption.reload("nonsense").is_err());
        encryption.reload(&text(&[("b", "E"), ("a", "A")])).unwrap();
        store.create(&place("new"), Bytes::from_static(b"new"), None).await.unwrap();
        assert!(inner.peek(&place("new")).unwrap().value.starts_with(b"k8s:enc:aesgcm:v1:b:"));
        assert_eq!(&store.peek(&place("old")).unwrap().value[..], b"old");
        assert_eq!(&store.peek(&place("new")).unwrap().value[..], b"new");
    }

    #[tokio::test]
    async fn values_are_encrypted_with_keys_of_a_plugin() {
        let plugin = super::super::kms::test_plugin::TestPlugin::start().await;
        let directory = tempfile::tempdir().unwrap();
        let inner: Arc<dyn Store> = Arc::new(Embedded::open(directory.path(), Options::default()).unwrap());
        let text = format!(
            "kind: EncryptionConfiguration\nresources: [{{resources: [secrets], providers: [{{kms: {{apiVersion: v2, name: \
             vault, endpoint: '{}'}}}}, {{identity: {{}}}}]}}]",
            plugin.endpoint()
        );
        let encryption = Encryption::new(Configuration::parse(&text).unwrap());
        let store = Encrypted::new(inner.clone(), encryption.clone());
        let place = "/registry/secrets/default/s";
        store.create(place, Bytes::from_static(b"plain"), None).await.unwrap();
        assert!(inner.peek(place).unwrap().value.starts_with(b"k8s:enc:kms:v2:vault:"));
        assert_eq!(&store.peek(place).unwrap().value[..], b"plain");
        let again = Encrypted::new(inner, Encryption::new(Configuration::parse(&text).unwrap()));
        assert_eq!(&again.peek(place).unwrap().value[..], b"plain", "after a restart");
    }
}
