//! Validation of the metadata in a template: only labels and annotations are allowed.

use knarr_api::field::{Errors, Path};
use serde_json::Value;

use super::labels;

/// Validates the metadata of a template.
pub fn validate(errors: &mut Errors, path: &Path<'_>, metadata: &Value) {
    labels::validate_annotations(errors, &metadata["annotations"], &path.child("annotations"));
    labels::validate_labels(errors, &metadata["labels"], &path.child("labels"));
    for (field, value) in metadata.as_object().into_iter().flatten() {
        if !matches!(field.as_str(), "annotations" | "labels") && !value.is_null() {
            let rendered = if field == "uid" { "uID" } else { field };
            errors.forbidden(&path.child(rendered), "cannot be set");
        }
    }
}
