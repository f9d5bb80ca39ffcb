//! Finds the volume that fits a claim best.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use knarr_client::quantity::{self, Quantity};
use knarr_client::selector::{self, Selector};

use crate::common::key::{name, namespace, uid};

const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
const TOO_SMALL: &str = "requested PV is too small";

pub(super) fn claim_class(claim: &PersistentVolumeClaim) -> &str {
    let annotated = claim.metadata.annotations.as_ref().and_then(|all| all.get(CLASS_ANNOTATION));
    let named = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
    annotated.or(named).map_or("", String::as_str)
}

pub(super) fn volume_class(volume: &PersistentVolume) -> &str {
    let annotated = volume.metadata.annotations.as_ref().and_then(|all| all.get(CLASS_ANNOTATION));
    let named = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
    annotated.or(named).map_or("", String::as_str)
}

/// Whether the volume is reserved for the claim; a reference without uid was written before the claim existed.
pub(super) fn is_for(reference: &ObjectReference, claim: &PersistentVolumeClaim) -> bool {
    reference.name.as_deref() == Some(name(claim))
        && reference.namespace.as_deref() == Some(namespace(claim))
        && reference.uid.as_deref().is_none_or(|desired| desired.is_empty() || desired == uid(claim))
}

/// The volume already reserved for the claim, else of those with the fewest access modes the smallest that fits. With
/// `delayed`, only the scheduler chooses freely.
pub(super) fn best(
    claim: &PersistentVolumeClaim,
    candidates: &[Arc<PersistentVolume>],
    delayed: bool,
) -> Option<Arc<PersistentVolume>> {
    let fitting: Vec<&Arc<PersistentVolume>> = candidates
        .iter()
        .filter(|volume| volume.metadata.deletion_timestamp.is_none() && unsuited(volume, claim).is_none())
        .filter(|volume| has_modes(volume, claim))
        .collect();
    let meant = fitting.iter().find(|volume| {
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        reference.is_some_and(|reference| is_for(reference, claim))
    });
    if let Some(meant) = meant {
        return Some((*meant).clone());
    }
    if delayed {
        return None;
    }
    let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let selector = selector.map_or_else(|| Ok(Selector::everything()), selector::of).ok()?;
    let free = fitting.into_iter().filter(|volume| {
        let spec = volume.spec.as_ref();
        spec.is_some_and(|spec| spec.claim_ref.is_none())
            && volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Available")
            && volume_class(volume) == claim_class(claim)
            && selector.matches(volume.metadata.labels.as_ref())
    });
    free.min_by(|a, b| {
        let modes = |volume: &PersistentVolume| {
            volume.spec.as_ref().map_or(0, |spec| spec.access_modes.iter().flatten().count())
        };
        modes(a).cmp(&modes(b)).then_with(|| capacity(a).cmp(&capacity(b))).then_with(|| name(&***a).cmp(name(&***b)))
    })
    .cloned()
}

/// Why a claim cannot have the volume that it names, as the event's message.
pub(super) fn mismatch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<String> {
    let problem = match () {
        () if volume.metadata.deletion_timestamp.is_some() => {
            return Some(format!("the volume is marked for deletion \"{}\"", name(volume)));
        }
        () if capacity(volume) < requested(claim) => TOO_SMALL,
        () if volume_class(volume) != claim_class(claim) => "storageClassName does not match",
        () => match unsuited(volume, claim) {
            Some(problem) => problem,
            None if !has_modes(volume, claim) => "incompatible accessMode",
            None => return None,
        },
    };
    Some(problem.to_owned())
}

/// Why no claim like this can use the volume.
fn unsuited(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<&'static str> {
    let (volume_spec, claim_spec) = (volume.spec.as_ref()?, claim.spec.as_ref()?);
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
    let attributes = |class: &Option<String>| class.clone().unwrap_or_default();
    if capacity(volume) < requested(claim) {
        return Some(TOO_SMALL);
    }
    if attributes(&volume_spec.volume_attributes_class_name) != attributes(&claim_spec.volume_attributes_class_name) {
        return Some("volumeAttributesClassName does not match");
    }
    if mode(&volume_spec.volume_mode) != mode(&claim_spec.volume_mode) {
        return Some("incompatible volumeMode");
    }
    None
}

fn has_modes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let offered = volume.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    let desired = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    desired.iter().all(|mode| offered.contains(mode))
}

fn capacity(volume: &PersistentVolume) -> Quantity {
    let storage = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()?.get("storage"));
    storage.map_or(Quantity::ZERO, quantity::of)
}

