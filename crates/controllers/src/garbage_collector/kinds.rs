//! Watches the metadata of every deletable kind, as kinds come and go.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_client::{Change, Informer, Informers, Metadata};
use kube::api::ApiResource;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Collector;
use super::graph::{Object, Work};
use crate::common::discovery::{Kind, discover};
use crate::error::{Error, Result};

/// Kinds whose owner references are ignored.
const IGNORED: [(&str, &str); 2] = [("", "events"), ("events.k8s.io", "events")];

#[derive(Default)]
pub(super) struct Kinds {
    watched: Mutex<HashMap<(String, String), WatchedKind>>,
    served: Mutex<Vec<Arc<Kind>>>,
}

struct WatchedKind {
    kind: Arc<Kind>,
    source: Source,
    since: Instant,
}

/// How long the collector waits for the first list of a kind.
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);

impl WatchedKind {
    /// Whether its objects are unknown, but not for so long that it probably cannot be listed: one broken conversion
    /// webhook must not stop all deletions that wait for dependents.
    fn is_awaited(&self) -> bool {
        !self.source.is_synced() && self.since.elapsed() < SYNC_TIMEOUT
    }
}

/// Where the metadata of a kind comes from.
#[derive(Clone)]
enum Source {
    Metadata(Arc<Informer<Metadata>>),
    /// Other controllers watch all pods already, and no kind has more objects: pods are not watched twice.
    Pods(Arc<Informer<Pod>>),
}

impl Source {
    fn of(kind: &Kind, informers: &Informers) -> Self {
        if kind.resource == ApiResource::erase::<Pod>(&()) {
            Source::Pods(informers.of())
        } else {
            Source::Metadata(informers.metadata(&kind.resource))
        }
    }

    fn is_synced(&self) -> bool {
        match self {
            Source::Metadata(informer) => informer.is_synced(),
            Source::Pods(informer) => informer.is_synced(),
        }
    }

    async fn synced(&self) {
        match self {
            Source::Metadata(informer) => informer.synced().await,
            Source::Pods(informer) => informer.synced().await,
        }
    }

    fn on_change(&self, collector: &Arc<Collector>, kind: Arc<Kind>) {
        let weak = Arc::downgrade(collector);
        let changed = move |meta: &ObjectMeta, is_deleted: bool| {
            let Some(collector) = weak.upgrade() else { return };
            if is_deleted {
                remove(&collector, meta);
            } else {
                let work = collector.graph.lock().put(Object::new(kind.clone(), meta));
                enqueue(&collector, work);
            }
        };
        match self {
            Source::Metadata(informer) => informer
                .on_change(move |change| changed(&change.latest().metadata, matches!(change, Change::Deleted(_)))),
            Source::Pods(informer) => informer
                .on_change(move |change| changed(&change.latest().metadata, matches!(change, Change::Deleted(_)))),
        }
    }

    fn list(&self) -> Vec<ObjectMeta> {
        match self {
            Source::Metadata(informer) => informer.list().iter().map(|object| object.metadata.clone()).collect(),
            Source::Pods(informer) => informer.list().iter().map(|pod| pod.metadata.clone()).collect(),
        }
    }
}

impl Kinds {
    /// The kind that a reference means, at whatever version it is served.
    pub fn of_reference(&self, reference: &OwnerReference) -> Option<Arc<Kind>> {
        let group = reference.api_version.split_once('/').map_or("", |(group, _)| group);
        let served = self.served.lock();
        served.iter().find(|kind| kind.resource.group == group && kind.resource.kind == reference.kind).cloned()
    }

    /// An error until all kinds that can be listed are synced: before that, dependents may be unknown.
    pub fn check_synced(&self) -> Result<()> {
        let watched = self.watched.lock();
        if watched.is_empty() {
            return Err(Error::Later("kinds are not yet known".to_owned()));
        }
        match watched.values().find(|watched| watched.is_awaited()) {
            Some(behind) => Err(Error::Later(format!("{} are not yet known", behind.kind.resource.plural))),
            None => Ok(()),
        }
    }
}

/// Waits until every kind was listed, but not forever for one that cannot be.
pub(super) async fn wait_synced(collector: &Collector) {
    let waiting = async {
        while collector.kinds.check_synced().is_err() {
            let sources: Vec<Source> =
                collector.kinds.watched.lock().values().map(|each| each.source.clone()).collect();
            for source in &sources {
                source.synced().await;
            }
            if sources.is_empty() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    };
    if tokio::time::timeout(SYNC_TIMEOUT, waiting).await.is_err() {
        tracing::warn!("some kinds cannot be listed; owners of their kinds are checked one by one");
    }
}

/// Discovers new and removed kinds periodically, and at once when a CustomResourceDefinition changes.
pub(super) async fn watch_kinds(collector: Arc<Collector>, interval: Duration) {
    let changed = Arc::new(Notify::new());
    let definitions = collector.context.informers.metadata(&ApiResource::erase::<CustomResourceDefinition>(&()));
    let on_definition = changed.clone();
    definitions.on_change(move |_| on_definition.notify_one());
    loop {
        match discover(&collector.context.client).await {
            Ok(found) => {
                let silent = !found.silent.is_empty();
                watch(&collector, found.kinds, silent);
            }
            Err(error) => tracing::warn!(%error, "cannot discover the served resources"),
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = changed.notified() => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    }
}

/// With `partial`, some groups did not respond: kinds that are missing may still exist.
fn watch(collector: &Arc<Collector>, kinds: Vec<Kind>, partial: bool) {
    let kinds: Vec<Arc<Kind>> = kinds.into_iter().map(Arc::new).collect();
    let is_watched = |kind: &Kind| {
        let name = (kind.resource.group.as_str(), kind.resource.plural.as_str());
        kind.can("list") && kind.can("watch") && kind.can("delete") && !IGNORED.contains(&name)
    };
    let desired: HashMap<(String, String), Arc<Kind>> = kinds
        .iter()
        .filter(|kind| is_watched(kind))
        .map(|kind| ((kind.resource.group.clone(), kind.resource.plural.clone()), kind.clone()))
        .collect();
    *collector.kinds.served.lock() = kinds;
    let mut started = Vec::new();
    let mut stopped = Vec::new();
    {
        let mut watched = collector.kinds.watched.lock();
        watched.retain(|key, present| {
            let kept = desired.get(key).map_or(partial, |kind| kind.resource == present.kind.resource);
            if !kept {
                stopped.push((present.kind.clone(), present.source.clone()));
            }
            kept
        });
        for (key, kind) in desired {
            watched.entry(key).or_insert_with(|| {
                let source = Source::of(&kind, &collector.context.informers);
                started.push((kind.clone(), source.clone()));
                WatchedKind { kind, source, since: Instant::now() }
            });
        }
    }
    for (kind, source) in stopped {
        collector.context.informers.remove_metadata(&kind.resource);
        for object in source.list() {
            remove(collector, &object);
        }
    }
    for (kind, source) in started {
        source.on_change(collector, kind);
    }
}

fn remove(collector: &Collector, meta: &ObjectMeta) {
    let uid = meta.uid.as_deref().unwrap_or("");
    let work = collector.graph.lock().remove(uid);
    enqueue(collector, work);
}

fn enqueue(collector: &Collector, work: Work) {
    for uid in work.deletions {
        collector.deletions.add(uid);
    }
    for uid in work.orphanings {
        collector.orphanings.add(uid);
    }
}
