//! Helpers for `prepare_update`: they restore the fields of the stored object that a write may not change.

use serde_json::Value;

/// Restores one field of `object` to its value in `old`, or removes it where `old` lacks it.
pub fn keep_field(object: &mut Value, old: &Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        match old.get(field) {
            Some(value) => fields.insert(field.to_owned(), value.clone()),
            None => fields.remove(field),
        };
    }
}

/// Restores the metadata that clients write: labels, annotations, finalizers and owner references.
pub fn keep_metadata(object: &mut Value, old: &Value) {
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        keep_field(&mut object["metadata"], &old["metadata"], field);
    }
}

/// Restores everything but the status and the metadata.
pub fn keep_all_but_status(object: &mut Value, old: &Value) {
    let Some(new_fields) = object.as_object_mut() else { return };
    let status = new_fields.remove("status");
    let metadata = new_fields.remove("metadata");
    let mut kept = old.clone();
    if let Some(fields) = kept.as_object_mut() {
        match status {
            Some(status) => fields.insert("status".to_owned(), status),
            None => fields.remove("status"),
        };
        if let Some(metadata) = metadata {
            fields.insert("metadata".to_owned(), metadata);
        }
    }
    *object = kept;
}

/// Whether a field other than metadata and status differs between the two.
pub(super) fn body_changed(object: &Value, old: &Value) -> bool {
    let skip = |key: &str| matches!(key, "metadata" | "status" | "kind" | "apiVersion");
    let (Some(new_fields), Some(old_fields)) = (object.as_object(), old.as_object()) else { return false };
    new_fields.iter().any(|(key, value)| !skip(key) && old_fields.get(key) != Some(value))
        || old_fields.keys().any(|key| !skip(key) && !new_fields.contains_key(key))
}
