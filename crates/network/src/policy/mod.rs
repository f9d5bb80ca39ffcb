//! Network policies: who may talk to whom, by nftables.
//!
//! Traffic between a pod and the node it runs on is always allowed, so only forwarded packets are looked at: once for what
//! their sender may reach, once for who may reach their receiver. One lookup by address finds a pod's policies, whatever
//! their number. `attached` knows new pods before their status does, `compiled` says what a policy means, `member` what a pod is to policies, `engine` keeps the wanted tables
//! true as things change, with work for what changed alone, and `tables` tells the kernel the difference.

mod attached;
mod compiled;
mod engine;
mod member;
mod tables;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_client::{Informer, Informers};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::cni;
use crate::cni::configuration::NETWORK;
use crate::proxy::kernel;
use attached::Attachments;
use compiled::Compiled;
use engine::Engine;
use member::Member;

pub(crate) use attached::announce;
pub use member::reduce;

/// A failed transaction is tried again after this long.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Settings {
    pub node_name: String,
    /// Where the network plugin keeps what it knows, and finds us.
    pub data_directory: PathBuf,
}

/// Enforces policies on this node's pods until dropped. Pods are followed only once there is a policy.
pub async fn run(informers: Informers, settings: Settings) {
    let changed = Arc::new(Changed::default());
    let attachments = Arc::new(Attachments::default());
    let (mark, data) = (Arc::clone(&changed), settings.data_directory.clone());
    let hearing = attached::serve(data, Arc::clone(&attachments), move |pod| mark.add(What::Pod(pod)));
    tokio::join!(hearing, enforce(informers, settings, changed, attachments));
}

async fn enforce(informers: Informers, settings: Settings, changed: Arc<Changed>, attachments: Arc<Attachments>) {
    let policies = informers.of::<NetworkPolicy>();
    let mark = Arc::clone(&changed);
    policies.on_change(move |change| mark.add(What::Policy(key(&change.latest().metadata))));
    policies.synced().await;
    if policies.is_empty() {
        clear().await;
        while policies.is_empty() {
            changed.wait().await;
        }
    }
    attachments.enforce();
    match cni::leases_of(&settings.data_directory, NETWORK) {
        Ok(leases) => attachments.load(leases),
        Err(error) => tracing::warn!(%error, "pods' addresses are known from their status only"),
    }
    let (pods, namespaces) = (informers.of::<Pod>(), informers.of::<Namespace>());
    let mark = Arc::clone(&changed);
    pods.on_change(move |change| mark.add(What::Pod(key(&change.latest().metadata))));
    let mark = Arc::clone(&changed);
    namespaces.on_change(move |change| {
        mark.add(What::Namespace(change.latest().metadata.name.clone().unwrap_or_default()));
    });
    pods.synced().await;
    namespaces.synced().await;
    let seen =
        Seen { policies, pods, namespaces, node_name: settings.node_name, attachments: Arc::clone(&attachments) };
    let mut engine = Engine::default();
    loop {
        for what in changed.take() {
            seen.tell(&mut engine, &what);
        }
        let text = engine.transaction();
        if !text.is_empty() {
            match kernel::run(text).await {
                Ok(()) => engine.installed(),
                Err(error) => {
                    tracing::error!(%error, "the network policies could not be changed");
                    engine.lost();
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
        }
        attachments.confirm(|attached| engine.knows(&attached.pod.key(), &attached.addresses));
        changed.wait().await;
    }
}

/// Takes away what an earlier process left behind.
async fn clear() {
    let text = tables::removal();
    if let Err(error) = kernel::run(text).await {
        tracing::error!(%error, "old network policies could not be removed");
    }
}

/// What may have changed since it was last looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Namespace(String),
    Pod(String),
    Policy(String),
}

#[derive(Default)]
struct Changed {
    marked: Mutex<BTreeSet<What>>,
    notify: Notify,
}

impl Changed {
    fn add(&self, what: What) {
        self.marked.lock().insert(what);
        self.notify.notify_one();
    }

    fn take(&self) -> BTreeSet<What> {
        std::mem::take(&mut *self.marked.lock())
    }

    async fn wait(&self) {
        self.notify.notified().await;
    }
}

/// The API as far as policies go.
struct Seen {
    policies: Arc<Informer<NetworkPolicy>>,
    pods: Arc<Informer<Pod>>,
    namespaces: Arc<Informer<Namespace>>,
    node_name: String,
    attachments: Arc<Attachments>,
}

impl Seen {
    fn tell(&self, engine: &mut Engine, what: &What) {
        let split = |key: &str| {
            let (namespace, name) = key.split_once('/').unwrap_or_default();
            (namespace.to_owned(), name.to_owned())
        };
        match what {
            What::Namespace(name) => {
                let labels =
                    self.namespaces.get("", name).map(|found| found.metadata.labels.clone().unwrap_or_default());
                engine.set_namespace(name, labels);
            }
            What::Pod(key) => {
                let (namespace, name) = split(key);
                let member = self.pods.get(&namespace, &name).and_then(|pod| {
                    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                    Member::of(&pod, &self.node_name, self.attachments.addresses(key, uid))
                });
                engine.set_pod(key, member);
            }
            What::Policy(key) => {
                let (namespace, name) = split(key);
                let found = self.policies.get(&namespace, &name);
                engine.set_policy(key, found.map(|policy| Compiled::of(&policy)));
            }
        }
    }
}

fn key(metadata: &ObjectMeta) -> String {
    format!("{}/{}", metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}
