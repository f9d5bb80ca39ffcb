//! Deletes volumes whose claim is gone, as external-provisioner does.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use knarr_client::{Change, run_workers};
use knarr_csi::messages::{ControllerCapability, DeleteVolumeRequest};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};

use crate::driver::Driver;
use crate::error::{Error, Result, ignore_not_found};
use crate::meta::{annotation, finalizer_patch, has_finalizer, is_deleted, name, uid};
use crate::provision::{PROVISIONED_BY, VOLUME_FINALIZER};

pub(crate) async fn run(driver: Arc<Driver>) {
    if !driver.can(ControllerCapability::CreateDeleteVolume) {
        return;
    }
    let queue = driver.queue::<String>();
    let added = queue.clone();
    driver.volumes.on_change(move |change| {
        if !matches!(change, Change::Deleted(_)) {
            added.add(name(&**change.latest()).to_owned());
        }
    });
    // A volume that is deleted waits until it is detached.
    let detached = queue.clone();
    driver.attachments.on_change(move |change| {
        if let (Change::Deleted(attachment), Some(volume)) =
            (change, &change.latest().spec.source.persistent_volume_name)
        {
            tracing::debug!(attachment = name(&**attachment), "detached");
            detached.add(volume.clone());
        }
    });
    run_workers(queue, Driver::workers(), move |key: String| {
        let driver = driver.clone();
        async move {
            let Some(volume) = driver.volumes.get("", &key).filter(|volume| driver.serves(volume)) else {
                return Ok::<(), Error>(());
            };
            match plan(&volume, &driver.name) {
                Step::Nothing => Ok(()),
                Step::SetFinalizer(is_wanted) => set_finalizer(&driver, &volume, is_wanted).await,
                Step::Delete => delete(&driver, &volume).await,
            }
        }
    })
    .await;
}

#[derive(Debug, PartialEq)]
enum Step {
    Nothing,
    /// The volume must outlive neither its PersistentVolume nor a change of the reclaim policy.
    SetFinalizer(bool),
    Delete,
}

fn plan(volume: &PersistentVolume, driver: &str) -> Step {
    if annotation(volume, PROVISIONED_BY) != Some(driver) {
        return Step::Nothing;
    }
    let spec = volume.spec.as_ref();
    let deletes = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()) == Some("Delete");
    let has = has_finalizer(volume, VOLUME_FINALIZER);
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    match (deletes, has) {
        (false, true) => Step::SetFinalizer(false),
        (true, false) if !is_deleted(volume) => Step::SetFinalizer(true),
        (true, true) if phase == Some("Released") => Step::Delete,
        _ => Step::Nothing,
    }
}

async fn set_finalizer(driver: &Driver, volume: &PersistentVolume, is_wanted: bool) -> Result<()> {
    let Some(patch) = finalizer_patch(&volume.metadata, VOLUME_FINALIZER, is_wanted) else { return Ok(()) };
    let api: Api<PersistentVolume> = Api::all(driver.kube.clone());
    ignore_not_found(api.patch(name(volume), &PatchParams::default(), &Patch::Merge(patch)).await)?;
    Ok(())
}

async fn delete(driver: &Driver, volume: &PersistentVolume) -> Result<()> {
    let outcome = delete_content(driver, volume).await;
    if let Err(error) = outcome {
        driver.recorder.warning(volume, "VolumeFailedDelete", error.to_string());
        return Err(error);
    }
    driver.space_changed.notify_one();
    let api: Api<PersistentVolume> = Api::all(driver.kube.clone());
    let same = Preconditions { uid: Some(uid(volume).to_owned()), resource_version: None };
    let params = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
    ignore_not_found(api.delete(name(volume), &params).await)?;
    // The API server has changed it: read it again, for the patch names the version.
    if let Some(latest) = api.get_opt(name(volume)).await?.filter(|latest| uid(latest) == uid(volume)) {
        set_finalizer(driver, &latest, false).await?;
    }
    Ok(())
}

async fn delete_content(driver: &Driver, volume: &PersistentVolume) -> Result<()> {
    if let Some(attachment) = driver.attachments_of(volume).first() {
        let node = &attachment.spec.node_name;
        return Err(Error::Later(format!("persistentvolume {} is still attached to node {node}", name(volume))));
    }
    let source = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    let volume_id = source.map(|source| source.volume_handle.clone()).unwrap_or_default();
    driver.csi.delete_volume(DeleteVolumeRequest { volume_id, secrets: Vec::new() }).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn released_volumes_are_deleted_by_policy() {
        let ours = json!([VOLUME_FINALIZER]);
        let none = json!([]);
        for (provisioner, policy, phase, finalizers, deleted, expected) in [
            ("d", "Delete", "Bound", &ours, false, Step::Nothing),
            ("d", "Delete", "Released", &ours, false, Step::Delete),
            ("d", "Delete", "Released", &ours, true, Step::Delete),
            ("d", "Delete", "Bound", &ours, true, Step::Nothing),
            ("d", "Delete", "Bound", &none, false, Step::SetFinalizer(true)),
            ("d", "Delete", "Bound", &none, true, Step::Nothing),
            ("d", "Retain", "Released", &ours, false, Step::SetFinalizer(false)),
            ("d", "Retain", "Released", &none, false, Step::Nothing),
            ("e", "Delete", "Released", &ours, false, Step::Nothing),
        ] {
            let deletion = deleted.then_some("2026-01-01T00:00:00Z");
            let volume: PersistentVolume = serde_json::from_value(json!({
                "metadata": {"name": "v", "annotations": {PROVISIONED_BY: provisioner}, "finalizers": finalizers,
                    "deletionTimestamp": deletion},
                "spec": {"persistentVolumeReclaimPolicy": policy}, "status": {"phase": phase},
            }))
            .unwrap();
            assert_eq!(plan(&volume, "d"), expected, "{provisioner} {policy} {phase} {finalizers} {deleted}");
        }
    }
}
