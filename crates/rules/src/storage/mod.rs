//! Rules of the group `storage.k8s.io`.

pub mod csi_driver;
pub mod csi_node;
pub mod csi_storage_capacity;
mod provisioner;
pub mod storage_class;
pub mod volume_attachment;
pub mod volume_attributes_class;

use crate::KindRules;

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    Some(match kind {
        "CSIDriver" => &csi_driver::CsiDriver,
        "CSINode" => &csi_node::CsiNode,
        "CSIStorageCapacity" => &csi_storage_capacity::CsiStorageCapacity,
        "StorageClass" => &storage_class::StorageClass,
        "VolumeAttachment" => &volume_attachment::VolumeAttachment,
        "VolumeAttributesClass" => &volume_attributes_class::VolumeAttributesClass,
        _ => return None,
    })
}
