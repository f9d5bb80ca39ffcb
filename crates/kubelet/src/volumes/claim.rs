//! Resolves persistent volume claims to volumes, and those that are directories to paths on this node.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use kube::Api;

use super::disk::SecretName;
use super::{VolumeError, host_path};
use crate::api_text::api_text;
use crate::context::Context;
use crate::pod;

const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// A claim and the volume that it is bound to.
pub struct ClaimedVolume {
    pub claim: PersistentVolumeClaim,
    pub volume: PersistentVolume,
}

pub struct ClaimedDirectory {
    pub path: PathBuf,
    pub read_only: bool,
    /// The pod's group may own the volume.
    pub owned_by_pod: bool,
}

pub async fn resolve(context: &Context, pod: &Pod, name: &str) -> Result<ClaimedVolume, VolumeError> {
    let failed = |text| processing_failed(pod, name, text);
    let claim = read_claim(context, pod, name).await.map_err(failed)?;
    read_volume(context, claim).await.map_err(failed)
}

/// Resolves the claim of an ephemeral volume, which this pod must own: another claim of the same name is not used.
pub async fn resolve_owned(context: &Context, pod: &Pod, name: &str) -> Result<ClaimedVolume, VolumeError> {
    let failed = |text| processing_failed(pod, name, text);
    let claim = read_claim(context, pod, name).await.map_err(failed)?;
    let owners = claim.metadata.owner_references.iter().flatten();
    if !owners.into_iter().any(|owner| owner.controller == Some(true) && owner.uid == pod::uid(pod)) {
        let namespace = pod::namespace(pod);
        return Err(VolumeError::Claim(format!(
            "PVC {namespace}/{name} was not created for pod {namespace}/{} (pod is not owner)",
            pod::name(pod)
        )));
    }
    read_volume(context, claim).await.map_err(failed)
}

fn processing_failed(pod: &Pod, name: &str, text: String) -> VolumeError {
    VolumeError::Claim(format!("error processing PVC {}/{name}: {text}", pod::namespace(pod)))
}

async fn read_claim(context: &Context, pod: &Pod, name: &str) -> Result<PersistentVolumeClaim, String> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), pod::namespace(pod));
    let claim = claims.get(name).await;
    let claim = claim.map_err(|error| format!("failed to fetch PVC from API server: {}", api_text(&error)))?;
    match claim_problem(&claim) {
        Some(problem) => Err(problem.to_string()),
        None => Ok(claim),
    }
}

/// Why a pod cannot use the claim. A claim that is deleted stays usable while pods that have it protect it, so that their
/// containers can be restarted.
fn claim_problem(claim: &PersistentVolumeClaim) -> Option<&'static str> {
    let is_protected = claim.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == PROTECTION);
    if claim.metadata.deletion_timestamp.is_some() && !is_protected {
        return Some("PVC is being deleted");
    }
    if claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound") {
        return Some("PVC is not bound");
    }
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
    volume.is_empty().then_some("PVC has empty pvc.Spec.VolumeName")
}

