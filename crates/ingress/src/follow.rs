//! Keeping routes, backends and certificates true to the API.

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
use crate::certificates::{self, Certificates, secrets_of};
use crate::routes::{Table, is_ours};
use crate::secrets::Secrets;

const BY_SERVICE: &str = "service";
/// How long the first secure connections wait for certificates, which may not be there or not be ours to read.
const PATIENCE: Duration = Duration::from_secs(2);

pub struct Followed {
    routes: Arc<ArcSwap<Table<Backend>>>,
    backends: Arc<Backends>,
    certificates: Arc<Certificates>,
    ingresses: Arc<Informer<Ingress>>,
    classes: Arc<Informer<IngressClass>>,
    secrets: Secrets,
    services: Arc<Informer<Service>>,
    slices: Arc<Informer<EndpointSlice>>,
    changed: Arc<Changed>,
}

/// What has to be looked at again.
#[derive(Default)]
struct Changed {
    what: Mutex<What>,
    notify: Notify,
}

#[derive(Default)]
struct What {
    routes: bool,
    certificates: bool,
    services: BTreeSet<(String, String)>,
}

/// Starts to follow, and waits until all but certificates is known.
pub async fn start(informers: &Informers, backends: &Arc<Backends>, certificates: &Arc<Certificates>) -> Followed {
    let changed = Arc::<Changed>::default();
    let told = Arc::clone(&changed);
    let followed = Followed {
        routes: Arc::default(),
        backends: Arc::clone(backends),
        certificates: Arc::clone(certificates),
        ingresses: informers.of(),
        classes: informers.of(),
        secrets: Secrets::new(informers.client().clone(), move || told.certificates()),
        services: informers.of(),
        slices: informers.of(),
        changed,
    };
    followed.slices.add_index(BY_SERVICE, services_of_slice);
    let changed = || Arc::clone(&followed.changed);
    let told = changed();
    followed.ingresses.on_change(move |_| told.routes());
    let told = changed();
    followed.classes.on_change(move |_| told.routes());
    let told = changed();
    followed.services.on_change(move |change| told.service(key(&change.latest().metadata)));
    let told = changed();
    followed.slices.on_change(move |change| {
        let before = change.previous().map(|slice| services_of_slice(slice)).unwrap_or_default();
        for text in services_of_slice(change.latest()).into_iter().chain(before) {
            if let Some((namespace, name)) = text.split_once('/') {
                told.service((namespace.to_owned(), name.to_owned()));
            }
        }
    });
    followed.ingresses.synced().await;
    followed.classes.synced().await;
    followed.services.synced().await;
    followed.slices.synced().await;
    followed.look();
    followed
}

impl Changed {
    fn routes(&self) {
        self.what.lock().routes = true;
        self.notify.notify_one();
    }

    fn certificates(&self) {
        self.what.lock().certificates = true;
        self.notify.notify_one();
    }

    fn service(&self, key: (String, String)) {
        self.what.lock().services.insert(key);
        self.notify.notify_one();
    }
}

impl Followed {
    pub fn routes(&self) -> Arc<ArcSwap<Table<Backend>>> {
        Arc::clone(&self.routes)
    }

    /// Waits until certificates are known as well: another one would be wrong.
    pub async fn certificates_known(&self) {
        let _ = tokio::time::timeout(PATIENCE, self.secrets.known()).await;
        self.look();
    }

    pub async fn run(&self) {
        loop {
            self.changed.notify.notified().await;
            self.look();
        }
    }

    fn look(&self) {
        let what = std::mem::take(&mut *self.changed.what.lock());
        for (namespace, name) in &what.services {
            self.look_at_service(namespace, name);
        }
        if what.routes || what.certificates {
            let classes = self.classes.list();
            let mut ours = self.ingresses.list();
            ours.retain(|ingress| is_ours(ingress, &classes));
            if what.routes {
                self.look_at_routes(&ours);
            }
            self.look_at_certificates(&ours);
        }
    }

    fn look_at_routes(&self, ours: &[Arc<Ingress>]) {
        let mut named = BTreeSet::new();
        let table = Table::build(ours, |target| {
            named.insert((target.namespace.clone(), target.service.clone()));
            self.backends.of(target)
        });
        // Backends get their pods before requests can find them.
        for (namespace, name) in &named {
            self.look_at_service(namespace, name);
        }
        self.routes.store(Arc::new(table));
        self.backends.retain_used();
    }

    fn look_at_certificates(&self, ours: &[Arc<Ingress>]) {
        self.secrets.follow(&ours.iter().flat_map(|ingress| secrets_of(ingress)).collect());
        self.certificates.set(certificates::of_ingresses(ours, |namespace, name| self.secrets.get(namespace, name)));
    }

    fn look_at_service(&self, namespace: &str, name: &str) {
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
