//! CSI volumes: registered drivers, and the way of a volume from attached over staged and published to unstaged.
//!
//! The control plane attaches a volume; this node stages it once and publishes it for each pod that uses it. What may
//! have been done is recorded on disk before a driver is called, so that it can be undone whatever happens: after a
//! failed or lost call, after a restart, and for pods that are gone. At most one operation per volume is in progress.
//!
//! Start reading at [`Csi::mount`] in `mount.rs`.

mod cluster;
mod drivers;
mod error;
mod expand;
mod limits;
mod mount;
mod node_info;
mod paths;
mod policy;
mod publish;
mod reconstruct;
mod record;
mod registration;
mod stage;
mod state;
mod stats;
mod sweep;
mod unmount;
mod volume;

#[cfg(test)]
mod fake_api;
#[cfg(test)]
mod fake_driver;
#[cfg(test)]
mod tests;

pub use error::CsiError;
pub use mount::MountRequest;
pub use stats::VolumeStats;
pub use volume::CsiVolume;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSIDriver;
use knarr_client::Informer;
use tokio::sync::Notify;

use crate::counters::Counters;
use crate::settings::Settings;
use crate::tokens::Tokens;
use drivers::Drivers;
use node_info::NodeInfo;
use paths::Paths;
use policy::DriverPolicy;
use state::{Condition, State};

/// How long a mount waits for the list of drivers.
const POLICY_TIMEOUT: Duration = Duration::from_secs(30);

/// The CSI volumes of this node.
pub struct Csi {
    paths: Paths,
    node_name: String,
    client: kube::Client,
    tokens: Tokens,
    objects: Arc<dyn ApiObjects>,
    metrics: Arc<Counters>,
    drivers: Drivers,
    state: State,
    node_info: NodeInfo,
    stats: stats::Cache,
    /// Volumes may be left to unstage.
    unused: Notify,
    /// The volumes in use changed: the node's status must say so.
    pub in_use_changed: Notify,
    /// How long a driver may take for a call.
    call_timeout: Duration,
    /// Plugins of DRA drivers register in the same directory.
    pub dra: OnceLock<Arc<crate::dra::Dra>>,
}

/// What [`Csi::new`] needs from the kubelet.
pub struct Parts {
    pub client: kube::Client,
    pub tokens: Tokens,
    pub objects: Arc<dyn ApiObjects>,
    pub metrics: Arc<Counters>,
}

/// Objects of the API that are kept up to date.
pub trait ApiObjects: Send + Sync {
    /// The Node object of this node; none while it is unknown.
    fn node(&self) -> Option<Arc<Node>>;

    /// The object of a driver, once it is known whether there is one.
    fn driver<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<Arc<CSIDriver>>>;
}

/// The same from informers.
pub struct InformedObjects {
    pub node_name: String,
    pub node: Arc<Informer<Node>>,
    pub drivers: Arc<Informer<CSIDriver>>,
}

impl ApiObjects for InformedObjects {
    fn node(&self) -> Option<Arc<Node>> {
        self.node.get("", &self.node_name)
    }

    fn driver<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<Arc<CSIDriver>>> {
        Box::pin(async move {
            self.drivers.synced().await;
            self.drivers.get("", name)
        })
    }
}

impl Csi {
    /// Reads what a previous process left on disk.
    pub fn new(settings: &Settings, parts: Parts) -> Arc<Self> {
        Self::with_timeout(settings, parts, drivers::CALL_TIMEOUT)
    }

    fn with_timeout(settings: &Settings, parts: Parts, call_timeout: Duration) -> Arc<Self> {
        let Parts { client, tokens, objects, metrics } = parts;
        let csi = Arc::new(Self {
            paths: Paths::new(settings),
            node_name: settings.node_name.clone(),
            node_info: NodeInfo::new(client.clone(), &settings.node_name),
            client,
            tokens,
            objects,
            metrics,
            drivers: Drivers::default(),
            state: State::default(),
            stats: stats::Cache::default(),
            unused: Notify::new(),
            in_use_changed: Notify::new(),
            call_timeout,
            dra: OnceLock::new(),
        });
        csi.reconstruct();
        csi
    }

    /// The disks that pods use without a driver, by their names in the node's status: the control plane gives them to no
    /// other node meanwhile.
    pub fn set_disks(&self, disks: BTreeSet<String>) {
        if self.state.set_disks(disks) {
            self.in_use_changed.notify_one();
        }
    }

    /// The Node object changed: volumes may be attached.
    pub fn node_changed(&self, node: &Node) {
        let status = node.status.as_ref();
        for volume in status.and_then(|status| status.volumes_attached.as_ref()).into_iter().flatten() {
            self.state.wake(&Condition::Attached(volume.name.clone()));
        }
        self.node_info.wake();
    }

    /// The volumes that the node's status must name as in use. None while that is unknown: what the API has must stay.
    pub fn volumes_in_use(&self) -> Option<Vec<String>> {
        let node = self.objects.node()?;
        let status = node.status.as_ref();
        let attached = status.and_then(|status| status.volumes_attached.as_ref()).into_iter().flatten();
        let known: BTreeSet<String> = attached.map(|volume| volume.name.clone()).collect();
        let listed = status.and_then(|status| status.volumes_in_use.as_ref());
        let in_use = self.state.in_use(&known);
        // From here on the control plane may detach the others: they are used again only after they were reported again.
        self.state.retain_reported(&in_use);
        // An empty list is written only to replace another one.
        (!in_use.is_empty() || listed.is_some_and(|listed| !listed.is_empty())).then_some(in_use)
    }

    /// The API has these volumes in the node's status.
    pub fn set_reported(&self, names: &[String]) {
        self.state.set_reported(names);
    }

    fn is_attached(&self, name: &str) -> bool {
        let node = self.objects.node();
        let status = node.as_ref().and_then(|node| node.status.as_ref());
        let mut attached = status.and_then(|status| status.volumes_attached.as_ref()).into_iter().flatten();
        attached.any(|volume| volume.name == name)
    }

    /// Keeps the CSINode object for as long as the node runs.
    pub async fn keep_node_info(self: Arc<Self>) {
        self.node_info.keep(|| self.objects.node()?.metadata.uid.clone()).await;
    }

    /// None if the API server does not say in time.
    async fn policy(&self, driver: &str) -> Option<DriverPolicy> {
        let driver = tokio::time::timeout(POLICY_TIMEOUT, self.objects.driver(driver)).await.ok()?;
        Some(DriverPolicy::of(driver.as_deref()))
    }
}
