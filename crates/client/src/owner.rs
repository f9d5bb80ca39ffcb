//! Owner references: reading an object's controller, and creating references.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;

/// The owner reference of the managing controller, if any.
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_ref()?.iter().find(|reference| reference.controller == Some(true))
}

/// The UID of the managing controller, by which pods, replica sets and jobs are indexed.
pub fn controller_uid(meta: &ObjectMeta) -> Option<&str> {
    controller_of(meta).map(|reference| reference.uid.as_str())
}

/// Whether `owner` is the managing controller.
pub fn is_controlled_by(meta: &ObjectMeta, owner: &ObjectMeta) -> bool {
    owner.uid.is_some() && controller_uid(meta) == owner.uid.as_deref()
}

/// A controller reference to `owner` that blocks its foreground deletion, as workload controllers write it.
pub fn controller_reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference { controller: Some(true), block_owner_deletion: Some(true), ..plain_reference(owner) }
}

/// A reference to `owner` that neither controls nor blocks.
pub fn plain_reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.meta().name.clone().unwrap_or_default(),
        uid: owner.meta().uid.clone().unwrap_or_default(),
        controller: None,
        block_owner_deletion: None,
    }
}
