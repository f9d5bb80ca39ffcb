//! Config maps and secrets the pods of this node name, each followed for as long as a pod needs it.
//!
//! A node may only see what its pods refer to, so every object has a watch of its own by name. A change is told to the
//! workers of the pods concerned, which is how mounted files follow within moments.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use crate::worker::Message;

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
    /// What of a config map is no text: it is for files alone.
    pub binary: BTreeMap<String, Vec<u8>>,
    /// The type of a secret.
    pub kind: Option<String>,
    pub uid: String,
}

type Key = (Kind, String, String);

#[derive(Clone)]
enum Known {
    NotYet,
    Missing,
    Present(Arc<Content>),
    Failed(String),
}

struct Entry {
    state: watch::Sender<Known>,
    task: tokio::task::AbortHandle,
    interested: HashMap<u64, UnboundedSender<Message>>,
}

#[derive(Clone)]
pub struct Objects(Arc<Inner>);

struct Inner {
    client: Client,
    entries: Mutex<HashMap<Key, Entry>>,
    next: std::sync::atomic::AtomicU64,
}

const PATIENCE: Duration = Duration::from_secs(10);

impl Objects {
    pub fn new(client: Client) -> Self {
        Self(Arc::new(Inner { client, entries: Mutex::default(), next: Default::default() }))
    }

    /// One pod's access: what it reads is followed until the interest is dropped.
    pub fn interest(&self, worker: UnboundedSender<Message>) -> Interest {
        let id = self.0.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Interest { objects: self.clone(), id, worker }
    }

    fn follow(&self, key: &Key, interest: &Interest) -> watch::Receiver<Known> {
        let mut entries = self.0.entries.lock();
        let entry = entries.entry(key.clone()).or_insert_with(|| {
            let (sender, _) = watch::channel(Known::NotYet);
            let task = tokio::spawn(follow(self.clone(), key.clone(), sender.clone())).abort_handle();
            Entry { state: sender, task, interested: HashMap::new() }
        });
        entry.interested.insert(interest.id, interest.worker.clone());
        entry.state.subscribe()
    }

    fn changed(&self, key: &Key) {
        if let Some(entry) = self.0.entries.lock().get(key) {
            for worker in entry.interested.values() {
                // A worker that has ended needs no news.
                let _ = worker.send(Message::ObjectsChanged);
            }
        }
    }
}

pub struct Interest {
    objects: Objects,
    id: u64,
    worker: UnboundedSender<Message>,
}

impl Interest {
    /// The object as it is now, or none if there is none.
    pub async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Result<Option<Arc<Content>>, ObjectError> {
        let key = (kind, namespace.to_string(), name.to_string());
        let mut state = self.objects.follow(&key, self);
        let known = tokio::time::timeout(PATIENCE, state.wait_for(|known| !matches!(known, Known::NotYet))).await;
        match known {
            Ok(Ok(known)) => match &*known {
                Known::Present(content) => Ok(Some(content.clone())),
                Known::Failed(message) => Err(ObjectError::Refused { kind: kind.lower(), message: message.clone() }),
                Known::Missing | Known::NotYet => Ok(None),
            },
            _ => Err(ObjectError::Late { kind: kind.lower() }),
        }
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.objects.0.entries.lock().retain(|_, entry| {
            entry.interested.remove(&self.id);
            if entry.interested.is_empty() {
                entry.task.abort();
            }
            !entry.interested.is_empty()
        });
    }
}

async fn follow(objects: Objects, key: Key, state: watch::Sender<Known>) {
    let client = objects.0.client.clone();
    let (kind, namespace, _) = &key;
    match kind {
        Kind::ConfigMap => {
            follow_kind(Api::<ConfigMap>::namespaced(client, namespace), &objects, &key, &state, |map| Content {
                data: map.data.into_iter().flatten().map(|(key, value)| (key, value.into_bytes())).collect(),
                binary: map.binary_data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect(),
                kind: None,
                uid: map.metadata.uid.unwrap_or_default(),
            })
            .await;
        }
        Kind::Secret => {
            follow_kind(Api::<Secret>::namespaced(client, namespace), &objects, &key, &state, |secret| Content {
                data: secret.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect(),
                binary: BTreeMap::new(),
                kind: secret.type_,
                uid: secret.metadata.uid.unwrap_or_default(),
            })
            .await;
        }
    }
}

async fn follow_kind<K>(
    api: Api<K>,
    objects: &Objects,
    key: &Key,
    state: &watch::Sender<Known>,
    content: impl Fn(K) -> Content,
) where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let config = watcher::Config::default().fields(&format!("metadata.name={}", key.2));
    let mut events = std::pin::pin!(watcher(api, config));
    let mut listed = None;
    let mut pause = Duration::from_millis(200);
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
                Some(object) => Known::Present(Arc::new(content(object))),
                None => Known::Missing,
            },
            Ok(Event::Apply(object)) => Known::Present(Arc::new(content(object))),
            Ok(Event::Delete(_)) => Known::Missing,
            Err(error) => {
                // What is known stays known while the API is away.
                if matches!(*state.borrow(), Known::NotYet | Known::Failed(_)) {
                    state.send_replace(Known::Failed(error.to_string()));
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(10));
                continue;
            }
        };
        pause = Duration::from_millis(200);
        let first = matches!(*state.borrow(), Known::NotYet);
        state.send_replace(known);
        if !first {
            objects.changed(key);
        }
    }
}
