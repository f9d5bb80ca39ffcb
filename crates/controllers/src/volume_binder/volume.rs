//! Decides what happens to a volume.

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};

use super::claim::BOUND_BY_CONTROLLER;
use super::recycler;
use crate::common::Key;
use crate::common::key::{name, namespace, uid};

const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";

#[derive(Debug)]
pub(super) enum VolumeStep {
    Nothing,
    Phase(&'static str),
    SyncClaim(Key),
    /// Its claim uses another volume: release it.
    Unbind(PersistentVolume),
    Fail {
        reason: &'static str,
        message: String,
    },
    /// Its content is a directory of this host: delete it, then the volume.
    RemoveDirectory(String),
    /// Recycle it for the next claim.
    Recycle,
}

/// `claim` is the one that the volume's reference names, with the same uid.
pub(super) fn plan(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> VolumeStep {
    let Some(spec) = &volume.spec else { return VolumeStep::Nothing };
    let reference = spec.claim_ref.as_ref();
    if reference.is_none_or(|reference| reference.uid.as_deref().unwrap_or("").is_empty()) {
        return VolumeStep::Phase("Available");
    }
    let Some(claim) = claim else { return released(volume) };
    let bound_to = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or("");
    if bound_to.is_empty() {
        return VolumeStep::SyncClaim(Key::of(claim));
    }
    if bound_to == name(volume) {
        return VolumeStep::Phase("Bound");
    }
    let deletes = spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete");
    if deletes && has_annotation(volume, PROVISIONED_BY) {
        released(volume)
    } else {
        VolumeStep::Unbind(unbound(volume))
    }
}

/// Its claim is gone: sets the phase, then carries out the reclaim policy.
fn released(volume: &PersistentVolume) -> VolumeStep {
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    if !matches!(phase, Some("Released" | "Failed")) {
        return VolumeStep::Phase("Released");
    }
    let spec = volume.spec.as_ref();
    match spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()) {
        None | Some("Retain") => VolumeStep::Nothing,
        // The external provisioner deletes it.
        Some("Delete") if has_annotation(volume, PROVISIONED_BY) || has_annotation(volume, MIGRATED_TO) => {
            VolumeStep::Nothing
        }
        Some("Delete") if spec.is_some_and(|spec| spec.csi.is_some()) => VolumeStep::Nothing,
        Some("Delete") if spec.is_some_and(|spec| spec.host_path.is_some()) => {
            remove(spec.and_then(|spec| spec.host_path.as_ref()).map_or("", |source| &source.path))
        }
        Some("Delete") => VolumeStep::Fail {
            reason: "VolumeFailedDelete",
            message: format!(
                "error getting deleter volume plugin for volume \"{}\": no deletable volume plugin matched",
                name(volume)
            ),
        },
        Some("Recycle") if recycler::can_recycle(volume) => VolumeStep::Recycle,
        Some("Recycle") => VolumeStep::Fail {
            reason: "VolumeFailedRecycle",
            message: "No recycler plugin found for the volume!".to_owned(),
        },
        Some(_) => VolumeStep::Fail {
            reason: "VolumeUnknownReclaimPolicy",
            message: "Volume has unrecognized PersistentVolumeReclaimPolicy".to_owned(),
        },
    }
}

/// Only directories for temporary files may be deleted.
fn remove(path: &str) -> VolumeStep {
    if path.strip_prefix("/tmp/").is_some_and(|rest| !rest.is_empty() && rest.split('/').all(|part| part != "..")) {
        return VolumeStep::RemoveDirectory(path.to_owned());
    }
    let message = format!("host_path deleter only supports /tmp/.+ but received provided {path}");
    VolumeStep::Fail { reason: "VolumeFailedDelete", message }
}

fn has_annotation(volume: &PersistentVolume, key: &str) -> bool {
    volume.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(key))
}

pub(super) fn unbound(volume: &PersistentVolume) -> PersistentVolume {
    let mut changed = volume.clone();
    let by_controller = has_annotation(volume, BOUND_BY_CONTROLLER);
    if let Some(annotations) = &mut changed.metadata.annotations {
        annotations.remove(BOUND_BY_CONTROLLER);
    }
    if let Some(spec) = &mut changed.spec {
        if by_controller {
            spec.claim_ref = None;
        } else if let Some(reference) = &mut spec.claim_ref {
            // An administrator reserved it for a claim of this name: it stays reserved for the next one.
            reference.uid = None;
        }
    }
    changed
}

