//! A CSI volume as a pod refers to it, through a claim or inline.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, Pod, SecretReference, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::paths;
use crate::pod;

/// What identifies a volume on a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId {
    pub driver: String,
    pub handle: String,
}

impl VolumeId {
    /// The name of the volume in the node's status.
    pub fn unique_name(&self) -> String {
        format!("kubernetes.io/csi/{}^{}", self.driver, self.handle)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifecycle {
    Persistent,
    Ephemeral,
}

impl Lifecycle {
    pub fn name(self) -> &'static str {
        if self == Self::Persistent { "Persistent" } else { "Ephemeral" }
    }
}

#[derive(Clone, Debug)]
pub struct CsiVolume {
    pub id: VolumeId,
    /// The name of the persistent volume, or of the pod's volume if it is inline.
    pub spec_name: String,
    pub lifecycle: Lifecycle,
    pub fs_type: String,
    pub attributes: BTreeMap<String, String>,
    pub read_only: bool,
    /// Raw block device instead of a file system.
    pub block: bool,
    pub access_modes: Vec<String>,
    pub mount_options: Vec<String>,
    pub stage_secret: Option<SecretReference>,
    pub publish_secret: Option<SecretReference>,
    pub expand_secret: Option<SecretReference>,
    pub capacity: Option<Quantity>,
}

impl CsiVolume {
    /// None if the volume is of another kind. `read_only` is what the pod's claim asks for.
    pub fn persistent(volume: &PersistentVolume, read_only: bool) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let source = spec.csi.as_ref()?;
        Some(Self {
            id: VolumeId { driver: source.driver.clone(), handle: source.volume_handle.clone() },
            spec_name: volume.metadata.name.clone().unwrap_or_default(),
            lifecycle: Lifecycle::Persistent,
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            read_only,
            block: spec.volume_mode.as_deref() == Some("Block"),
            access_modes: spec.access_modes.clone().unwrap_or_default(),
            mount_options: spec.mount_options.clone().unwrap_or_default(),
            stage_secret: source.node_stage_secret_ref.clone(),
            publish_secret: source.node_publish_secret_ref.clone(),
            expand_secret: source.node_expand_secret_ref.clone(),
            capacity: spec.capacity.as_ref().and_then(|capacity| capacity.get("storage").cloned()),
        })
    }

    /// None if the volume is of another kind.
    pub fn inline(pod: &Pod, volume: &Volume) -> Option<Self> {
        let source = volume.csi.as_ref()?;
        let secret = source.node_publish_secret_ref.as_ref().map(|secret| SecretReference {
            name: Some(secret.name.clone()),
            namespace: Some(pod::namespace(pod).to_string()),
        });
        Some(Self {
            id: VolumeId { driver: source.driver.clone(), handle: paths::inline_handle(pod::uid(pod), &volume.name) },
            spec_name: volume.name.clone(),
            lifecycle: Lifecycle::Ephemeral,
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            read_only: source.read_only.unwrap_or(false),
            block: false,
            access_modes: Vec::new(),
            mount_options: Vec::new(),
            stage_secret: None,
            publish_secret: secret,
            expand_secret: None,
            capacity: None,
        })
    }

    pub fn is_persistent(&self) -> bool {
        self.lifecycle == Lifecycle::Persistent
    }

    /// The access mode that the driver gets: the first one.
    pub fn access_mode(&self) -> &str {
        self.access_modes.first().map_or("ReadWriteOnce", String::as_str)
    }

    /// Only one pod of the cluster may use it. With several modes it is unknown which one a pod means.
    pub fn is_exclusive(&self) -> bool {
        self.access_modes == ["ReadWriteOncePod"]
    }

    pub fn has_single_writer(&self) -> bool {
        self.access_modes.iter().any(|mode| matches!(mode.as_str(), "ReadWriteOnce" | "ReadWriteOncePod"))
    }
}

/// Pod information that a driver may ask for.
pub fn pod_attributes(pod: &Pod, lifecycle: Lifecycle) -> BTreeMap<String, String> {
    let account = pod::spec(pod).service_account_name.as_deref().unwrap_or_default();
    [
        ("pod.name", pod::name(pod)),
        ("pod.namespace", pod::namespace(pod)),
        ("pod.uid", pod::uid(pod)),
        ("serviceAccount.name", account),
        ("ephemeral", if lifecycle == Lifecycle::Ephemeral { "true" } else { "false" }),
    ]
    .into_iter()
    .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_string()))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn volumes_are_read_from_claims_and_pods() {
        let volume = serde_json::from_value(json!({ "metadata": { "name": "pv" }, "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOncePod"], "volumeMode": "Block",
            "mountOptions": ["noatime"],
            "csi": { "driver": "d", "volumeHandle": "h", "readOnly": true,
                "nodeStageSecretRef": { "name": "s", "namespace": "x" } } } }));
        let volume = CsiVolume::persistent(&volume.expect("a volume"), false).expect("a CSI volume");
        assert_eq!(volume.id.unique_name(), "kubernetes.io/csi/d^h");
        assert!(volume.block && volume.is_exclusive() && !volume.read_only);
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "n", "uid": "u" },
            "spec": { "containers": [], "serviceAccountName": "a", "volumes": [{ "name": "v", "csi": {
                "driver": "d", "readOnly": true, "nodePublishSecretRef": { "name": "s" } } }] } }))
        .expect("a pod");
        let inline = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref()).expect("volumes");
        let volume = CsiVolume::inline(&pod, &inline[0]).expect("a CSI volume");
        assert_eq!((volume.access_mode(), volume.read_only), ("ReadWriteOnce", true));
        assert!(volume.id.handle.starts_with("csi-") && volume.id.handle.len() == 68);
        assert_eq!(volume.publish_secret.and_then(|secret| secret.namespace).as_deref(), Some("n"));
        let attributes = pod_attributes(&pod, Lifecycle::Ephemeral);
        assert_eq!(attributes["csi.storage.k8s.io/ephemeral"], "true");
        assert_eq!(attributes["csi.storage.k8s.io/serviceAccount.name"], "a");
        assert_eq!(attributes.len(), 5);
    }
}
