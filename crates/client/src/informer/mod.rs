//! An informer: a local cache of one kind, kept up to date by one list-and-watch.
//!
//! Handlers are called inline and in order, after the cache has been updated: a handler that only queues a key costs no
//! channel and no allocation. When the server has compacted the watch's position (410 Gone), the kind is listed again and
//! handlers see the difference, including deletions.

mod cache;
mod text;

use std::collections::HashSet;
use std::fmt::Debug;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_supervisor::{Run, current_run, panic_message};
use kube::Resource;
use kube::api::{DynamicObject, PartialObjectMeta};
use kube::core::Status;
use kube::runtime::watcher;
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};

use crate::error_chain::error_chain;
use crate::reachability::is_unreachable;
use cache::{Cache, Key};
pub(crate) use text::ObjectText;

/// Identity and owners of an object of any kind, without labels, annotations, spec and status.
pub type Metadata = PartialObjectMeta<DynamicObject>;

/// A kind that an informer can cache.
pub trait Object: Resource + Clone + Serialize + DeserializeOwned + Debug + Send + Sync + 'static {}
impl<K: Resource + Clone + Serialize + DeserializeOwned + Debug + Send + Sync + 'static> Object for K {}

/// One change of the informer's cache.
#[derive(Debug)]
pub enum Change<K> {
    /// A new object.
    Added(Arc<K>),
    /// A new version of an object.
    Updated { old: Arc<K>, new: Arc<K> },
    /// The last known state of a deleted object.
    Deleted(Arc<K>),
}

impl<K> Clone for Change<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Added(object) => Self::Added(object.clone()),
            Self::Updated { old, new } => Self::Updated { old: old.clone(), new: new.clone() },
            Self::Deleted(object) => Self::Deleted(object.clone()),
        }
    }
}

impl<K> Change<K> {
    /// The current state of the object, or its last one.
    pub fn latest(&self) -> &Arc<K> {
        match self {
            Self::Added(object) | Self::Deleted(object) | Self::Updated { new: object, .. } => object,
        }
    }

    /// The previous state of an updated object.
    pub fn previous(&self) -> Option<&Arc<K>> {
        match self {
            Self::Updated { old, .. } => Some(old),
            Self::Added(_) | Self::Deleted(_) => None,
        }
    }
}

/// Returns whether it wants more changes.
type Handler<K> = Box<dyn Fn(&Change<K>) -> bool + Send + Sync>;

/// A cache of one kind with change handlers. Dropping it stops its watch.
pub struct Informer<K: Object> {
    shared: Arc<Shared<K>>,
    task: tokio::task::AbortHandle,
}

struct Shared<K: Object> {
    cache: RwLock<Cache<K>>,
    /// Locked while the cache changes and its handlers run, so that a new handler sees each change exactly once.
    /// Locked before `cache`.
    handlers: Mutex<Vec<Handler<K>>>,
    synced: watch::Sender<bool>,
}