async fn read_volume(context: &Context, claim: PersistentVolumeClaim) -> Result<ClaimedVolume, String> {
    let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
    let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
    let volume = volumes.get(&name).await;
    let volume = volume.map_err(|error| format!("failed to fetch PV {name} from API server: {}", api_text(&error)))?;
    let bound = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let Some(bound) = bound else {
        return Err(format!(
            "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        ));
    };
    let (found, expected) = (bound.uid.clone().unwrap_or_default(), claim.metadata.uid.clone().unwrap_or_default());
    if found != expected {
        return Err(format!(
            "found PV object {name} but its pv.Spec.ClaimRef.UID {found} does not point to claim.UID {expected}"
        ));
    }
    Ok(ClaimedVolume { claim, volume })
}

/// Refuses file systems as devices and devices as file systems.
pub fn check_mode(volume: &PersistentVolume, pod: &Pod, name: &str) -> Result<(), VolumeError> {
    let mode = volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()).unwrap_or("Filesystem");
    let spec = pod::spec(pod);
    let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let refused =
        |list: &str| VolumeError::Claim(format!("volume {name} has volumeMode {mode}, but is specified in {list}"));
    let is_mounted =
        containers.clone().any(|container| container.volume_mounts.iter().flatten().any(|mount| mount.name == name));
    if is_mounted && mode != "Filesystem" {
        return Err(refused("volumeMounts"));
    }
    let is_device =
        containers.any(|container| container.volume_devices.iter().flatten().any(|device| device.name == name));
    if is_device && mode != "Block" {
        return Err(refused("volumeDevices"));
    }
    Ok(())
}

/// Whether a volume is a raw device.
pub fn is_block(volume: &PersistentVolume) -> bool {
    volume.spec.as_ref().is_some_and(|spec| spec.volume_mode.as_deref() == Some("Block"))
}

/// The content of a volume's secret.
pub async fn secret(
    context: &Context,
    pod: &Pod,
    secret: &SecretName,
) -> Result<std::collections::BTreeMap<String, String>, VolumeError> {
    let namespace = secret.namespace.as_deref().unwrap_or_else(|| pod::namespace(pod));
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let found = secrets.get(&secret.name).await.map_err(|error| {
        VolumeError::Path(format!("Couldn't get secret {namespace}/{}: {}", secret.name, api_text(&error)))
    })?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(found.data.into_iter().flatten().map(|(key, value)| (key, text(value.0))).collect())
}

/// The directory of a volume on this node.
pub fn directory_of(volume: &PersistentVolume) -> Result<ClaimedDirectory, VolumeError> {
    let Some(spec) = &volume.spec else { return Err(unsupported(volume)) };
    let modes: Vec<&str> = spec.access_modes.iter().flatten().map(String::as_str).collect();
    let read_only = !modes.is_empty() && modes.iter().all(|mode| *mode == "ReadOnlyMany");
    if let Some(source) = &spec.host_path {
        let path = host_path::check(&source.path, source.type_.as_deref().unwrap_or_default())?;
        return Ok(ClaimedDirectory { path, read_only, owned_by_pod: false });
    }
    if let Some(source) = &spec.local {
        // A link leads to the directory that is the volume, as a mount does. Administrators choose the path.
        let missing = |_| VolumeError::Path(format!("path \"{}\" does not exist", source.path));
        let path = std::fs::canonicalize(&source.path).map_err(missing)?;
        return Ok(ClaimedDirectory { path, read_only, owned_by_pod: true });
    }
    Err(unsupported(volume))
}

fn unsupported(volume: &PersistentVolume) -> VolumeError {
    let name = volume.metadata.name.clone().unwrap_or_default();
    VolumeError::Unsupported { name, kind: "other than csi, fc, hostPath, iscsi, local and nfs" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_must_be_bound_and_stay_usable_while_they_are_protected() {
        let deleted = "2026-01-01T00:00:00Z";
        for (claim, expected) in [
            (json!({ "spec": { "volumeName": "v" }, "status": { "phase": "Bound" } }), None),
            (json!({ "spec": { "volumeName": "v" }, "status": { "phase": "Pending" } }), Some("PVC is not bound")),
            (json!({ "status": { "phase": "Bound" } }), Some("PVC has empty pvc.Spec.VolumeName")),
            (
                json!({ "metadata": { "deletionTimestamp": deleted }, "spec": { "volumeName": "v" },
                    "status": { "phase": "Bound" } }),
                Some("PVC is being deleted"),
            ),
            (
                json!({ "metadata": { "deletionTimestamp": deleted, "finalizers": [PROTECTION] },
                    "spec": { "volumeName": "v" }, "status": { "phase": "Bound" } }),
                None,
            ),
        ] {
            let claim = serde_json::from_value(claim).expect("a claim");
            assert_eq!(claim_problem(&claim), expected, "{claim:?}");
        }
    }

    #[test]
    fn devices_and_file_systems_are_not_confused() {
        let pod: Pod = serde_json::from_value(json!({ "spec": { "containers": [{ "name": "c",
            "volumeMounts": [{ "name": "m", "mountPath": "/m" }],
            "volumeDevices": [{ "name": "d", "devicePath": "/d" }] }] } }))
        .expect("a pod");
        let volume = |mode: &str| -> PersistentVolume {
            serde_json::from_value(json!({ "spec": { "volumeMode": mode } })).expect("a volume")
        };
        assert!(check_mode(&volume("Filesystem"), &pod, "m").is_ok());
        assert!(check_mode(&volume("Block"), &pod, "d").is_ok());
        let refused = check_mode(&volume("Block"), &pod, "m").expect_err("a device");
        assert_eq!(refused.to_string(), "volume m has volumeMode Block, but is specified in volumeMounts");
        let refused = check_mode(&volume("Filesystem"), &pod, "d").expect_err("no device");
        assert_eq!(refused.to_string(), "volume d has volumeMode Filesystem, but is specified in volumeDevices");
    }
}
