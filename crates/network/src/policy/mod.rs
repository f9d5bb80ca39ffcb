//! Enforces NetworkPolicies, by nftables.
//!
//! Traffic between a pod and its own node is always allowed, so only forwarded packets are checked: once for what their
//! sender may reach, once for who may reach their receiver. One lookup by address finds a pod's policies, whatever their
//! number. `attached` knows new pods before their status does, `compiled` normalizes a policy, `member` is a pod's policy
//! view, `engine` computes the desired tables incrementally (`render` writes rules), and `tables` writes the
//! difference to the kernel.

mod attached;
mod compiled;
mod engine;
mod member;
mod render;
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
use compiled::CompiledPolicy;
use engine::Engine;
use member::PolicyPod;

pub use member::reduce;

/// Delay before a failed transaction is retried.
const RETRY: Duration = Duration::from_secs(1);

/// Configuration of the NetworkPolicy enforcement.
#[derive(Clone, Debug)]
pub struct Settings {
    pub node_name: String,
    /// Directory of the CNI plugin's leases and of the socket by which it reaches us.
    pub data_directory: PathBuf,
}

/// Enforces policies on this node's pods until dropped. Pods are watched only once there is a policy.
pub async fn run(informers: Informers, settings: Settings) {
    let changed = Arc::new(ChangeQueue::default());
    let attachments = Arc::new(Attachments::default());
    let (mark, data) = (Arc::clone(&changed), settings.data_directory.clone());
    let hearing = attached::serve(data, Arc::clone(&attachments), move |pod| mark.add(ChangedObject::Pod(pod)));
    tokio::join!(hearing, enforce(informers, settings, changed, attachments));
}

async fn enforce(informers: Informers, settings: Settings, changed: Arc<ChangeQueue>, attachments: Arc<Attachments>) {
    let policies = informers.of::<NetworkPolicy>();
    let mark = Arc::clone(&changed);
    policies.on_change(move |change| mark.add(ChangedObject::Policy(key(&change.latest().metadata))));
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
        Err(error) => {
            tracing::warn!(%error, "cannot read the CNI leases; pods' addresses are known from their status only")
        }
    }
    let (pods, namespaces) = (informers.of::<Pod>(), informers.of::<Namespace>());
    let mark = Arc::clone(&changed);
    pods.on_change(move |change| mark.add(ChangedObject::Pod(key(&change.latest().metadata))));
    let mark = Arc::clone(&changed);
    namespaces.on_change(move |change| {
        mark.add(ChangedObject::Namespace(change.latest().metadata.name.clone().unwrap_or_default()));
    });
    pods.synced().await;
    namespaces.synced().await;
    let sources = PolicySources {
        policies,
        pods,
        namespaces,
        node_name: settings.node_name,
        attachments: Arc::clone(&attachments),
    };
    let mut engine = Engine::default();
    loop {
        for object in changed.take() {
            sources.update(&mut engine, &object);
        }
        let text = engine.transaction();
        if !text.is_empty() {
            match kernel::run(text).await {
                Ok(()) => engine.installed(),
                Err(error) => {
                    tracing::error!(%error, "cannot update the network policies");
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

/// Removes the tables of a previous process.
async fn clear() {
    let text = tables::removal();
    if let Err(error) = kernel::run(text).await {
        tracing::error!(%error, "cannot remove old network policies");
    }
}

/// An object that may have changed since the last sync.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ChangedObject {
    Namespace(String),
    Pod(String),
    Policy(String),
}

#[derive(Default)]
struct ChangeQueue {
    marked: Mutex<BTreeSet<ChangedObject>>,
    notify: Notify,
}

impl ChangeQueue {
    fn add(&self, object: ChangedObject) {
        self.marked.lock().insert(object);
        self.notify.notify_one();
    }

    fn take(&self) -> BTreeSet<ChangedObject> {
        std::mem::take(&mut *self.marked.lock())
    }

    async fn wait(&self) {
        self.notify.notified().await;
    }
}

/// The objects that policies depend on.
struct PolicySources {
    policies: Arc<Informer<NetworkPolicy>>,
    pods: Arc<Informer<Pod>>,
    namespaces: Arc<Informer<Namespace>>,
    node_name: String,
    attachments: Arc<Attachments>,
}

impl PolicySources {
    fn update(&self, engine: &mut Engine, object: &ChangedObject) {
        let split = |key: &str| {
            let (namespace, name) = key.split_once('/').unwrap_or_default();
            (namespace.to_owned(), name.to_owned())
        };
        match object {
            ChangedObject::Namespace(name) => {
                let labels =
                    self.namespaces.get("", name).map(|found| found.metadata.labels.clone().unwrap_or_default());
                engine.set_namespace(name, labels);
            }
            ChangedObject::Pod(key) => {
                let (namespace, name) = split(key);
                let member = self.pods.get(&namespace, &name).and_then(|pod| {
                    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                    PolicyPod::of(&pod, &self.node_name, self.attachments.addresses(key, uid))
                });
                engine.set_pod(key, member);
            }
            ChangedObject::Policy(key) => {
                let (namespace, name) = split(key);
                let found = self.policies.get(&namespace, &name);
                engine.set_policy(key, found.map(|policy| CompiledPolicy::of(&policy)));
            }
        }
    }
}

fn key(metadata: &ObjectMeta) -> String {
    format!("{}/{}", metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}
