//! KMS v2: a plugin outside of this process holds the key that encrypts other keys. Values are encrypted with keys derived
//! from a random seed, and the plugin encrypts the seed. The stored format is that of Kubernetes.

mod client;
mod envelope;

#[doc(hidden)]
pub use envelope::fuzz;
#[cfg(test)]
pub(super) mod test_plugin;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use prost::Message;
use sha2::{Digest, Sha256};

use client::{EncryptResponse, KmsClient};
use envelope::{EncryptedObject, SEED_SIZE, SEED_SOURCE, Source};

/// How often the plugin is asked for its status, while it is healthy and while it is not.
const HEALTHY_INTERVAL: Duration = Duration::from_secs(60);
const UNHEALTHY_INTERVAL: Duration = Duration::from_secs(10);
/// How long values are encrypted without the plugin confirming the key.
const WRITE_PERIOD: Duration = Duration::from_secs(3 * 60);
/// How long a failed decryption of a key is remembered: a plugin that hangs would otherwise hold every read.
const FAILURE_PERIOD: Duration = Duration::from_secs(1);
/// There are as many keys as servers were started since the values were last written.
const MAX_CACHED_KEYS: usize = 1 << 16;

/// A KMS plugin and the keys it made or opened.
pub struct KmsProvider {
    pub name: String,
    client: KmsClient,
    writing: ArcSwapOption<WriteKey>,
    opened: Mutex<HashMap<CacheKey, Opened>>,
    /// The result of the last check, and when it ended.
    checked: Mutex<(Result<(), String>, Instant)>,
    /// Held during a check: who needs its result waits for it and does not repeat it.
    checking: tokio::sync::Mutex<()>,
    polling: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

type CacheKey = [u8; 32];

/// The key that encrypts new values.
struct WriteKey {
    key_id: String,
    encrypted_seed: Vec<u8>,
    annotations: BTreeMap<String, Vec<u8>>,
    source: Arc<Source>,
    confirmed: Mutex<Instant>,
}

/// What is known of the key of a value.
enum Opened {
    Source(Arc<Source>),
    Failed(String, Instant),
    /// The plugin was asked; the channel closes when its response is known.
    Asked(tokio::sync::watch::Receiver<()>),
}

impl std::fmt::Debug for KmsProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KmsProvider").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for KmsProvider {
    fn drop(&mut self) {
        if let Some(polling) = self.polling.lock().take() {
            polling.abort();
        }
    }
}

impl KmsProvider {
    /// `endpoint` is `unix:///path`.
    pub fn new(name: &str, endpoint: &str, timeout: Duration) -> Result<Arc<KmsProvider>, String> {
        let unknown = Err("failed to get status: the plugin was not asked yet".to_owned());
        let provider = Arc::new(KmsProvider {
            name: name.to_owned(),
            client: KmsClient::new(endpoint, timeout)?,
            writing: ArcSwapOption::empty(),
            opened: Mutex::default(),
            checked: Mutex::new((unknown, Instant::now())),
            checking: tokio::sync::Mutex::default(),
            polling: Mutex::default(),
        });
        let weak = Arc::downgrade(&provider);
        let polls = Self::poll_while_used(weak, HEALTHY_INTERVAL, UNHEALTHY_INTERVAL);
        let polling = provider.client.spawn(polls);
        *provider.polling.lock() = polling;
        Ok(provider)
    }

    /// The start of stored values of this provider.
    pub fn prefix(&self) -> Vec<u8> {
        format!("k8s:enc:kms:v2:{}:", self.name).into_bytes()
    }

    /// Whether the plugin works, or why not.
    pub fn health(&self) -> Result<(), String> {
        self.checked.lock().0.clone()
    }

    /// Asks the plugin whether it works.
    pub async fn check_now(&self) -> Result<(), String> {
        self.checked_since(Instant::now()).await
    }

