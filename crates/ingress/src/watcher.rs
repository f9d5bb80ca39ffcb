//! Keeps routes, backends and certificates in sync with the API.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_client::{Informer, Informers};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::backends::{Backend, Backends};
use crate::certificates::{self, Certificates, watched_secrets};
use crate::routes::{Table, is_ours};
use crate::secrets::Secrets;

const BY_SERVICE: &str = "service";
/// How long the first TLS connections wait for certificates, which may be missing or not yet readable for this node.
const CERTIFICATES_TIMEOUT: Duration = Duration::from_secs(2);

pub struct Watcher {
    routes: Arc<ArcSwap<Table<Backend>>>,
    backends: Arc<Backends>,
    certificates: Arc<Certificates>,
    ingresses: Arc<Informer<Ingress>>,
    classes: Arc<Informer<IngressClass>>,
    secrets: Secrets,
    services: Arc<Informer<Service>>,
    slices: Arc<Informer<EndpointSlice>>,
    changed: Arc<Changes>,
}

/// Pending changes and their notification.
#[derive(Default)]
struct Changes {
    pending: Mutex<PendingChanges>,
    notify: Notify,
}

#[derive(Default)]
struct PendingChanges {
    routes: bool,
    certificates: bool,
    services: BTreeSet<(String, String)>,
}

/// Starts watching, and waits until everything except certificates is synced.
pub async fn start(informers: &Informers, backends: &Arc<Backends>, certificates: &Arc<Certificates>) -> Watcher {
    let changed = Arc::<Changes>::default();
    let changes = Arc::clone(&changed);
    let watcher = Watcher {
        routes: Arc::default(),
        backends: Arc::clone(backends),
        certificates: Arc::clone(certificates),
        ingresses: informers.of(),
        classes: informers.of(),
        secrets: Secrets::new(informers.client().clone(), move || changes.certificates()),
        services: informers.of(),
        slices: informers.of(),
        changed,
    };
    watcher.slices.add_index(BY_SERVICE, services_of_slice);
    let changed = || Arc::clone(&watcher.changed);
    let changes = changed();
    watcher.ingresses.on_change(move |_| changes.routes());
    let changes = changed();
    watcher.classes.on_change(move |_| changes.routes());
    let changes = changed();
    watcher.services.on_change(move |change| changes.service(key(&change.latest().metadata)));
    let changes = changed();
    watcher.slices.on_change(move |change| {
        let before = change.previous().map(|slice| services_of_slice(slice)).unwrap_or_default();
        for text in services_of_slice(change.latest()).into_iter().chain(before) {
            if let Some((namespace, name)) = text.split_once('/') {
                changes.service((namespace.to_owned(), name.to_owned()));
            }
        }
    });
    watcher.ingresses.synced().await;
    watcher.classes.synced().await;
    watcher.services.synced().await;
    watcher.slices.synced().await;
    watcher.sync();
    watcher
}

impl Changes {
    fn routes(&self) {
        self.pending.lock().routes = true;
        self.notify.notify_one();
    }

    fn certificates(&self) {
        self.pending.lock().certificates = true;
        self.notify.notify_one();
    }

    fn service(&self, key: (String, String)) {
        self.pending.lock().services.insert(key);
        self.notify.notify_one();
    }
}

impl Watcher {
    pub fn routes(&self) -> Arc<ArcSwap<Table<Backend>>> {
        Arc::clone(&self.routes)
    }

    /// Waits until certificates are synced as well: serving the default one instead would be wrong.
    pub async fn certificates_known(&self) {
        let _ = tokio::time::timeout(CERTIFICATES_TIMEOUT, self.secrets.known()).await;
        self.sync();
    }

    pub async fn run(&self) {
        loop {
            self.changed.notify.notified().await;
            self.sync();
        }
    }

    fn sync(&self) {
        let pending = std::mem::take(&mut *self.changed.pending.lock());
        for (namespace, name) in &pending.services {
            self.sync_service(namespace, name);
        }
        if pending.routes || pending.certificates {
            let classes = self.classes.list();
            let mut ours = self.ingresses.list();
            ours.retain(|ingress| is_ours(ingress, &classes));
            if pending.routes {
                self.sync_routes(&ours);
            }
            self.sync_certificates(&ours);
        }
    }

    fn sync_routes(&self, ours: &[Arc<Ingress>]) {
        let mut named = BTreeSet::new();
        let table = Table::build(ours, |target| {
            named.insert((target.namespace.clone(), target.service.clone()));
            self.backends.of(target)
        });
        // Backends get their pods before requests are routed to them.
        for (namespace, name) in &named {
            self.sync_service(namespace, name);
        }
        self.routes.store(Arc::new(table));
        self.backends.retain_used();
    }

    fn sync_certificates(&self, ours: &[Arc<Ingress>]) {
        self.secrets.watch_only(&watched_secrets(ours));
        self.certificates.set(certificates::of_ingresses(ours, |namespace, name| self.secrets.get(namespace, name)));
    }

    fn sync_service(&self, namespace: &str, name: &str) {
        let service = self.services.get(namespace, name);
        let slices = self.slices.by_index(BY_SERVICE, &format!("{namespace}/{name}"));
        self.backends.set_service(namespace, name, service.as_deref(), &slices);
    }
}

fn key(metadata: &ObjectMeta) -> (String, String) {
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

fn services_of_slice(slice: &EndpointSlice) -> Vec<String> {
    let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
    let labels = slice.metadata.labels.iter().flatten();
    let names = labels.filter(|(key, _)| *key == "kubernetes.io/service-name").map(|(_, name)| name);
    names.map(|name| format!("{namespace}/{name}")).collect()
}