impl<K: Object> Informer<K> {
    /// Starts to apply the stream that `open` opens. `decode` also removes from each object what this process does not read.
    pub(crate) fn start<E: Send + 'static>(open: impl Open<E>, decode: impl Decode<E, K>) -> Self {
        let shared = Arc::new(Shared {
            cache: RwLock::new(Cache::default()),
            handlers: Mutex::new(Vec::new()),
            synced: watch::Sender::new(false),
        });
        let (own, open, decode) = (shared.clone(), Arc::new(open), Arc::new(decode));
        let name = format!("informer/{}", kind_name::<K>());
        // Restarted, it lists again, and handlers see what they missed.
        let task =
            knarr_supervisor::spawn_restarting(name, move || apply_events(own.clone(), open.clone(), decode.clone()));
        Self { shared, task }
    }

    /// The cached object; the namespace of cluster-scoped kinds is empty.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.shared.cache.read().get(namespace, name)
    }

    /// All cached objects.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.shared.cache.read().all().collect()
    }

    /// The cached objects of a namespace.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.shared.cache.read().in_namespace(namespace).collect()
    }

    /// The number of cached objects.
    pub fn len(&self) -> usize {
        self.shared.cache.read().len()
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `read` with every object under the read lock, without copying the list.
    pub fn for_each(&self, mut read: impl FnMut(&Arc<K>)) {
        self.shared.cache.read().all().for_each(|object| read(&object));
    }

    /// Indexes objects by the keys that `keys_of` returns. Adding the same name again has no effect, so all users of a
    /// name must pass the same function.
    pub fn add_index(&self, name: &'static str, keys_of: fn(&K) -> Vec<String>) {
        self.shared.cache.write().add_index(name, keys_of);
    }

    /// The objects under a key of an index; none when there is no such index.
    pub fn by_index(&self, name: &'static str, key: &str) -> Vec<Arc<K>> {
        self.shared.cache.read().by_index(name, key)
    }

    /// The keys of an index that have objects.
    pub fn index_keys(&self, name: &'static str) -> Vec<String> {
        self.shared.cache.read().index_keys(name)
    }

    /// Calls `handle` with `Added` for every cached object, then with each change, from the informer's task.
    ///
    /// It must be fast and must not register handlers on the same informer. It may read any informer.
    pub fn on_change(&self, handle: impl Fn(&Change<K>) + Send + Sync + 'static) {
        self.register(Box::new(move |change| {
            handle(change);
            true
        }));
    }

    /// The same as an unbounded channel, for receivers that cannot work inline.
    pub fn subscribe(&self) -> mpsc::UnboundedReceiver<Change<K>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.register(Box::new(move |change| sender.send(change.clone()).is_ok()));
        receiver
    }

    /// Waits until the first list has been cached.
    pub fn synced(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut synced = self.shared.synced.subscribe();
        let shared = self.shared.clone();
        async move {
            // The sender lives in `shared`, so waiting cannot fail.
            let _ = synced.wait_for(|done| *done).await;
            drop(shared);
        }
    }

    /// Whether the first list has been cached.
    pub fn is_synced(&self) -> bool {
        *self.shared.synced.borrow()
    }

    fn register(&self, handler: Handler<K>) {
        let mut handlers = self.shared.handlers.lock();
        // One after another, and not under the lock: there may be many, and a handler may read the cache.
        let present = self.shared.cache.read().keys();
        let mut present = present.iter().filter_map(|(namespace, name)| self.get(namespace, name));
        if present.all(|object| handler(&Change::Added(object))) {
            handlers.push(belonging_to(current_run(), handler));
        }
    }
}

/// A handler of a component: it is dropped when the component is restarted, and its panic fails only that component.
fn belonging_to<K: Object>(run: Option<Arc<Run>>, handler: Handler<K>) -> Handler<K> {
    Box::new(move |change| {
        if run.as_ref().is_some_and(|run| run.is_over()) {
            return false;
        }
        let handle = || {
            knarr_supervisor::fault::point("handler");
            handler(change)
        };
        let handled = catch_unwind(AssertUnwindSafe(|| match &run {
            Some(run) => run.enter(handle),
            None => handle(),
        }));
        handled.unwrap_or_else(|panic| {
            let (kind, reason) = (kind_name::<K>(), panic_message(&*panic));
            match &run {
                Some(run) => run.fail(format!("its handler of {kind} changes panicked: {reason}")),
                None => tracing::error!(kind, reason, "a handler of changes panicked; it gets no more changes"),
            }
            false
        })
    })
}

impl<K: Object> Drop for Informer<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How far an informer is after an event.
enum Progress {
    /// A list is being received.
    Listing,
    /// The cache is as it was on the server at the time of the event.
    Current,
}

impl<K: Object> Shared<K> {
    /// Applies one event; `listed` are the objects of the list that is being received.
    fn apply_event<E>(
        &self,
        event: watcher::Event<E>,
        decode: &impl Decode<E, K>,
        listed: &mut HashSet<Key>,
    ) -> watcher::Result<Progress> {
        let decode =
            |object| decode(object).map_err(|error| watcher::Error::WatchFailed(kube::Error::SerdeError(error)));
        match event {
            watcher::Event::Init => {
                listed.clear();
                return Ok(Progress::Listing);
            }
            watcher::Event::InitApply(object) => {
                let object = decode(object)?;
                let (namespace, name) = cache::key(object.meta());
                listed.insert((namespace.into(), name.into()));
                self.apply(|cache| cache.put(object));
                return Ok(Progress::Listing);
            }
            watcher::Event::InitDone => {
                let listed = std::mem::take(listed);
                self.apply(|cache| cache.retain(&listed));
                self.synced.send_replace(true);
            }
            watcher::Event::Apply(object) => {
                let object = decode(object)?;
                self.apply(|cache| cache.put(object));
            }
            watcher::Event::Delete(object) => {
                let object = decode(object)?;
                self.apply(|cache| cache.remove(object));
            }
        }
        Ok(Progress::Current)
    }

