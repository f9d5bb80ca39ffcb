//! The PersistentVolume of a volume that a driver created.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume,
    PersistentVolumeClaim, PersistentVolumeSpec, SecretReference, VolumeNodeAffinity,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_client::events::reference;
use knarr_client::quantity::{self, Format, Quantity};
use knarr_csi::messages::{StringMap, Topology, Volume};

use super::request::volume_name;
use crate::claim::requested_bytes;
use crate::meta::{name, namespace};
use crate::parameters::Parameters;

pub(crate) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Keeps the PersistentVolume until the driver has deleted the volume.
pub(crate) const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

pub(super) fn persistent_volume(
    driver: &str,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    parameters: &Parameters,
    created: &Volume,
) -> PersistentVolume {
    let spec = claim.spec.clone().unwrap_or_default();
    let reclaim = class.reclaim_policy.clone().unwrap_or_else(|| "Delete".to_owned());
    let bytes = if created.capacity_bytes > 0 { created.capacity_bytes } else { requested_bytes(claim) };
    let capacity = quantity::to_api(&Quantity::new(bytes, Format::BinarySi));
    let secret = |call: &str| secret_reference(&parameters.node_secrets, call, claim);
    let is_block = spec.volume_mode.as_deref() == Some("Block");
    let source = CSIPersistentVolumeSource {
        driver: driver.to_owned(),
        volume_handle: created.volume_id.clone(),
        fs_type: (!is_block && !parameters.fs_type.is_empty()).then(|| parameters.fs_type.clone()),
        volume_attributes: (!created.volume_context.is_empty()).then(|| created.volume_context.clone()),
        node_stage_secret_ref: secret("node-stage"),
        node_publish_secret_ref: secret("node-publish"),
        node_expand_secret_ref: secret("node-expand"),
        ..CSIPersistentVolumeSource::default()
    };
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(volume_name(claim)),
            annotations: Some(BTreeMap::from([(PROVISIONED_BY.to_owned(), driver.to_owned())])),
            finalizers: (reclaim == "Delete").then(|| vec![FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes,
            capacity: Some(BTreeMap::from([("storage".to_owned(), capacity)])),
            claim_ref: Some(reference(claim)),
            csi: Some(source),
            mount_options: class.mount_options.clone(),
            node_affinity: node_affinity(&created.accessible_topology),
            persistent_volume_reclaim_policy: Some(reclaim),
            storage_class_name: Some(name(class).to_owned()),
            volume_attributes_class_name: spec.volume_attributes_class_name,
            volume_mode: spec.volume_mode,
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

/// The nodes that can use a volume: each place is an alternative.
pub(super) fn node_affinity(places: &[Topology]) -> Option<VolumeNodeAffinity> {
    let term = |place: &Topology| {
        let expressions = place.segments.iter().map(|(key, value)| NodeSelectorRequirement {
            key: key.clone(),
            operator: "In".to_owned(),
            values: Some(vec![value.clone()]),
        });
        NodeSelectorTerm { match_expressions: Some(expressions.collect()), match_fields: None }
    };
    let places: Vec<_> = places.iter().filter(|place| !place.segments.is_empty()).map(term).collect();
    let required = (!places.is_empty()).then_some(NodeSelector { node_selector_terms: places })?;
    Some(VolumeNodeAffinity { required: Some(required) })
}

/// The Secret for a call, whose name may contain the claim's.
fn secret_reference(secrets: &StringMap, call: &str, claim: &PersistentVolumeClaim) -> Option<SecretReference> {
    let resolve = |template: &String| {
        let text = template.replace("${pvc.name}", name(claim)).replace("${pvc.namespace}", namespace(claim));
        text.replace("${pv.name}", &volume_name(claim))
    };
    let secret = secrets.get(&format!("{call}-secret-name")).map(resolve)?;
    let within = secrets.get(&format!("{call}-secret-namespace")).map(resolve);
    Some(SecretReference { name: Some(secret), namespace: within })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_volume_is_described_as_external_provisioner_does() {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "5"},
            "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem", "storageClassName": "s",
                "resources": {"requests": {"storage": "1Gi"}}},
        }))
        .unwrap();
        let class: StorageClass = serde_json::from_value(json!({
            "metadata": {"name": "s"}, "provisioner": "d", "mountOptions": ["noatime"], "reclaimPolicy": "Delete",
        }))
        .unwrap();
        let parameters = Parameters {
            fs_type: "ext4".into(),
            node_secrets: StringMap::from([
                ("node-stage-secret-name".into(), "s-${pvc.name}".into()),
                ("node-stage-secret-namespace".into(), "${pvc.namespace}".into()),
            ]),
            ..Parameters::default()
        };
        let created = Volume {
            capacity_bytes: 2 << 30,
            volume_id: "h".into(),
            volume_context: StringMap::from([("k".into(), "v".into())]),
            accessible_topology: vec![Topology { segments: StringMap::from([("node".into(), "n".into())]) }],
            content_source: None,
        };
        let volume = persistent_volume("d", &claim, &class, &parameters, &created);
        assert_eq!(
            serde_json::to_value(volume).unwrap(),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": {"name": "pvc-u", "annotations": {PROVISIONED_BY: "d"}, "finalizers": [FINALIZER]},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"}, "volumeMode": "Filesystem",
                    "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "ns", "name": "c",
                        "uid": "u", "resourceVersion": "5"},
                    "csi": {"driver": "d", "volumeHandle": "h", "fsType": "ext4", "volumeAttributes": {"k": "v"},
                        "nodeStageSecretRef": {"name": "s-c", "namespace": "ns"}},
                    "mountOptions": ["noatime"], "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "s",
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "node", "operator": "In", "values": ["n"]}]}]}},
                },
            })
        );
        assert!(node_affinity(&[]).is_none());
    }
}
