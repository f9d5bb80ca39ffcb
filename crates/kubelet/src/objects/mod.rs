//! Cache of the config maps and secrets that this node's pods refer to, each watched for as long as a pod needs it.
//!
//! A node may only read objects that its pods refer to, so each object has its own watch by name. A change notifies the
//! workers of the affected pods, so that mounted files are updated promptly.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::watch;

#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error("failed to sync {kind} cache: {message}")]
    Refused { kind: &'static str, message: String },
    #[error("failed to sync {kind} cache: timed out waiting for the condition")]
    Late { kind: &'static str },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    ConfigMap,
    Secret,
}

impl Kind {
    pub fn lower(self) -> &'static str {
        if self == Self::ConfigMap { "configmap" } else { "secret" }
    }

    pub fn title(self) -> &'static str {
        if self == Self::ConfigMap { "ConfigMap" } else { "Secret" }
    }
}

/// The content of a config map or secret. It has no `Debug`, so that no log can show it.
pub struct Content {
    pub data: BTreeMap<String, Vec<u8>>,
    /// The binary data of a config map, which is used for files only.
    pub binary: BTreeMap<String, Vec<u8>>,
    /// The type of a secret.
    pub kind: Option<String>,
    pub uid: String,
}

type Key = (Kind, String, String);

#[derive(Clone)]
enum ObjectState {
    NotYet,
    Missing,
    Present(Arc<Content>),
    Failed(String),
}

struct Entry {
    state: watch::Sender<ObjectState>,
    task: tokio::task::AbortHandle,
    subscribers: HashMap<u64, Notify>,
}

#[derive(Clone)]
pub struct ObjectCache(Arc<Inner>);

struct Inner {
    client: Client,
    entries: Mutex<HashMap<Key, Entry>>,
    next: std::sync::atomic::AtomicU64,
}

/// Called after each change of an object that a subscriber has read.
pub type Notify = Arc<dyn Fn() + Send + Sync>;

const SYNC_TIMEOUT: Duration = Duration::from_secs(10);

impl ObjectCache {
    pub fn new(client: Client) -> Self {
        Self(Arc::new(Inner { client, entries: Mutex::default(), next: Default::default() }))
    }

    /// One pod's access: objects that it reads are watched until the subscription is dropped. `notify` must not block.
    pub fn subscribe(&self, notify: Notify) -> Subscription {
        let id = self.0.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Subscription { objects: self.clone(), id, notify }
    }

    fn state_of(&self, key: &Key, subscription: &Subscription) -> watch::Receiver<ObjectState> {
        let mut entries = self.0.entries.lock();
        let entry = entries.entry(key.clone()).or_insert_with(|| {
            let (sender, _) = watch::channel(ObjectState::NotYet);
            let (own, watched, state) = (self.clone(), key.clone(), sender.clone());
            let task = knarr_supervisor::spawn_restarting("kubelet/object-watch", move || {
                watch_object(own.clone(), watched.clone(), state.clone())
            });
            Entry { state: sender, task, subscribers: HashMap::new() }
        });
        entry.subscribers.insert(subscription.id, subscription.notify.clone());
        entry.state.subscribe()
    }

    fn changed(&self, key: &Key) {
        if let Some(entry) = self.0.entries.lock().get(key) {
            entry.subscribers.values().for_each(|notify| notify());
        }
    }
}

pub struct Subscription {
    objects: ObjectCache,
    id: u64,
    notify: Notify,
}

impl Subscription {
    /// Makes the subscriber read its objects again when called.
    pub fn notifier(&self) -> Notify {
        self.notify.clone()
    }

    /// The object as it is now, or none if there is none.
    pub async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Result<Option<Arc<Content>>, ObjectError> {
        let key = (kind, namespace.to_string(), name.to_string());
        let mut state = self.objects.state_of(&key, self);
        let known =
            tokio::time::timeout(SYNC_TIMEOUT, state.wait_for(|known| !matches!(known, ObjectState::NotYet))).await;
        match known {
            Ok(Ok(known)) => match &*known {
                ObjectState::Present(content) => Ok(Some(content.clone())),
                ObjectState::Failed(message) => {
                    Err(ObjectError::Refused { kind: kind.lower(), message: message.clone() })
                }
                ObjectState::Missing | ObjectState::NotYet => Ok(None),
            },
            _ => Err(ObjectError::Late { kind: kind.lower() }),
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.objects.0.entries.lock().retain(|_, entry| {
            entry.subscribers.remove(&self.id);
            if entry.subscribers.is_empty() {
                entry.task.abort();
            }
            !entry.subscribers.is_empty()
        });
    }
}

async fn watch_object(objects: ObjectCache, key: Key, state: watch::Sender<ObjectState>) {
    let client = objects.0.client.clone();
    let (kind, namespace, _) = &key;
    match kind {
        Kind::ConfigMap => {
            watch_kind(Api::<ConfigMap>::namespaced(client, namespace), &objects, &key, &state, |map| Content {
                data: map.data.into_iter().flatten().map(|(key, value)| (key, value.into_bytes())).collect(),
                binary: map.binary_data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect(),
                kind: None,
                uid: map.metadata.uid.unwrap_or_default(),
            })
            .await;
        }
        Kind::Secret => {
            watch_kind(Api::<Secret>::namespaced(client, namespace), &objects, &key, &state, |secret| Content {
                data: secret.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect(),
                binary: BTreeMap::new(),
                kind: secret.type_,
                uid: secret.metadata.uid.unwrap_or_default(),
            })
            .await;
        }
    }
}

async fn watch_kind<K>(
    api: Api<K>,
    objects: &ObjectCache,
    key: &Key,
    state: &watch::Sender<ObjectState>,
    content: impl Fn(K) -> Content,
) where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let config = watcher::Config::default().fields(&format!("metadata.name={}", key.2));
    let mut events = std::pin::pin!(watcher(api, config));
    let mut listed = None;
    let mut backoff = Duration::from_millis(200);
    while let Some(event) = events.next().await {
        let known = match event {
            Ok(Event::Init) => {
                listed = None;
                continue;
            }
            Ok(Event::InitApply(object)) => {
                listed = Some(object);
                continue;
            }
            Ok(Event::InitDone) => match listed.take() {
                Some(object) => ObjectState::Present(Arc::new(content(object))),
                None => ObjectState::Missing,
            },
            Ok(Event::Apply(object)) => ObjectState::Present(Arc::new(content(object))),
            Ok(Event::Delete(_)) => ObjectState::Missing,
            Err(error) => {
                // The last known state is kept while the API server is unreachable.
                if matches!(*state.borrow(), ObjectState::NotYet | ObjectState::Failed(_)) {
                    state.send_replace(ObjectState::Failed(error.to_string()));
                }
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(Duration::from_secs(10));
                continue;
            }
        };
        backoff = Duration::from_millis(200);
        let first = matches!(*state.borrow(), ObjectState::NotYet);
        state.send_replace(known);
        if !first {
            objects.changed(key);
        }
    }
}
