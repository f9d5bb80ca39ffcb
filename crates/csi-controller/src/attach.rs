//! Attaches volumes to nodes as VolumeAttachments request, as external-attacher does.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use knarr_client::{Change, Informer, run_workers, time};
use knarr_csi::messages::{
    ControllerCapability, ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, StringMap,
};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::driver::Driver;
use crate::error::{Error, Result, ignore_not_found};
use crate::meta::{finalizer_patch, has_finalizer, is_deleted, name, uid};
use crate::provision::capability;

pub(crate) async fn run(driver: Arc<Driver>) {
    let csi_nodes: Arc<Informer<CSINode>> = driver.informers.of();
    csi_nodes.synced().await;
    let queue = driver.queue::<String>();
    let added = queue.clone();
    driver.attachments.on_change(move |change| {
        let relevant = |attachment: &VolumeAttachment| (uid(attachment).to_owned(), is_deleted(attachment));
        let attachment = change.latest();
        let has_changed = change.previous().is_none_or(|old| relevant(old) != relevant(attachment));
        if !matches!(change, Change::Deleted(_)) && has_changed {
            added.add(name(&**attachment).to_owned());
        }
    });
    run_workers(queue, Driver::workers(), move |key: String| {
        let attacher = Attacher { driver: driver.clone(), csi_nodes: csi_nodes.clone() };
        async move {
            let attachment = attacher.driver.attachments.get("", &key);
            let Some(attachment) = attachment.filter(|own| own.spec.attacher == attacher.driver.name) else {
                return Ok::<(), Error>(());
            };
            attacher.reconcile(&attachment).await
        }
    })
    .await;
}

struct Attacher {
    driver: Arc<Driver>,
    csi_nodes: Arc<Informer<CSINode>>,
}

impl Attacher {
    /// The name that external-attacher uses, so that either can finish what the other started.
    fn finalizer(&self) -> String {
        format!("external-attacher/{}", self.driver.name.replace(['/', '.'], "-"))
    }

    async fn reconcile(&self, attachment: &VolumeAttachment) -> Result<()> {
        // Of a driver with topology, the node of the volume attaches it.
        if self.driver.is_local && attachment.spec.node_name != self.driver.node {
            return Ok(());
        }
        let is_attached = attachment.status.as_ref().is_some_and(|status| status.attached);
        let outcome = match is_deleted(attachment) {
            true if has_finalizer(attachment, &self.finalizer()) => self.detach(attachment).await,
            true => Ok(()),
            false if is_attached => Ok(()),
            false => self.attach(attachment).await,
        };
        if let Err(error) = &outcome {
            let field = if is_deleted(attachment) { "detachError" } else { "attachError" };
            let report = json!({"time": time::now(), "message": error.to_string()});
            self.write(attachment, json!({"status": {"attached": is_attached, field: report}})).await?;
        }
        outcome
    }

    async fn write(&self, attachment: &VolumeAttachment, patch: Value) -> Result<()> {
        let api: Api<VolumeAttachment> = Api::all(self.driver.kube.clone());
        let patch = Patch::Merge(patch);
        ignore_not_found(api.patch_status(name(attachment), &PatchParams::default(), &patch).await)?;
        Ok(())
    }

    fn calls_driver(&self) -> bool {
        self.driver.can(ControllerCapability::PublishUnpublishVolume)
    }

    async fn attach(&self, attachment: &VolumeAttachment) -> Result<()> {
        let mut context = StringMap::new();
        if self.calls_driver() {
            let (volume, spec) = self.source(attachment)?;
            // Before the call: what may be attached must be detached.
            self.set_finalizer(attachment, true).await?;
            if let Some(volume) = volume {
                self.protect(&volume, true).await?;
            }
            let request = publish_request(&self.driver, self.node_id(&attachment.spec.node_name)?, &spec);
            context = self.driver.csi.controller_publish_volume(request).await?.publish_context;
        }
        let metadata = if context.is_empty() { Value::Null } else { json!(context) };
        let status =
            json!({"attached": true, "attachmentMetadata": metadata, "attachError": null, "detachError": null});
        self.write(attachment, json!({"status": status})).await
    }