fn requested(claim: &PersistentVolumeClaim) -> Quantity {
    let storage = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
    storage.map_or(Quantity::ZERO, quantity::of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(extra: Value) -> PersistentVolumeClaim {
        let mut spec = json!({"storageClassName": "c", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5Gi"}}});
        for (key, value) in extra.as_object().cloned().unwrap_or_default() {
            spec[key] = value;
        }
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "ns", "uid": "u"}, "spec": spec})).unwrap()
    }

    fn volume(name: &str, size: &str, extra: Value) -> Arc<PersistentVolume> {
        let mut spec =
            json!({"storageClassName": "c", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}});
        for (key, value) in extra.as_object().cloned().unwrap_or_default() {
            spec[key] = value;
        }
        let value = json!({"metadata": {"name": name, "labels": {"disk": name}}, "spec": spec, "status": {"phase": "Available"}});
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn the_smallest_fitting_volume_is_chosen() {
        let volumes = [
            volume("small", "1Gi", json!({})),
            volume("large", "100Gi", json!({})),
            volume("right", "10Gi", json!({})),
            volume("block", "6Gi", json!({"volumeMode": "Block"})),
            volume("shared", "6Gi", json!({"accessModes": ["ReadOnlyMany"]})),
            volume("taken", "6Gi", json!({"claimRef": {"namespace": "ns", "name": "other"}})),
            volume("other-class", "6Gi", json!({"storageClassName": "d"})),
        ];
        let chosen =
            |claim: PersistentVolumeClaim, delayed: bool| best(&claim, &volumes, delayed).map(|v| name(&*v).to_owned());
        assert_eq!(chosen(claim(json!({})), false).as_deref(), Some("right"));
        assert_eq!(chosen(claim(json!({})), true), None, "the scheduler chooses");
        let selector = json!({"selector": {"matchLabels": {"disk": "large"}}});
        assert_eq!(chosen(claim(selector), false).as_deref(), Some("large"));
        let block = json!({"volumeMode": "Block"});
        assert_eq!(chosen(claim(block), false).as_deref(), Some("block"));
    }

    #[test]
    fn of_fitting_volumes_the_one_with_the_fewest_access_modes_is_chosen() {
        let volumes = [
            volume("both", "5Gi", json!({"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]})),
            volume("one", "50Gi", json!({})),
        ];
        assert_eq!(name(&*best(&claim(json!({})), &volumes, false).unwrap()), "one");
        assert_eq!(name(&*best(&claim(json!({})), &volumes[..1], false).unwrap()), "both");
    }

    #[test]
    fn a_named_volume_must_fit() {
        let leaving = json!({"metadata": {"name": "leaving", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let named = |extra| volume("v", "5Gi", extra);
        for (volume, expected) in [
            (named(json!({})), None),
            (Arc::new(serde_json::from_value(leaving).unwrap()), Some("the volume is marked for deletion \"leaving\"")),
            (volume("v", "1Gi", json!({"storageClassName": "d"})), Some("requested PV is too small")),
            (named(json!({"storageClassName": "d", "volumeMode": "Block"})), Some("storageClassName does not match")),
            (named(json!({"volumeMode": "Block", "accessModes": []})), Some("incompatible volumeMode")),
            (
                named(json!({"volumeMode": "Block", "volumeAttributesClassName": "gold"})),
                Some("volumeAttributesClassName does not match"),
            ),
            (named(json!({"accessModes": ["ReadOnlyMany"]})), Some("incompatible accessMode")),
        ] {
            assert_eq!(mismatch(&volume, &claim(json!({}))).as_deref(), expected);
        }
    }

    #[test]
    fn a_volume_meant_for_the_claim_comes_first() {
        let volumes = [
            volume("right", "10Gi", json!({})),
            volume("meant", "50Gi", json!({"claimRef": {"namespace": "ns", "name": "c"}})),
        ];
        assert_eq!(name(&*best(&claim(json!({})), &volumes, true).unwrap()), "meant");
        let former = [volume("former", "50Gi", json!({"claimRef": {"namespace": "ns", "name": "c", "uid": "old"}}))];
        assert!(best(&claim(json!({})), &former, false).is_none());
        let meant = json!({"claimRef": {"namespace": "ns", "name": "c"}, "accessModes": ["ReadOnlyMany"]});
        assert!(best(&claim(json!({})), &[volume("unfit", "50Gi", meant)], false).is_none());
    }
}
