//! The VolumeSnapshotContent of a driver: takes and deletes the snapshot that it stands for.

use std::time::Duration;

use knarr_client::time;
use knarr_csi::messages::{
    ControllerCapability, CreateSnapshotRequest, DeleteSnapshotRequest, ListSnapshotsRequest, Snapshot,
};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::Snapshots;
use super::plan::{self, BEING_CREATED, CONTENT_FINALIZER, ContentStep, NODE};
use super::types::VolumeSnapshotContent;
use crate::error::{Error, Result, ignore_not_found};
use crate::meta::{annotation, finalizer_patch, is_deleted, name, uid};
use crate::parameters::Parameters;

/// How often a driver is asked whether a snapshot is ready.
const PROGRESS_PERIOD: Duration = Duration::from_secs(2);

impl Snapshots {
    pub(super) async fn reconcile_content(&self, key: &str) -> Result<()> {
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
