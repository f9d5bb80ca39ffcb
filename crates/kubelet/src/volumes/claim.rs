//! Resolves persistent volume claims to directories on this node.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;

use super::{VolumeError, host_path};
use crate::context::{Context, api_text};
use crate::pod;

pub struct ResolvedClaim {
    pub path: PathBuf,
    pub read_only: bool,
    /// The pod's group may own the volume.
    pub owned_by_pod: bool,
}

pub async fn resolve(context: &Context, pod: &Pod, name: &str) -> Result<ResolvedClaim, VolumeError> {
    let claim = read_claim(context, pod, name).await?;
    directory_of(context, claim, name).await
}

/// Resolves the claim of an ephemeral volume, which this pod must own: another claim of the same name is not used.
pub async fn resolve_owned(context: &Context, pod: &Pod, name: &str) -> Result<ResolvedClaim, VolumeError> {
    let claim = read_claim(context, pod, name).await?;
    let owners = claim.metadata.owner_references.iter().flatten();
    if !owners.into_iter().any(|owner| owner.controller == Some(true) && owner.uid == pod::uid(pod)) {
        let namespace = pod::namespace(pod);
        return Err(VolumeError::Claim(format!(
            "PVC {namespace}/{name} was not created for pod {namespace}/{} (pod is not owner)",
            pod::name(pod)
        )));
    }
    directory_of(context, claim, name).await
}

async fn read_claim(context: &Context, pod: &Pod, name: &str) -> Result<PersistentVolumeClaim, VolumeError> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), pod::namespace(pod));
    let claim = claims.get_opt(name).await.map_err(|error| VolumeError::Claim(api_text(&error)))?;
    let claim = claim.ok_or_else(|| VolumeError::NoClaim(name.to_string()))?;
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(VolumeError::Claim("can't start pod because PVC is being deleted".to_string()));
    }
    Ok(claim)
}

async fn directory_of(
    context: &Context,
    claim: PersistentVolumeClaim,
    name: &str,
) -> Result<ResolvedClaim, VolumeError> {
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    let volume_name = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).filter(|name| !name.is_empty());
    let Some(volume_name) = volume_name.filter(|_| bound) else {
        return Err(VolumeError::Claim(format!("PVC {name} is not bound")));
    };
    let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
    let volume = volumes.get(volume_name).await.map_err(|error| VolumeError::Claim(api_text(&error)))?;
    let spec = volume.spec.unwrap_or_default();
    if spec.claim_ref.as_ref().and_then(|claim| claim.uid.as_ref()) != claim.metadata.uid.as_ref() {
        return Err(VolumeError::Claim(format!("PV {volume_name} is bound to another claim than {name}")));
    }
    let modes: Vec<&str> = spec.access_modes.iter().flatten().map(String::as_str).collect();
    let read_only = !modes.is_empty() && modes.iter().all(|mode| *mode == "ReadOnlyMany");
    if let Some(source) = &spec.host_path {
        let path = host_path::check(&source.path, source.type_.as_deref().unwrap_or_default())?;
        return Ok(ResolvedClaim { path, read_only, owned_by_pod: false });
    }
    if let Some(source) = &spec.local {
        let path = PathBuf::from(&source.path);
        if !path.exists() {
            return Err(VolumeError::Path(format!("path \"{}\" does not exist", source.path)));
        }
        return Ok(ResolvedClaim { path, read_only, owned_by_pod: true });
    }
    Err(VolumeError::Unsupported { name: volume_name.to_string(), kind: "other than hostPath and local" })
}
