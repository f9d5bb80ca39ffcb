//! Validation of labels and annotations.

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use serde_json::Value;

const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// Validates labels.
pub fn validate_labels(errors: &mut Errors, labels: &Value, path: &Path<'_>) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        names::check(errors, path, key, names::qualified_name);
        names::check(errors, path, value.as_str().unwrap_or_default(), names::label_value);
    }
}

/// Validates annotations: keys are qualified names regardless of case, and the total size is at most 256 KiB.
pub fn validate_annotations(errors: &mut Errors, annotations: &Value, path: &Path<'_>) {
    let mut size = 0;
    for (key, value) in annotations.as_object().into_iter().flatten() {
        size += key.len() + value.as_str().unwrap_or_default().len();
        if key.bytes().any(|byte| byte.is_ascii_uppercase()) || !key.is_ascii() {
            for wrong in names::qualified_name(&key.to_lowercase()) {
                errors.invalid(path, key.as_str(), wrong);
            }
        } else {
            names::check(errors, path, key, names::qualified_name);
        }
    }
    if size > ANNOTATIONS_LIMIT {
        errors.too_long(path, ANNOTATIONS_LIMIT);
    }
}

/// Renders labels for tables: `a=b,c=d`.
pub fn display(labels: &Value) -> String {
    let pairs: Vec<String> = labels
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    if pairs.is_empty() { "<none>".to_owned() } else { pairs.join(",") }
}
