//! The VolumeSnapshot of a user: creates its content, copies the content's status, and deletes both.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use knarr_client::time;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};

use super::Snapshots;
use super::plan::{self, BOUND_FINALIZER, SOURCE_FINALIZER};
use super::types::{VolumeSnapshot, VolumeSnapshotContent};
use crate::error::{Error, Result, ignore_not_found, is_already_there};
use crate::meta::{Key, finalizer_patch, is_deleted, name, namespace, uid};

impl Snapshots {
    pub(super) async fn reconcile(&self, key: &Key) -> Result<()> {
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
                // A new time would be a change that ends the backoff.
                if reported != Some(message.as_str()) {
                    let error = json!({"time": time::now(), "message": message});
                    self.write(snapshot, json!({"status": {"readyToUse": false, "error": error}})).await?;
                }
                return Err(Error::Refused(message));
            }
        };
        let api = self.api(snapshot);
        // The finalizer is added before the content is created, so that a deletion of the snapshot waits for the content.
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
            // A content that refers to another snapshot is not deleted: naming it gives no right to it.
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
}
