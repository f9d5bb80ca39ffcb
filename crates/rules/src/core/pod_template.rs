//! Pod templates: what Deployments, Jobs and the others make their pods from.

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use super::pod::defaults;
use crate::common::labels;

/// Sets the defaults of a template's pod spec. `template` is the object that holds `metadata` and `spec`.
pub fn set_defaults(template: &mut Value) {
    if let Some(template) = template.as_object_mut() {
        defaults::set_spec_defaults(crate::common::defaults::object_or_new(template, "spec"));
    }
}

/// All that is wrong with a template. `old` is the template before an update: what it already had is judged less
/// strictly.
pub fn validate(errors: &mut Errors, template: &Value, _old: Option<&Value>, path: &Path<'_>) {
    let metadata = path.child("metadata");
    labels::validate_labels(errors, template.at(&["metadata", "labels"]), &path.child("labels"));
    labels::validate_annotations(errors, template.at(&["metadata", "annotations"]), &metadata.child("annotations"));
}
