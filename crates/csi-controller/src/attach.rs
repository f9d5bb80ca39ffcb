//! Attaches volumes to nodes as VolumeAttachments request, as external-attacher does.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_client::{Change, Informer, run_workers, time};
use knarr_csi::messages::{
    ControllerCapability, ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, StringMap,
};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::driver::Driver;
use crate::error::{Error, Result, ignore_not_found};
use crate::meta::{annotation, finalizer_patch, has_finalizer, is_deleted, name, uid};
use crate::provision::capability;

/// The annotation of external-attacher with the driver's name of the node.
const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

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
            // The kubelet learns from the code that the node has too many volumes.
            let code = error.code().filter(|_| !is_deleted(attachment)).map(|code| code as i32);
            let report = json!({"time": time::now(), "message": error.to_string(), "errorCode": code});
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
            let node_id = self.node_id(&attachment.spec.node_name)?;
            // Before the call: what may be attached must be detached, even from a node that was deleted.
            self.mark(attachment, &node_id).await?;
            if let Some(volume) = volume {
                self.protect(&volume, true).await?;
            }
            let request = publish_request(&self.driver, node_id, &spec);
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
            node_id: self.node_id(&attachment.spec.node_name).or_else(|error| {
                // The node, and its CSINode with it, may be gone.
                annotation(attachment, NODE_ID).map(str::to_owned).ok_or(error)
            })?,
            secrets: Vec::new(),
        };
        self.driver.csi.controller_unpublish_volume(request).await?;
        if let Some(volume) = volume.filter(|volume| !self.is_attached_elsewhere(volume, attachment)) {
            self.protect(&volume, false).await?;
        }
        self.unmark(attachment).await
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

    /// Records in the VolumeAttachment that the volume may be attached, and where.
    async fn mark(&self, attachment: &VolumeAttachment, node_id: &str) -> Result<()> {
        self.patch(attachment, |meta| attached_patch(meta, &self.finalizer(), node_id)).await
    }

    async fn unmark(&self, attachment: &VolumeAttachment) -> Result<()> {
        self.patch(attachment, |meta| finalizer_patch(meta, &self.finalizer(), false)).await
    }

    async fn patch(&self, attachment: &VolumeAttachment, patch: impl Fn(&ObjectMeta) -> Option<Value>) -> Result<()> {
        let api: Api<VolumeAttachment> = Api::all(self.driver.kube.clone());
        let Some(latest) = api.get_opt(name(attachment)).await? else { return Ok(()) };
        let Some(patch) = patch(&latest.metadata) else { return Ok(()) };
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
        self.driver.attachments_of(volume).iter().any(|other| uid(&**other) != uid(attachment))
    }
}

/// The finalizer and the driver's name of the node; `None` if the object has both.
fn attached_patch(meta: &ObjectMeta, finalizer: &str, node_id: &str) -> Option<Value> {
    let known = meta.annotations.as_ref().and_then(|all| all.get(NODE_ID)).is_some_and(|known| known == node_id);
    let patch = finalizer_patch(meta, finalizer, true);
    if known {
        return patch;
    }
    let mut patch = patch.unwrap_or_else(|| json!({"metadata": {"resourceVersion": meta.resource_version}}));
    patch["metadata"]["annotations"] = json!({NODE_ID: node_id});
    Some(patch)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_remembered_with_the_finalizer() {
        let meta = |finalizers: Value, annotations: Value| -> ObjectMeta {
            serde_json::from_value(
                json!({"resourceVersion": "7", "finalizers": finalizers, "annotations": annotations}),
            )
            .unwrap()
        };
        let named = json!({NODE_ID: "n"});
        for (finalizers, annotations, expected) in [
            (
                json!([]),
                json!({"a": "b"}),
                Some(json!({"resourceVersion": "7", "finalizers": ["f"], "annotations": named})),
            ),
            (json!(["f"]), json!({}), Some(json!({"resourceVersion": "7", "annotations": named}))),
            (json!(["f"]), json!({NODE_ID: "other"}), Some(json!({"resourceVersion": "7", "annotations": named}))),
            (json!([]), named.clone(), Some(json!({"resourceVersion": "7", "finalizers": ["f"]}))),
            (json!(["f"]), named.clone(), None),
        ] {
            let patch = attached_patch(&meta(finalizers, annotations), "f", "n");
            assert_eq!(patch, expected.map(|metadata| json!({"metadata": metadata})));
        }
    }
}
