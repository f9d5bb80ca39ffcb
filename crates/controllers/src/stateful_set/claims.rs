//! Volume claims of pods, and their owners.
//!
//! Owner references implement the retention policy: a claim owned by the set is deleted with it, one owned by a surplus
//! pod is deleted with that pod.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use knarr_client::owner;
use kube::Resource;

use super::identity::{in_range, ordinal_of};
use crate::common::key::{name, uid};

pub(super) fn claim_name(set: &StatefulSet, template: &PersistentVolumeClaim, ordinal: i32) -> String {
    format!("{}-{}-{ordinal}", name(template), name(set))
}

/// The claims the pod needs.
pub(super) fn desired(set: &StatefulSet, pod: &Pod) -> Vec<PersistentVolumeClaim> {
    let (Some(spec), Some(ordinal)) = (&set.spec, ordinal_of(pod)) else { return Vec::new() };
    let make = |template: &PersistentVolumeClaim| {
        let mut claim = template.clone();
        claim.metadata.name = Some(claim_name(set, template, ordinal));
        claim.metadata.namespace = set.metadata.namespace.clone();
        let labels = claim.metadata.labels.get_or_insert_default();
        labels.extend(spec.selector.match_labels.clone().unwrap_or_default());
        claim.status = None;
        claim
    };
    spec.volume_claim_templates.iter().flatten().map(make).collect()
}

/// Whether claims are deleted with the set, and with pods that are scaled down.
fn policy(set: &StatefulSet) -> (bool, bool) {
    let policy = set.spec.as_ref().and_then(|spec| spec.persistent_volume_claim_retention_policy.as_ref());
    let deletes = |when: Option<&String>| when.is_some_and(|when| when == "Delete");
    (
        deletes(policy.and_then(|policy| policy.when_deleted.as_ref())),
        deletes(policy.and_then(|policy| policy.when_scaled.as_ref())),
    )
}

fn names<K: Resource<DynamicType = ()>>(reference: &OwnerReference, object: &K) -> bool {
    reference.api_version == K::api_version(&()) && reference.kind == K::kind(&()) && reference.name == name(object)
}

/// A former object of the same name owns the claim: the claim is being deleted.
fn has_stale_owner<K: Resource<DynamicType = ()>>(claim: &PersistentVolumeClaim, object: &K) -> bool {
    let owners = claim.metadata.owner_references.as_deref().unwrap_or_default();
    owners.iter().any(|reference| names(reference, object) && reference.uid != uid(object))
}

pub(super) fn are_leaving(
    set: &StatefulSet,
    pod: &Pod,
    claim: impl Fn(&str) -> Option<Arc<PersistentVolumeClaim>>,
) -> bool {
    policy(set).1
        && desired(set, pod).iter().filter_map(|desired| claim(name(desired))).any(|claim| has_stale_owner(&claim, pod))
}

/// Another controller manages the claim, so the policy does not apply to it.
pub(super) fn has_other_controller(claim: &PersistentVolumeClaim, set: &StatefulSet, pod: &Pod) -> bool {
    if policy(set) == (false, false) {
        return false;
    }
    claim.metadata.owner_references.iter().flatten().any(|reference| {
        if names(reference, set) {
            reference.uid != uid(set)
        } else if names(reference, pod) {
            reference.uid != uid(pod)
        } else {
            reference.controller == Some(true)
        }
    })
}

/// The claim with the owners that the policy requires; `None` when it has them.
pub(super) fn with_owners(
    claim: &PersistentVolumeClaim,
    set: &StatefulSet,
    pod: &Pod,
) -> Option<PersistentVolumeClaim> {
    if has_stale_owner(claim, set) || has_stale_owner(claim, pod) {
        return None;
    }
    let before = claim.metadata.owner_references.clone().unwrap_or_default();
    let mut owners: Vec<OwnerReference> =
        before.iter().filter(|reference| !names(reference, set) && !names(reference, pod)).cloned().collect();
    if !has_other_controller(claim, set, pod) {
        let (with_set, when_scaled) = policy(set);
        let scaled_away = set.spec.as_ref().is_some_and(|spec| !in_range(spec, pod));
        if when_scaled && scaled_away {
            owners.push(owner::controller_reference(pod));
        } else if with_set {
            owners.push(owner::controller_reference(set));
        }
    }
    let uids = |list: &[OwnerReference]| -> Vec<(String, Option<bool>)> {
        let mut uids: Vec<_> = list.iter().map(|owner| (owner.uid.clone(), owner.controller)).collect();
        uids.sort();
        uids
    };
    if uids(&before) == uids(&owners) {
        return None;
    }
    let mut changed = claim.clone();
    changed.metadata.owner_references = (!owners.is_empty()).then_some(owners);
    Some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn owners_are_set_by_the_policy() {
        let set = |deleted: &str, scaled: &str, replicas: i32| -> StatefulSet {
            serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "ns", "uid": "s"}, "spec": {
                "selector": {"matchLabels": {"app": "web"}}, "replicas": replicas, "template": {"spec": {"containers": []}},
                "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
                "persistentVolumeClaimRetentionPolicy": {"whenDeleted": deleted, "whenScaled": scaled}}}))
            .unwrap()
        };
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "web-1", "namespace": "ns", "uid": "p"}})).unwrap();
        let claim = desired(&set("Retain", "Retain", 2), &pod).remove(0);
        assert_eq!(name(&claim), "data-web-1");
        assert_eq!(claim.metadata.labels.as_ref().unwrap()["app"], "web");
        for (deleted, scaled, replicas, owner) in [
            ("Retain", "Retain", 2, None),
            ("Delete", "Retain", 2, Some("s")),
            ("Delete", "Delete", 2, Some("s")),
            ("Delete", "Delete", 1, Some("p")),
            ("Retain", "Delete", 2, None),
            ("Retain", "Delete", 1, Some("p")),
        ] {
            let set = set(deleted, scaled, replicas);
            let changed = with_owners(&claim, &set, &pod);
            let owners = changed.as_ref().and_then(|claim| claim.metadata.owner_references.clone()).unwrap_or_default();
            assert_eq!(owners.first().map(|owner| owner.uid.as_str()), owner, "{deleted} {scaled} {replicas}");
            if let Some(changed) = changed {
                assert!(with_owners(&changed, &set, &pod).is_none());
            }
        }
    }
}
