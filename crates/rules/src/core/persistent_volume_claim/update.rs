//! Validation of updates: what may change in the spec of a claim.

use knarr_api::field::{Errors, Path};
use knarr_api::value::{Read, Write};
use serde_json::Value;

use crate::common::checks::IMMUTABLE;
use crate::common::equality::same;
use crate::common::{diff, resources};
use crate::core::persistent_volume::CLASS_ANNOTATION;
use crate::kind::keep_field;

pub(super) fn changes(errors: &mut Errors, claim: &Value, old: &Value) {
    let path = Path::root("spec");
    let (mut new_spec, mut old_spec) = (claim.at(&["spec"]).clone(), old.at(&["spec"]).clone());
    if old_spec.text(&["volumeName"]).is_empty() {
        keep_field(&mut old_spec, claim.at(&["spec"]), "volumeName");
    }
    storage_class(errors, claim, old, &mut new_spec, &old_spec);
    let is_bound = claim.text(&["status", "phase"]) == "Bound";
    if is_bound {
        if new_spec.has(&["resources", "requests"]) {
            new_spec.set(
                &["resources", "requests", "storage"],
                old.at(&["spec", "resources", "requests", "storage"]).clone(),
            );
        }
        keep_field(&mut new_spec, &old_spec, "volumeAttributesClassName");
    }
    // For this field, an empty name differs from an absent one.
    let named = |spec: &Value| ["storageClassName", "volumeAttributesClassName"].map(|field| spec.has(&[field]));
    if !same(&new_spec, &old_spec) || named(&new_spec) != named(&old_spec) {
        let diff = diff::of_claim_specs(&old_spec, &new_spec);
        let detail = format!(
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound \
             claims\n{diff}"
        );
        errors.forbidden(&path, detail);
    }
    let size = |claim: &Value, place: &[&str]| resources::quantity(claim.at(place));
    let new_size = size(claim, &["spec", "resources", "requests", "storage"]);
    if new_size < size(old, &["spec", "resources", "requests", "storage"])
        && new_size <= size(old, &["status", "capacity", "storage"])
    {
        errors.forbidden(&path.child("resources.requests.storage"), "field can not be less than status.capacity");
    }
    if claim.at(&["spec", "volumeMode"]) != old.at(&["spec", "volumeMode"]) {
        errors.invalid(&Path::root("volumeMode"), claim.at(&["spec", "volumeMode"]).clone(), IMMUTABLE);
    }
    let class = claim.at(&["spec", "volumeAttributesClassName"]);
    if class != old.at(&["spec", "volumeAttributesClassName"])
        && old.has(&["status", "currentVolumeAttributesClassName"])
    {
        let to = match class.as_str() {
            None => "nil",
            Some("") => "empty string",
            Some(_) => return,
        };
        let detail = format!("update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil");
        errors.forbidden(&path.child("volumeAttributesClassName"), detail);
    }
}

/// Validates a change of the storage class: it may be set if absent, or move from the old annotation to the field.
fn storage_class(errors: &mut Errors, claim: &Value, old: &Value, new_spec: &mut Value, old_spec: &Value) {
    let annotation = |claim: &Value| {
        claim.at(&["metadata", "annotations"]).get(CLASS_ANNOTATION).and_then(Value::as_str).map(str::to_owned)
    };
    let (new_annotation, old_annotation) = (annotation(claim), annotation(old));
    let new_class = claim.at(&["spec", "storageClassName"]).as_str();
    let had_class = old.has(&["spec", "storageClassName"]);
    let moves = old_annotation.is_some()
        && !had_class
        && new_class == old_annotation.as_deref()
        && (new_annotation.is_none() || new_annotation == old_annotation);
    if moves {
        new_spec.remove(&["storageClassName"]);
        return;
    }
    if new_annotation.as_deref().unwrap_or_default() != old_annotation.as_deref().unwrap_or_default() {
        let metadata = Path::root("metadata");
        let annotations = metadata.child("annotations");
        errors.invalid(&annotations.child(CLASS_ANNOTATION), new_annotation.unwrap_or_default(), IMMUTABLE);
    }
    if new_class.is_some() && !had_class && (old_annotation.is_none() || new_class == old_annotation.as_deref()) {
        keep_field(new_spec, old_spec, "storageClassName");
    }
}