/// The volume with its reference to the claim completed; `None` when it is.
pub(super) fn claimed_by(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<PersistentVolume> {
    let mut changed = volume.clone();
    let spec = changed.spec.get_or_insert_default();
    let matches = spec.claim_ref.as_ref().is_some_and(|reference| {
        reference.name.as_deref() == Some(name(claim))
            && reference.namespace.as_deref() == Some(namespace(claim))
            && reference.uid.as_deref() == Some(uid(claim))
    });
    if matches {
        return None;
    }
    let was_meant = spec.claim_ref.is_some();
    spec.claim_ref = Some(ObjectReference {
        resource_version: claim.metadata.resource_version.clone(),
        ..knarr_client::events::reference(claim)
    });
    if !was_meant {
        changed.metadata.annotations.get_or_insert_default().insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
    }
    Some(changed)
}

pub(super) fn with_phase(volume: &PersistentVolume, phase: &str, message: Option<&str>) -> Option<PersistentVolume> {
    if volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase) {
        return None;
    }
    let mut changed = volume.clone();
    let status = changed.status.get_or_insert_default();
    status.phase = Some(phase.to_owned());
    status.message = message.map(str::to_owned);
    Some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(spec: Value, phase: &str, annotations: Value) -> PersistentVolume {
        serde_json::from_value(
            json!({"metadata": {"name": "v", "annotations": annotations}, "spec": spec, "status": {"phase": phase}}),
        )
        .unwrap()
    }

    fn claim(volume: &str) -> PersistentVolumeClaim {
        serde_json::from_value(
            json!({"metadata": {"name": "c", "namespace": "ns", "uid": "u"}, "spec": {"volumeName": volume}}),
        )
        .unwrap()
    }

    #[test]
    fn volumes_are_planned_by_their_state() {
        let to = json!({"namespace": "ns", "name": "c", "uid": "u"});
        let rendered = |step: &VolumeStep| match step {
            VolumeStep::Nothing => "nothing".to_owned(),
            VolumeStep::Phase(phase) => format!("phase {phase}"),
            VolumeStep::SyncClaim(key) => format!("sync {key}"),
            VolumeStep::Unbind(changed) => format!("unbind {}", changed.spec.as_ref().unwrap().claim_ref.is_none()),
            VolumeStep::Fail { reason, .. } => format!("fail {reason}"),
            VolumeStep::RemoveDirectory(path) => format!("remove {path}"),
            VolumeStep::Recycle => "recycle".to_owned(),
        };
        let by_controller = json!({"pv.kubernetes.io/bound-by-controller": "yes"});
        let retain = json!({"claimRef": to, "persistentVolumeReclaimPolicy": "Retain"});
        let delete = json!({"claimRef": to, "persistentVolumeReclaimPolicy": "Delete"});
        let on_disk = |path: &str| {
            let policy = "Delete";
            json!({"claimRef": to, "persistentVolumeReclaimPolicy": policy, "hostPath": {"path": path}})
        };
        let recycle = |path: Value, csi: Value| json!({"claimRef": to, "persistentVolumeReclaimPolicy": "Recycle", "hostPath": path, "csi": csi});
        for (volume, claim, expected) in [
            (volume(json!({}), "Pending", json!({})), None, "phase Available"),
            (volume(json!({"claimRef": {"namespace": "ns", "name": "c"}}), "", json!({})), None, "phase Available"),
            (volume(retain.clone(), "Bound", json!({})), Some(claim("v")), "phase Bound"),
            (volume(retain.clone(), "Available", json!({})), Some(claim("")), "sync ns/c"),
            (volume(retain.clone(), "Bound", json!({})), None, "phase Released"),
            (volume(retain.clone(), "Released", json!({})), None, "nothing"),
            (volume(delete.clone(), "Released", json!({})), None, "fail VolumeFailedDelete"),
            (volume(on_disk("/tmp/x"), "Released", json!({})), None, "remove /tmp/x"),
            (volume(on_disk("/tmp/../etc"), "Released", json!({})), None, "fail VolumeFailedDelete"),
            (volume(on_disk("/srv"), "Released", json!({})), None, "fail VolumeFailedDelete"),
            (volume(recycle(json!({"path": "/x"}), Value::Null), "Released", json!({})), None, "recycle"),
            (
                volume(recycle(Value::Null, json!({"driver": "d", "volumeHandle": "h"})), "Failed", json!({})),
                None,
                "fail VolumeFailedRecycle",
            ),
            (volume(delete, "Released", json!({"pv.kubernetes.io/provisioned-by": "p"})), None, "nothing"),
            (volume(retain.clone(), "Bound", by_controller), Some(claim("w")), "unbind true"),
            (volume(retain, "Bound", json!({})), Some(claim("w")), "unbind false"),
        ] {
            assert_eq!(rendered(&plan(&volume, claim.as_ref())), expected);
        }
    }

    #[test]
    fn a_volume_meant_by_hand_is_not_marked() {
        let by_hand = volume(json!({"claimRef": {"namespace": "ns", "name": "c"}}), "Available", json!({}));
        let changed = claimed_by(&by_hand, &claim("")).unwrap();
        assert!(!has_annotation(&changed, BOUND_BY_CONTROLLER));
        assert!(claimed_by(&changed, &claim("")).is_none());
        assert!(has_annotation(
            &claimed_by(&volume(json!({}), "", json!({})), &claim("")).unwrap(),
            BOUND_BY_CONTROLLER
        ));
    }
}