    async fn detach(&self, attachment: &VolumeAttachment) -> Result<()> {
        let (volume, spec) = self.source(attachment)?;
        let request = ControllerUnpublishVolumeRequest {
            volume_id: spec.csi.map(|source| source.volume_handle).unwrap_or_default(),
            node_id: self.node_id(&attachment.spec.node_name)?,
            secrets: Vec::new(),
        };
        self.driver.csi.controller_unpublish_volume(request).await?;
        if let Some(volume) = volume.filter(|volume| !self.is_attached_elsewhere(volume, attachment)) {
            self.protect(&volume, false).await?;
        }
        self.set_finalizer(attachment, false).await
    }

    fn source(&self, attachment: &VolumeAttachment) -> Result<(Option<Arc<PersistentVolume>>, PersistentVolumeSpec)> {
        let source = &attachment.spec.source;
        if let Some(spec) = &source.inline_volume_spec {
            return Ok((None, spec.clone()));
        }
        let volume = source.persistent_volume_name.as_deref().unwrap_or_default();
        let missing = || Error::Later(format!("persistentvolume \"{volume}\" not found"));
        let volume = self.driver.volumes.get("", volume).ok_or_else(missing)?;
        let spec = volume.spec.clone().unwrap_or_default();
        Ok((Some(volume), spec))
    }

    fn node_id(&self, node: &str) -> Result<String> {
        let found = self.csi_nodes.get("", node);
        let drivers = found.iter().flat_map(|node| &node.spec.drivers);
        let driver = drivers.into_iter().find(|own| own.name == self.driver.name).map(|own| own.node_id.clone());
        driver.ok_or_else(|| Error::Later(format!("CSINode {node} does not contain driver {}", self.driver.name)))
    }

    async fn set_finalizer(&self, attachment: &VolumeAttachment, is_wanted: bool) -> Result<()> {
        let api: Api<VolumeAttachment> = Api::all(self.driver.kube.clone());
        let Some(latest) = api.get_opt(name(attachment)).await? else { return Ok(()) };
        let Some(patch) = finalizer_patch(&latest.metadata, &self.finalizer(), is_wanted) else { return Ok(()) };
        ignore_not_found(api.patch(name(attachment), &PatchParams::default(), &Patch::Merge(patch)).await)?;
        Ok(())
    }

    /// Keeps the PersistentVolume, which is needed to detach, for as long as it is attached somewhere.
    async fn protect(&self, volume: &PersistentVolume, is_wanted: bool) -> Result<()> {
        if is_wanted && is_deleted(volume) {
            return Err(Error::Later(format!("PersistentVolume \"{}\" is marked for deletion", name(volume))));
        }
        let Some(patch) = finalizer_patch(&volume.metadata, &self.finalizer(), is_wanted) else { return Ok(()) };
        let api: Api<PersistentVolume> = Api::all(self.driver.kube.clone());
        ignore_not_found(api.patch(name(volume), &PatchParams::default(), &Patch::Merge(patch)).await)?;
        Ok(())
    }

    /// Whether another VolumeAttachment refers to the volume.
    fn is_attached_elsewhere(&self, volume: &PersistentVolume, attachment: &VolumeAttachment) -> bool {
        self.driver.attachments.list().iter().any(|other| {
            uid(&**other) != uid(attachment)
                && other.spec.source.persistent_volume_name.as_deref() == Some(name(volume))
        })
    }
}

fn publish_request(driver: &Driver, node_id: String, spec: &PersistentVolumeSpec) -> ControllerPublishVolumeRequest {
    let source = spec.csi.clone().unwrap_or_default();
    let mode = spec.access_modes.iter().flatten().next().map_or("ReadWriteOnce", String::as_str);
    let is_block = spec.volume_mode.as_deref() == Some("Block");
    let fs_type = source.fs_type.unwrap_or_default();
    let options = spec.mount_options.clone().unwrap_or_default();
    let counts_writers = driver.can(ControllerCapability::SingleNodeMultiWriter);
    ControllerPublishVolumeRequest {
        volume_id: source.volume_handle,
        node_id,
        volume_capability: Some(capability(mode, is_block, &fs_type, &options, counts_writers)),
        readonly: source.read_only.unwrap_or(false) && driver.can(ControllerCapability::PublishReadonly),
        secrets: Vec::new(),
        volume_context: source.volume_attributes.unwrap_or_default(),
    }
}
