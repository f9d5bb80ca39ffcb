//! Snapshots of claims' volumes: what the snapshot controller and external-snapshotter do.
//!
//! A VolumeSnapshot of a claim gets a VolumeSnapshotContent; the node that has the volume takes the snapshot and writes the
//! outcome to the content, from where it goes to the snapshot. Group snapshots are not supported.

mod content;
mod plan;
mod source;
mod types;
mod volume_snapshot;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use knarr_client::{Change, Informer, WorkQueue, run_workers};
use knarr_csi::messages::ControllerCapability;
use kube::Api;

use crate::driver::Driver;
use crate::meta::{Key, annotation, is_deleted, name, namespace};

pub(crate) use source::{content_source, has_source, is_for_populator, source_node};

use plan::NODE;
use types::{GROUP_VERSION, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};

/// Index of VolumeSnapshots by the claim they are taken of.
const BY_CLAIM: &str = "claim";
/// How often an API server without the kinds is asked for them.
const DISCOVERY_PERIOD: Duration = Duration::from_secs(30);

struct Snapshots {
    driver: Arc<Driver>,
    snapshots: Arc<Informer<VolumeSnapshot>>,
    contents: Arc<Informer<VolumeSnapshotContent>>,
    classes: Arc<Informer<VolumeSnapshotClass>>,
    queue: Arc<WorkQueue<Key>>,
    content_queue: Arc<WorkQueue<String>>,
}

pub(crate) async fn run(driver: Arc<Driver>) {
    if !driver.can(ControllerCapability::CreateDeleteSnapshot) {
        return;
    }
    while driver.kube.list_api_group_resources(GROUP_VERSION).await.is_err() {
        tokio::time::sleep(DISCOVERY_PERIOD).await;
    }
    let controller = Arc::new(Snapshots {
        snapshots: driver.informers.of(),
        contents: driver.informers.of(),
        classes: driver.informers.of(),
        queue: driver.queue(),
        content_queue: driver.queue(),
        driver,
    });
    controller.snapshots.add_index(BY_CLAIM, |snapshot| {
        let claim = snapshot.spec.source.persistent_volume_claim_name.as_ref();
        claim.map(|claim| claim_key(namespace(snapshot), claim)).into_iter().collect()
    });
    controller.watch();
    controller.watch_sources();
    controller.snapshots.synced().await;
    controller.contents.synced().await;
    controller.classes.synced().await;
    let snapshots = {
        let controller = controller.clone();
        run_workers(controller.queue.clone(), Driver::workers(), move |key: Key| {
            let controller = controller.clone();
            async move { controller.reconcile(&key).await }
        })
    };
    let contents = {
        let controller = controller.clone();
        run_workers(controller.content_queue.clone(), Driver::workers(), move |key: String| {
            let controller = controller.clone();
            async move { controller.reconcile_content(&key).await }
        })
    };
    tokio::join!(snapshots, contents);
}

impl Snapshots {
    fn watch(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.snapshots.on_change(move |change| {
            let Some(controller) = weak.upgrade() else { return };
            let snapshot = change.latest();
            controller.queue.add(Key::of(&**snapshot));
            if matches!(change, Change::Deleted(_)) || is_deleted(&**snapshot) {
                controller.content_queue.add(plan::content_name(snapshot));
            }
        });
        let weak = Arc::downgrade(self);
        self.contents.on_change(move |change| {
            let Some(controller) = weak.upgrade() else { return };
            let content = change.latest();
            let target = &content.spec.volume_snapshot_ref;
            if let (Some(namespace), Some(name)) = (target.namespace.clone(), target.name.clone()) {
                controller.queue.add(Key { namespace, name });
            }
            // Our own writes of the status must not end a backoff.
            let relevant = |content: &VolumeSnapshotContent| {
                (is_deleted(content), content.spec.clone(), annotation(content, NODE).map(str::to_owned))
            };
            if change.previous().is_none_or(|old| relevant(old) != relevant(content)) {
                controller.content_queue.add(name(&**content).to_owned());
            }
        });
    }

    /// A snapshot may be older than its claim, or its claim than the volume.
    fn watch_sources(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.driver.claims.on_change(move |change| {
            let (Some(controller), claim) = (weak.upgrade(), change.latest()) else { return };
            let volume = |claim: &PersistentVolumeClaim| claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
            if volume(claim) != change.previous().and_then(|old| volume(old)) {
                controller.queue_snapshots_of(namespace(&**claim), name(&**claim));
            }
        });
        let weak = Arc::downgrade(self);
        self.driver.volumes.on_change(move |change| {
            let (Some(controller), volume) = (weak.upgrade(), change.latest()) else { return };
            let claim = |volume: &PersistentVolume| volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone());
            let claimed_by = claim(volume);
            if claimed_by != change.previous().and_then(|old| claim(old))
                && let Some((namespace, name)) = claimed_by.and_then(|to| to.namespace.zip(to.name))
            {
                controller.queue_snapshots_of(&namespace, &name);
            }
        });
    }

    fn queue_snapshots_of(&self, namespace: &str, claim: &str) {
        let snapshots = self.snapshots.by_index(BY_CLAIM, &claim_key(namespace, claim));
        snapshots.iter().for_each(|snapshot| self.queue.add(Key::of(&**snapshot)));
    }

    fn api(&self, snapshot: &VolumeSnapshot) -> Api<VolumeSnapshot> {
        Api::namespaced(self.driver.kube.clone(), namespace(snapshot))
    }

    fn contents_api(&self) -> Api<VolumeSnapshotContent> {
        Api::all(self.driver.kube.clone())
    }

    /// Whether this driver, and of a local one this node, has the snapshot.
    fn is_mine(&self, content: &VolumeSnapshotContent) -> bool {
        content.spec.driver == self.driver.name
            && (!self.driver.is_local || annotation(content, NODE) == Some(self.driver.node.as_str()))
    }
}

fn claim_key(namespace: &str, claim: &str) -> String {
    format!("{namespace}/{claim}")
}
