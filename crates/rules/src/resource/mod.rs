//! Rules of the group `resource.k8s.io` (dynamic resource allocation).

mod allocation;
mod capacity;
mod claim_spec;
mod configuration;
mod device;
pub mod device_class;
mod naming;
pub mod resource_claim;
pub mod resource_claim_template;
pub mod resource_slice;
mod taints;
mod v1beta1;

use crate::KindRules;

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    Some(match kind {
        "DeviceClass" => &device_class::DeviceClass,
        "ResourceClaim" => &resource_claim::ResourceClaim,
        "ResourceClaimTemplate" => &resource_claim_template::ResourceClaimTemplate,
        "ResourceSlice" => &resource_slice::ResourceSlice,
        _ => return None,
    })
}
