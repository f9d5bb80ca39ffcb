//! Changes volumes to the parameters of another VolumeAttributesClass, as external-resizer does.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use knarr_client::{Change, run_workers};
use knarr_csi::Code;
use knarr_csi::messages::{ControllerCapability, ControllerModifyVolumeRequest};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::meta::{Key, is_deleted, name, namespace};

pub(crate) async fn run(driver: Arc<Driver>) {
    if !driver.can(ControllerCapability::ModifyVolume) {
        return;
    }
    let queue = driver.queue::<Key>();
    let added = queue.clone();
    driver.claims.on_change(move |change| {
        let claim = change.latest();
        let has_changed = change.previous().is_none_or(|old| classes(old) != classes(claim));
        if !matches!(change, Change::Deleted(_)) && has_changed {
            added.add(Key::of(&**claim));
        }
    });
    run_workers(queue, Driver::workers(), move |key: Key| {
        let driver = driver.clone();
        async move {
            let Some(claim) = driver.claims.get(&key.namespace, &key.name) else { return Ok::<(), Error>(()) };
            match (driver.volume_of(&claim), target(&claim)) {
                (Some(volume), Some(class)) => modify(&driver, &claim, &volume, class).await,
                _ => Ok(()),
            }
        }
    })
    .await;
}

/// Requested and current class.
fn classes(claim: &PersistentVolumeClaim) -> (Option<&str>, Option<&str>) {
    let requested = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let current = claim.status.as_ref().and_then(|status| status.current_volume_attributes_class_name.as_deref());
    (requested.filter(|class| !class.is_empty()), current)
}

/// The class to change to.
fn target(claim: &PersistentVolumeClaim) -> Option<&str> {
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let (requested, current) = classes(claim);
    requested.filter(|class| Some(*class) != current && phase == Some("Bound") && !is_deleted(claim))
}

async fn modify(driver: &Driver, claim: &PersistentVolumeClaim, volume: &PersistentVolume, class: &str) -> Result<()> {
    let classes: Api<VolumeAttributesClass> = Api::all(driver.kube.clone());
    let spec = volume.spec.as_ref();
    let source = spec.and_then(|spec| spec.csi.as_ref());
    // The volume was created with it.
    if spec.and_then(|spec| spec.volume_attributes_class_name.as_deref()) == Some(class) {
        return write(driver, claim, json!({"currentVolumeAttributesClassName": class, "modifyVolumeStatus": null}))
            .await;
    }
    let Some(wanted) = classes.get_opt(class).await? else {
        let status = json!({"targetVolumeAttributesClassName": class, "status": "Pending"});
        write(driver, claim, json!({"modifyVolumeStatus": status})).await?;
        return Err(Error::Later(format!("volumeattributesclass.storage.k8s.io \"{class}\" not found")));
    };
    if wanted.driver_name != driver.name {
        let message = format!("VAC {class} is for driver {}, not {}", wanted.driver_name, driver.name);
        driver.recorder.warning(claim, "VolumeModifyFailed", message.clone());
        return Err(Error::Refused(message));
    }
    let progress =
        |status: &str| json!({"modifyVolumeStatus": {"targetVolumeAttributesClassName": class, "status": status}});
    write(driver, claim, progress("InProgress")).await?;
    driver.recorder.normal(
        claim,
        "VolumeModify",
        format!("external resizer is modifying volume {} with vac {class}", name(claim)),
    );
    let request = ControllerModifyVolumeRequest {
        volume_id: source.map(|source| source.volume_handle.clone()).unwrap_or_default(),
        secrets: Vec::new(),
        mutable_parameters: wanted.parameters.unwrap_or_default(),
    };
    if let Err(error) = driver.csi.controller_modify_volume(request).await {
        driver.recorder.warning(claim, "VolumeModifyFailed", error.to_string());
        if matches!(error.code(), Code::InvalidArgument | Code::OutOfRange | Code::NotFound) {
            write(driver, claim, progress("Infeasible")).await?;
        }
        return Err(error.into());
    }
    let patch = Patch::Merge(json!({"spec": {"volumeAttributesClassName": class}}));
    let volumes: Api<PersistentVolume> = Api::all(driver.kube.clone());
    volumes.patch(name(volume), &PatchParams::default(), &patch).await?;
    write(driver, claim, json!({"currentVolumeAttributesClassName": class, "modifyVolumeStatus": null})).await?;
    driver.recorder.normal(
        claim,
        "VolumeModifySuccessful",
        format!("external resizer modified volume {} with vac {class} successfully", name(claim)),
    );
    Ok(())
}

async fn write(driver: &Driver, claim: &PersistentVolumeClaim, status: Value) -> Result<()> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(driver.kube.clone(), namespace(claim));
    let patch = Patch::Merge(json!({"status": status}));
    api.patch_status(name(claim), &PatchParams::default(), &patch).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_claims_change_to_the_requested_class() {
        for (phase, requested, current, expected) in [
            ("Bound", Some("gold"), Some("silver"), Some("gold")),
            ("Bound", Some("gold"), None, Some("gold")),
            ("Bound", Some("gold"), Some("gold"), None),
            ("Bound", Some(""), Some("gold"), None),
            ("Bound", None, None, None),
            ("Pending", Some("gold"), None, None),
        ] {
            let claim: PersistentVolumeClaim = serde_json::from_value(json!({
                "spec": {"volumeAttributesClassName": requested},
                "status": {"phase": phase, "currentVolumeAttributesClassName": current},
            }))
            .unwrap();
            assert_eq!(target(&claim), expected, "{phase} {requested:?} {current:?}");
        }
    }
}