    /// Asks the plugin again and again, at an interval that depends on its health.
    pub(super) async fn poll_while_used(provider: Weak<KmsProvider>, healthy: Duration, unhealthy: Duration) {
        while let Some(provider) = provider.upgrade() {
            let is_healthy = provider.poll().await;
            drop(provider);
            tokio::time::sleep(if is_healthy { healthy } else { unhealthy }).await;
        }
    }

    async fn poll(&self) -> bool {
        let checked = self.check_now().await;
        if let Err(error) = &checked {
            tracing::warn!(provider = self.name, error, "the KMS plugin is unhealthy");
        }
        checked.is_ok()
    }

    /// The result of a check that ended after an instant.
    async fn checked_since(&self, since: Instant) -> Result<(), String> {
        let _checking = self.checking.lock().await;
        let (last, ended) = self.checked.lock().clone();
        if ended > since {
            return last;
        }
        // Without polls, the last result would stand for ever.
        let checked = knarr_supervisor::caught(self.check()).await;
        *self.checked.lock() = (checked.clone(), Instant::now());
        checked
    }

    /// Asks the plugin for its status, and makes a new seed if its key has changed.
    async fn check(&self) -> Result<(), String> {
        let status = self.client.status().await.map_err(|error| format!("failed to get status: {error}"))?;
        if status.healthz != "ok" {
            return Err(format!("got unexpected healthz status: {}", status.healthz));
        }
        if !matches!(status.version.as_str(), "v2" | "v2beta1") {
            return Err(format!("unsupported KMSv2 API version: {:?}", status.version));
        }
        envelope::check_key_id(&status.key_id)?;
        match self.writing.load_full() {
            Some(current) if current.key_id == status.key_id => *current.confirmed.lock() = Instant::now(),
            _ => {
                let key = self.new_key().await?;
                if key.key_id != status.key_id {
                    tracing::warn!(
                        provider = self.name,
                        "the KMS plugin encrypted with another key than its status names"
                    );
                }
                self.keep(cache_key(&key.object(Vec::new())), Opened::Source(key.source.clone()));
                self.writing.store(Some(Arc::new(key)));
            }
        }
        Ok(())
    }

    async fn new_key(&self) -> Result<WriteKey, String> {
        let mut seed = vec![0; SEED_SIZE];
        aws_lc_rs::rand::fill(&mut seed).map_err(|_| "no random bytes".to_owned())?;
        let encrypted = self.client.encrypt(seed.clone()).await;
        let EncryptResponse { ciphertext, key_id, annotations } =
            encrypted.map_err(|error| format!("failed to encrypt DEK, error: {error}"))?;
        let key = WriteKey {
            key_id,
            encrypted_seed: ciphertext,
            annotations,
            source: Arc::new(Source::seed(seed)?),
            confirmed: Mutex::new(Instant::now()),
        };
        key.object(vec![0]).check()?;
        Ok(key)
    }

    /// Waits until values can be encrypted, or the plugin failed: the first write may come before the first status.
    pub async fn prepare_write(&self) {
        if self.writing.load().is_none() {
            // `encrypt` reports the failure.
            let _ = self.checked_since(Instant::now()).await;
        }
    }

    /// The value to store.
    pub fn encrypt(&self, plain: &[u8], store_key: &str) -> Result<Vec<u8>, String> {
        let Some(key) = self.writing.load_full() else {
            return Err(self.health().err().unwrap_or_else(|| "the KMS plugin has no key".to_owned()));
        };
        let confirmed = *key.confirmed.lock();
        if confirmed.elapsed() > WRITE_PERIOD {
            let hash = envelope::hash(&key.key_id);
            return Err(format!("encryptedDEKSource with keyID hash {hash:?} expired"));
        }
        let object = key.object(key.source.encrypt(plain, store_key)?);
        object.check()?;
        Ok([self.prefix(), object.encode_to_vec()].concat())
    }

