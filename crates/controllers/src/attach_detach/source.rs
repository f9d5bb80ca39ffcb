//! Which attachable volumes a PersistentVolume or a pod refers to. In-tree types that drivers replaced are the drivers'.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec, Pod};
use knarr_client::{csi_migration, disk_name};

use super::names::VolumeId;
use crate::common::key::namespace;

fn id_of(spec: &PersistentVolumeSpec) -> Option<VolumeId> {
    let source = spec.csi.as_ref()?;
    Some(VolumeId::new(&source.driver, &source.volume_handle))
}

/// The volume that a PersistentVolume refers to, if it is attached to nodes.
pub(super) fn of_volume(volume: &PersistentVolume) -> Option<VolumeId> {
    if let Some((plugin, disk)) = disk_name::of_volume(volume) {
        return Some(VolumeId::new(plugin, disk));
    }
    id_of(volume.spec.as_ref()?).or_else(|| id_of(csi_migration::translate(volume)?.spec.as_ref()?))
}

/// Volumes that a pod names without a claim, with the specification of a PersistentVolume for each.
pub(super) fn inline_volumes(pod: &Pod) -> Vec<(VolumeId, PersistentVolumeSpec)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let attachable = volumes.filter_map(|volume| {
        if let Some((plugin, disk)) = disk_name::of_inline(volume) {
            return Some((VolumeId::new(plugin, disk), PersistentVolumeSpec::default()));
        }
        let spec = csi_migration::translate_inline(volume, namespace(pod))?.spec?;
        Some((id_of(&spec)?, spec))
    });
    attachable.collect()
}

/// Whether a pod has volumes that may have to be attached.
pub(super) fn may_attach(pod: &Pod) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.any(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some())
        || !inline_volumes(pod).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn replaced_types_belong_to_drivers() {
        let volume = |spec: Value| -> PersistentVolume { serde_json::from_value(json!({"spec": spec})).unwrap() };
        for (spec, expected) in [
            (json!({"csi": {"driver": "d", "volumeHandle": "h"}}), Some(VolumeId::new("d", "h"))),
            (json!({"cinder": {"volumeID": "c"}}), Some(VolumeId::new("cinder.csi.openstack.org", "c"))),
            (json!({"fc": {"wwids": ["w"]}}), Some(VolumeId::new("kubernetes.io/fc", "[w]"))),
            (json!({"hostPath": {"path": "/x"}}), None),
        ] {
            assert_eq!(of_volume(&volume(spec)), expected);
        }
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"namespace": "ns"}, "spec": {"containers": [], "volumes": [
            {"name": "a", "awsElasticBlockStore": {"volumeID": "vol-1"}}, {"name": "b", "emptyDir": {}}]}}))
            .unwrap();
        let found: Vec<VolumeId> = inline_volumes(&pod).into_iter().map(|(id, _)| id).collect();
        assert_eq!(found, [VolumeId::new("ebs.csi.aws.com", "vol-1")]);
        assert!(may_attach(&pod));
    }
}