    fn apply(&self, change: impl FnOnce(&mut Cache<K>) -> Vec<Change<K>>) {
        let mut handlers = self.handlers.lock();
        let changes = change(&mut self.cache.write());
        handlers.retain(|handler| changes.iter().all(handler));
    }
}

/// The events of a watch, before they are decoded.
pub(crate) type Events<E> = BoxStream<'static, watcher::Result<watcher::Event<E>>>;

/// Opens a watch that starts with a list.
pub(crate) trait Open<E>: Fn() -> Events<E> + Send + Sync + 'static {}
impl<E, F: Fn() -> Events<E> + Send + Sync + 'static> Open<E> for F {}

/// Decodes an object of a watch.
pub(crate) trait Decode<E, K>: Fn(E) -> serde_json::Result<K> + Send + Sync + 'static {}
impl<E, K, F: Fn(E) -> serde_json::Result<K> + Send + Sync + 'static> Decode<E, K> for F {}

async fn apply_events<K: Object, E>(shared: Arc<Shared<K>>, open: Arc<impl Open<E>>, decode: Arc<impl Decode<E, K>>) {
    const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
    const MAX_BACKOFF: Duration = Duration::from_secs(10);
    let mut events = open();
    let mut listed: HashSet<Key> = HashSet::new();
    let mut backoff = INITIAL_BACKOFF;
    while let Some(event) = events.next().await {
        match event.and_then(|event| shared.apply_event(event, &*decode, &mut listed)) {
            Ok(Progress::Listing) => {}
            Ok(Progress::Current) => backoff = INITIAL_BACKOFF,
            Err(error) => {
                log_error::<K>(&error);
                tokio::time::sleep(backoff.mul_f64(rand::random_range(0.75..1.25))).await;
                backoff = (backoff * 2).min(MAX_BACKOFF);
                if must_list_again(&error) {
                    events = open();
                }
            }
        }
    }
}

/// Whether the watch cannot go on: an object could not be decoded and is missing, or its position is of no use to the server. The
/// stream would retry that for ever.
fn must_list_again(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchFailed(kube::Error::SerdeError(_)) => true,
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => {
            status.code == 410 || is_too_large_version(status)
        }
        _ => false,
    }
}

/// Whether the server has not reached a resource version, because it was restored to an earlier state.
fn is_too_large_version(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 504 && causes.into_iter().any(|cause| cause.reason == "ResourceVersionTooLarge")
}

/// The name of a kind's type, without its path and parameters.
fn kind_name<K>() -> &'static str {
    let name = std::any::type_name::<K>();
    let name = name.split('<').next().unwrap_or(name);
    name.rsplit("::").next().unwrap_or(name)
}

fn log_error<K>(error: &watcher::Error) {
    let kind = kind_name::<K>();
    match error {
        watcher::Error::WatchFailed(kube::Error::SerdeError(error)) => {
            tracing::warn!(kind, %error, "cannot decode an object; listing again")
        }
        // Watches end regularly every few minutes, and the server may restart.
        watcher::Error::WatchFailed(error) => tracing::debug!(kind, %error, "a watch ended; resuming it"),
        watcher::Error::WatchError(status) if status.code == 410 => {
            tracing::debug!(kind, "the watch fell behind; listing again")
        }
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) if is_unreachable(error) => {
            tracing::debug!(kind, %error, "cannot watch a kind while the API server is unreachable");
        }
        error => tracing::warn!(kind, error = %error_chain(error), "cannot watch a kind; retrying"),
    }
}

/// Removes the managed fields, which only the API server needs.
pub(crate) fn without_managed_fields<K: Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
}

/// Keeps only an object's identity, owners and deletion state.
pub(crate) fn only_identity(object: &mut Metadata) {
    let meta = std::mem::take(&mut object.metadata);
    object.types = None;
    object.metadata = ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        owner_references: meta.owner_references,
        finalizers: meta.finalizers,
        creation_timestamp: meta.creation_timestamp,
        deletion_timestamp: meta.deletion_timestamp,
        deletion_grace_period_seconds: meta.deletion_grace_period_seconds,
        ..ObjectMeta::default()
    };
}

#[cfg(test)]
mod tests;