    /// The plain value of a stored one, without its prefix. It does not wait for the plugin: an unknown key is asked for, and
    /// `prepare_read` waits for it.
    pub fn decrypt(self: &Arc<Self>, stored: &[u8], store_key: &str) -> Result<Vec<u8>, String> {
        let object = EncryptedObject::decode(stored).map_err(|error| error.to_string())?;
        object.check()?;
        let source = match self.opened.lock().get(&cache_key(&object)) {
            Some(Opened::Source(source)) => Ok(source.clone()),
            Some(Opened::Failed(error, _)) => Err(error.clone()),
            Some(Opened::Asked(_)) | None => Err("failed to decrypt DEK, error: the KMS plugin was asked".to_owned()),
        };
        if source.is_err() {
            let _ = self.ask(&object);
        }
        source?.decrypt(&object.encrypted_data, store_key)
    }

    /// What to wait for until the key of a stored value, without its prefix, is known; `None` if it is, or if the plugin just
    /// failed.
    pub fn prepare_read(self: &Arc<Self>, stored: &[u8]) -> Option<tokio::sync::watch::Receiver<()>> {
        let object = EncryptedObject::decode(stored).ok()?;
        object.check().ok()?;
        self.ask(&object)
    }

    /// Asks the plugin for an unknown key, once for all who need it, whether or not they wait.
    fn ask(self: &Arc<Self>, object: &EncryptedObject) -> Option<tokio::sync::watch::Receiver<()>> {
        let key = cache_key(object);
        let mut opened = self.opened.lock();
        match opened.get(&key) {
            Some(Opened::Source(_)) => return None,
            Some(Opened::Failed(_, until)) if Instant::now() < *until => return None,
            // A closed channel without a result means that the client was closed.
            Some(Opened::Asked(done)) if done.has_changed().is_ok() => return Some(done.clone()),
            _ => {}
        }
        let (sender, receiver) = tokio::sync::watch::channel(());
        let (provider, object) = (self.clone(), object.clone());
        self.client.spawn(async move {
            let outcome = match knarr_supervisor::caught(provider.open(object)).await {
                Ok(source) => Opened::Source(Arc::new(source)),
                Err(error) => Opened::Failed(error, Instant::now() + FAILURE_PERIOD),
            };
            provider.keep(key, outcome);
            drop(sender);
        });
        insert(&mut opened, key, Opened::Asked(receiver.clone()));
        Some(receiver)
    }

    fn keep(&self, key: CacheKey, outcome: Opened) {
        insert(&mut self.opened.lock(), key, outcome);
    }

    /// Has the plugin decrypt the key of a value.
    async fn open(&self, object: EncryptedObject) -> Result<Source, String> {
        let key = self.client.decrypt(object.encrypted_dek_source, object.key_id, object.annotations).await;
        let key = key.map_err(|error| format!("failed to decrypt DEK, error: {error}"))?;
        if object.source_type == SEED_SOURCE { Source::seed(key) } else { Source::key(key) }
    }
}

fn insert(cache: &mut HashMap<CacheKey, Opened>, key: CacheKey, outcome: Opened) {
    if cache.len() >= MAX_CACHED_KEYS {
        cache.clear();
    }
    cache.insert(key, outcome);
}

impl WriteKey {
    fn object(&self, encrypted_data: Vec<u8>) -> EncryptedObject {
        EncryptedObject {
            encrypted_data,
            key_id: self.key_id.clone(),
            encrypted_dek_source: self.encrypted_seed.clone(),
            annotations: self.annotations.clone(),
            source_type: SEED_SOURCE,
        }
    }
}

