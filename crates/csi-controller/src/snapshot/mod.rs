//! Snapshots of claims' volumes: what the snapshot controller and external-snapshotter do.
//!
//! A VolumeSnapshot of a claim gets a VolumeSnapshotContent; the node that has the volume takes the snapshot and writes the
//! outcome to the content, from where it goes to the snapshot. Group snapshots are not supported.

mod plan;
mod source;
mod types;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use knarr_client::{Change, Informer, WorkQueue, run_workers, time};
use knarr_csi::messages::{
    ControllerCapability, CreateSnapshotRequest, DeleteSnapshotRequest, ListSnapshotsRequest, Snapshot,
};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};

use crate::driver::Driver;
use crate::error::{Error, Result, ignore_not_found, is_already_there};
use crate::meta::{Key, annotation, finalizer_patch, is_deleted, name, namespace, uid};
use crate::parameters::Parameters;

pub(crate) use source::{content_source, has_source, is_for_populator, source_node};

use plan::{BEING_CREATED, BOUND_FINALIZER, CONTENT_FINALIZER, ContentStep, NODE, SOURCE_FINALIZER};
use types::{GROUP_VERSION, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};

/// How often an API server without the kinds is asked for them.
const DISCOVERY_PERIOD: Duration = Duration::from_secs(30);
/// How often a driver is asked whether a snapshot is ready.
const PROGRESS_PERIOD: Duration = Duration::from_secs(2);

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
    controller.watch();
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

    fn api(&self, snapshot: &VolumeSnapshot) -> Api<VolumeSnapshot> {
        Api::namespaced(self.driver.kube.clone(), namespace(snapshot))
    }

    fn contents_api(&self) -> Api<VolumeSnapshotContent> {
        Api::all(self.driver.kube.clone())
    }

    async fn reconcile(&self, key: &Key) -> Result<()> {
        let Some(snapshot) = self.snapshots.get(&key.namespace, &key.name) else { return Ok(()) };
        let content = self.contents.get("", &plan::content_name(&snapshot));
        if is_deleted(&*snapshot) {
            return self.delete(&snapshot, content.as_deref()).await;
        }
        match content {
            Some(content) if self.is_mine(&content) => self.bind(&snapshot, &content).await,
            Some(_) => Ok(()),
            None => self.request(&snapshot).await,
        }
    }

    /// Whether this driver, and of a local one this node, has the snapshot.
    fn is_mine(&self, content: &VolumeSnapshotContent) -> bool {
        content.spec.driver == self.driver.name
            && (!self.driver.is_local || annotation(content, NODE) == Some(self.driver.node.as_str()))
    }

    /// The volume of the claim that the snapshot is taken of, if it is here.
    fn volume_of(&self, snapshot: &VolumeSnapshot) -> Option<Arc<PersistentVolume>> {
        let claim = snapshot.spec.source.persistent_volume_claim_name.as_deref()?;
        self.driver.volume_of(&*self.driver.claims.get(namespace(snapshot), claim)?)
    }

    /// Creates the content, whose reconciliation takes the snapshot.
    async fn request(&self, snapshot: &VolumeSnapshot) -> Result<()> {
        let driver = &self.driver;
        let Some(volume) = self.volume_of(snapshot) else { return Ok(()) };
        let classes = self.classes.list();
        let class = match plan::class_of(snapshot, classes.iter().map(|class| &**class), &driver.name) {
            Ok(class) => class,
            Err(message) => {
                driver.recorder.warning(
                    snapshot,
                    "GetSnapshotClassFailed",
                    format!("Failed to get snapshot class with error {message}"),
                );
                let reported = snapshot.status.as_ref().and_then(|status| status.error.as_ref()?.message.as_deref());
                // A new time alone would be a change that ends the backoff.
                if reported != Some(message.as_str()) {
                    let error = json!({"time": time::now(), "message": message});
                    self.write(snapshot, json!({"status": {"readyToUse": false, "error": error}})).await?;
                }
                return Err(Error::Refused(message));
            }
        };
        let api = self.api(snapshot);
        // Before the content: whoever deletes the snapshot must wait for it.
        let mut latest = snapshot.clone();
        for finalizer in [SOURCE_FINALIZER, BOUND_FINALIZER] {
            if let Some(patch) = finalizer_patch(&latest.metadata, finalizer, true) {
                latest = api.patch(name(snapshot), &PatchParams::default(), &Patch::Merge(patch)).await?;
            }
        }
        if latest.spec.volume_snapshot_class_name.is_none() {
            let patch = json!({"spec": {"volumeSnapshotClassName": name(class)}});
            latest = api.patch(name(snapshot), &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        let node = driver.is_local.then_some(driver.node.as_str());
        let content = plan::content(&latest, class, &volume, node);
        match self.contents_api().create(&PostParams::default(), &content).await {
            Ok(_) => {
                let message = format!(
                    "Waiting for a snapshot {}/{} to be created by the CSI driver.",
                    namespace(snapshot),
                    name(snapshot)
                );
                driver.recorder.normal(snapshot, "CreatingSnapshot", message);
            }
            Err(error) if is_already_there(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Brings the snapshot's status up to its content's.
    async fn bind(&self, snapshot: &VolumeSnapshot, content: &VolumeSnapshotContent) -> Result<()> {
        let target = &content.spec.volume_snapshot_ref;
        let is_for =
            target.name.as_deref() == Some(name(snapshot)) && target.namespace.as_deref() == Some(namespace(snapshot));
        match target.uid.as_deref().filter(|uid| !uid.is_empty()) {
            _ if !is_for => {
                return Err(Error::Refused(format!("VolumeSnapshotContent {} is for another snapshot", name(content))));
            }
            Some(other) if other != uid(snapshot) => {
                return Err(Error::Refused(format!(
                    "VolumeSnapshotContent {} is bound to another snapshot",
                    name(content)
                )));
            }
            Some(_) => {}
            // Created by hand: completed by the first snapshot that names it.
            None => {
                let patch = Patch::Merge(json!({"spec": {"volumeSnapshotRef": {"uid": uid(snapshot)}}}));
                self.contents_api().patch(name(content), &PatchParams::default(), &patch).await?;
            }
        }
        if let Some(patch) = finalizer_patch(&snapshot.metadata, BOUND_FINALIZER, true) {
            self.api(snapshot).patch(name(snapshot), &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        let Some(status) = plan::status(snapshot, content) else { return Ok(()) };
        let was = snapshot.status.clone().unwrap_or_default();
        let mut patch = json!({"status": status});
        if status.error.is_none() {
            patch["status"]["error"] = Value::Null;
        }
        self.write(snapshot, patch).await?;
        let whose = format!("{}/{}", namespace(snapshot), name(snapshot));
        let recorder = &self.driver.recorder;
        if was.creation_time.is_none() && status.creation_time.is_some() {
            recorder.normal(
                snapshot,
                "SnapshotCreated",
                format!("Snapshot {whose} was successfully created by the CSI driver."),
            );
        }
        if was.ready_to_use != Some(true) && status.ready_to_use == Some(true) {
            recorder.normal(snapshot, "SnapshotReady", format!("Snapshot {whose} is ready to use."));
        }
        Ok(())
    }

    async fn write(&self, snapshot: &VolumeSnapshot, patch: Value) -> Result<()> {
        let patch = Patch::Merge(patch);
        ignore_not_found(self.api(snapshot).patch_status(name(snapshot), &PatchParams::default(), &patch).await)?;
        Ok(())
    }

    async fn delete(&self, snapshot: &VolumeSnapshot, content: Option<&VolumeSnapshotContent>) -> Result<()> {
        match content {
            Some(content) if !self.is_mine(content) => return Ok(()),
            // Whoever names the content of another snapshot has no right to it.
            Some(content) if content.spec.deletion_policy == "Delete" && plan::is_bound(snapshot, content) => {
                if !is_deleted(content) {
                    let same = Preconditions { uid: Some(uid(content).to_owned()), resource_version: None };
                    let params = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
                    ignore_not_found(self.contents_api().delete(name(content), &params).await)?;
                }
                // The snapshot goes when its content has gone.
                return Ok(());
            }
            Some(_) => {}
            None if self.volume_of(snapshot).is_some() || self.was_mine(snapshot) => {}
            None if self.has_lost_content(snapshot).await? => {}
            None => return Ok(()),
        }
        let mut latest = snapshot.clone();
        for finalizer in [SOURCE_FINALIZER, BOUND_FINALIZER] {
            if let Some(patch) = finalizer_patch(&latest.metadata, finalizer, false) {
                let api = self.api(snapshot);
                let patched = api.patch(name(snapshot), &PatchParams::default(), &Patch::Merge(patch)).await;
                let Some(patched) = ignore_not_found(patched)? else { return Ok(()) };
                latest = patched;
            }
        }
        Ok(())
    }

    /// Whether the class of a snapshot whose content and volume are gone is this driver's. Any of its nodes may finish then.
    fn was_mine(&self, snapshot: &VolumeSnapshot) -> bool {
        let class = snapshot.spec.volume_snapshot_class_name.as_deref().and_then(|name| self.classes.get("", name));
        class.is_some_and(|class| class.driver == self.driver.name)
    }

    /// Whether a snapshot had a content that is gone. Nothing says then whose it was: any driver may finish.
    async fn has_lost_content(&self, snapshot: &VolumeSnapshot) -> Result<bool> {
        if !plan::had_content(snapshot) {
            return Ok(false);
        }
        // The cache may not show it yet.
        Ok(self.contents_api().get_opt(&plan::content_name(snapshot)).await?.is_none())
    }

    async fn reconcile_content(&self, key: &str) -> Result<()> {
        let Some(content) = self.contents.get("", key).filter(|own| own.spec.driver == self.driver.name) else {
            return Ok(());
        };
        if !self.is_mine(&content) {
            return self.adopt(&content).await;
        }
        let target = &content.spec.volume_snapshot_ref;
        let snapshot = self
            .snapshots
            .get(target.namespace.as_deref().unwrap_or_default(), target.name.as_deref().unwrap_or_default())
            .filter(|snapshot| target.uid.as_deref() == Some(uid(&**snapshot)));
        let exists = snapshot.is_some_and(|snapshot| !is_deleted(&*snapshot));
        match plan::plan_content(&content, exists) {
            ContentStep::Nothing => Ok(()),
            ContentStep::Create => self.take(&content).await,
            ContentStep::Delete => {
                self.delete_taken(&content).await?;
                self.release(&content).await
            }
            ContentStep::Release => self.release(&content).await,
        }
    }

    /// A content created by hand names a snapshot that one node has: that node serves it.
    async fn adopt(&self, content: &VolumeSnapshotContent) -> Result<()> {
        let Some(handle) = content.spec.source.snapshot_handle.clone() else { return Ok(()) };
        if annotation(content, NODE).is_some() || !self.driver.can(ControllerCapability::ListSnapshots) {
            return Ok(());
        }
        if self.find(&handle).await?.is_none() {
            return Ok(());
        }
        let patch = Patch::Merge(json!({"metadata": {"annotations": {NODE: self.driver.node}}}));
        self.contents_api().patch(name(content), &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn find(&self, handle: &str) -> Result<Option<Snapshot>> {
        let request = ListSnapshotsRequest { snapshot_id: handle.to_owned(), ..ListSnapshotsRequest::default() };
        let found = self.driver.csi.list_snapshots(request).await?;
        Ok(found.entries.into_iter().filter_map(|entry| entry.snapshot).find(|snapshot| snapshot.snapshot_id == handle))
    }

    async fn take(&self, content: &VolumeSnapshotContent) -> Result<()> {
        let taken = match &content.spec.source.snapshot_handle {
            Some(handle) => self
                .find(handle)
                .await
                .and_then(|found| found.ok_or_else(|| Error::Refused(format!("the driver has no snapshot {handle}")))),
            None => self.create(content).await,
        };
        match taken {
            Ok(taken) => {
                let created = taken
                    .creation_time
                    .map(|at| at.seconds.saturating_mul(1_000_000_000).saturating_add(at.nanos.into()));
                let status = json!({"snapshotHandle": taken.snapshot_id, "readyToUse": taken.ready_to_use,
                    "restoreSize": taken.size_bytes, "creationTime": created, "error": null});
                self.write_content(content, status).await?;
                self.driver.space_changed.notify_one();
                if !taken.ready_to_use {
                    self.content_queue.add_after(name(content).to_owned(), PROGRESS_PERIOD);
                }
                Ok(())
            }
            Err(error) => {
                let message = format!(
                    "Failed to check and update snapshot content: failed to take snapshot of the volume {}: \"{error}\"",
                    content.spec.source.volume_handle.as_deref().unwrap_or_default()
                );
                self.driver.recorder.warning(content, "SnapshotContentCheckandUpdateFailed", message.clone());
                let error_status = json!({"readyToUse": false, "error": {"time": time::now(), "message": message}});
                self.write_content(content, error_status).await?;
                Err(error)
            }
        }
    }

    async fn write_content(&self, content: &VolumeSnapshotContent, status: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"status": status}));
        ignore_not_found(self.contents_api().patch_status(name(content), &PatchParams::default(), &patch).await)?;
        Ok(())
    }

    /// Takes the snapshot, or returns the one that was taken: the name decides.
    async fn create(&self, content: &VolumeSnapshotContent) -> Result<Snapshot> {
        if annotation(content, BEING_CREATED).is_none() {
            // Before the call: a snapshot may exist from now on, and must be deleted with the content.
            let patch = Patch::Merge(json!({"metadata": {"annotations": {BEING_CREATED: "yes"}}}));
            self.contents_api().patch(name(content), &PatchParams::default(), &patch).await?;
        }
        let class = content.spec.volume_snapshot_class_name.as_deref().and_then(|class| self.classes.get("", class));
        let parameters = class.and_then(|class| class.parameters.clone());
        let parameters = Parameters::parse(parameters.as_ref()).map_err(Error::Refused)?;
        let request = CreateSnapshotRequest {
            source_volume_id: content.spec.source.volume_handle.clone().unwrap_or_default(),
            name: format!("snapshot-{}", content.spec.volume_snapshot_ref.uid.as_deref().unwrap_or_default()),
            secrets: Vec::new(),
            parameters: parameters.driver,
        };
        let taken = self.driver.csi.create_snapshot(request).await?.snapshot;
        taken.ok_or_else(|| Error::Later("the driver returned no snapshot".to_owned()))
    }

    async fn delete_taken(&self, content: &VolumeSnapshotContent) -> Result<()> {
        let known = content.status.as_ref().and_then(|status| status.snapshot_handle.clone());
        let handle = match known.or_else(|| content.spec.source.snapshot_handle.clone()) {
            Some(handle) => handle,
            // The process was killed before it wrote the handle.
            None => match self.create(content).await {
                Ok(taken) => taken.snapshot_id,
                Err(Error::Call(error)) if error.is_final() => return Ok(()),
                Err(error) => return Err(error),
            },
        };
        self.driver.csi.delete_snapshot(DeleteSnapshotRequest { snapshot_id: handle, secrets: Vec::new() }).await?;
        self.driver.space_changed.notify_one();
        Ok(())
    }

    async fn release(&self, content: &VolumeSnapshotContent) -> Result<()> {
        let api = self.contents_api();
        let Some(latest) = api.get_opt(name(content)).await?.filter(|latest| uid(latest) == uid(content)) else {
            return Ok(());
        };
        if let Some(patch) = finalizer_patch(&latest.metadata, CONTENT_FINALIZER, false) {
            ignore_not_found(api.patch(name(content), &PatchParams::default(), &Patch::Merge(patch)).await)?;
        }
        Ok(())
    }
}