fn cache_key(object: &EncryptedObject) -> CacheKey {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    part(&object.source_type.to_be_bytes());
    part(&object.encrypted_dek_source);
    part(object.key_id.as_bytes());
    for (key, value) in &object.annotations {
        part(key.as_bytes());
        part(value);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::test_plugin::TestPlugin;
    use super::*;

    const KEY: &str = "/registry/secrets/default/s";

    async fn healthy(provider: &KmsProvider) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while provider.health().is_err() {
            assert!(Instant::now() < deadline, "{:?}", provider.health());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Decrypts a value once its key is known.
    async fn read(provider: &Arc<KmsProvider>, body: &[u8]) -> Result<Vec<u8>, String> {
        if let Some(mut done) = provider.prepare_read(body) {
            assert!(done.changed().await.is_err(), "nothing is ever sent");
        }
        provider.decrypt(body, KEY)
    }

    #[tokio::test]
    async fn values_are_encrypted_by_way_of_a_plugin() {
        let plugin = TestPlugin::start().await;
        let provider = KmsProvider::new("vault", &plugin.endpoint(), Duration::from_secs(3)).unwrap();
        healthy(&provider).await;
        let stored = provider.encrypt(b"plain", KEY).unwrap();
        assert!(stored.starts_with(b"k8s:enc:kms:v2:vault:") && !stored.windows(5).any(|part| part == b"plain"));
        let body = &stored[provider.prefix().len()..];
        assert_eq!(provider.decrypt(body, KEY).unwrap(), b"plain");
        assert!(provider.decrypt(body, "/registry/secrets/default/other").is_err(), "bound to its place");
        assert_ne!(provider.encrypt(b"plain", KEY).unwrap(), stored);

        // Another server, which has to ask the plugin once for all values of the key.
        let other = KmsProvider::new("vault", &plugin.endpoint(), Duration::from_secs(3)).unwrap();
        healthy(&other).await;
        let before = plugin.decryptions();
        for _ in 0..10 {
            assert_eq!(read(&other, body).await.unwrap(), b"plain");
        }
        assert_eq!(plugin.decryptions() - before, 1);

        // A rotated key.
        plugin.rotate("k2");
        assert!(other.poll().await);
        let rotated = other.encrypt(b"plain", KEY).unwrap();
        let object = EncryptedObject::decode(&rotated[other.prefix().len()..]).unwrap();
        assert_eq!((object.key_id.as_str(), object.source_type), ("k2", SEED_SOURCE));
        assert_eq!(read(&provider, &rotated[provider.prefix().len()..]).await.unwrap(), b"plain");
        assert_eq!(other.decrypt(body, KEY).unwrap(), b"plain", "old values stay readable");
    }

    #[tokio::test]
    async fn a_plugin_that_fails_or_is_absent_is_reported_and_opens_nothing() {
        let plugin = TestPlugin::start().await;
        let provider = KmsProvider::new("vault", &plugin.endpoint(), Duration::from_secs(1)).unwrap();
        healthy(&provider).await;
        let stored = provider.encrypt(b"plain", KEY).unwrap();
        plugin.set_health("sealed");
        assert!(!provider.poll().await);
        assert_eq!(provider.health(), Err("got unexpected healthz status: sealed".to_owned()));
        let directory = tempfile::tempdir().unwrap();
        let nowhere = format!("unix://{}/none.sock", directory.path().display());
        let lost = KmsProvider::new("vault", &nowhere, Duration::from_millis(200)).unwrap();
        let started = Instant::now();
        for _ in 0..100 {
            let error = read(&lost, &stored[lost.prefix().len()..]).await.unwrap_err();
            assert!(error.starts_with("failed to decrypt DEK"), "{error}");
        }
        assert!(started.elapsed() < Duration::from_secs(10), "failures are remembered");
        lost.prepare_write().await;
        assert!(lost.encrypt(b"plain", KEY).unwrap_err().starts_with("failed to get status"));
        for nonsense in [&b""[..], b"nonsense", &[0x0a, 0x01]] {
            assert!(provider.decrypt(nonsense, KEY).is_err());
        }
        assert!(KmsProvider::new("x", "http://a", Duration::from_secs(1)).is_err());
    }
}
