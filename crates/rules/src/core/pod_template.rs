//! Pod templates: what Deployments, Jobs and the others make their pods from.

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use super::pod::options::Options;
use super::pod::{annotations, defaults, prepare, validation};
use crate::common::labels;

/// Sets the defaults of a template's pod spec. `template` is the object that holds `metadata` and `spec`.
pub fn set_defaults(template: &mut Value) {
    if let Some(template) = template.as_object_mut() {
        defaults::set_spec_defaults(crate::common::defaults::object_or_new(template, "spec"));
    }
}

/// Removes what Kubernetes has behind a feature gate that is off, unless `old`, the template before an update, has it.
/// Kinds with templates call it before their objects are checked.
pub fn drop_disabled(template: &mut Value, old: Option<&Value>) {
    let old_spec = old.map_or(&Value::Null, |old| old.at(&["spec"]));
    if let Some(spec) = template.get_mut("spec") {
        prepare::drop_disabled_from_spec(spec, old_spec);
    }
}

/// All that is wrong with a template. `old` is the template before an update: what it already had is judged less
/// strictly.
pub fn validate(errors: &mut Errors, template: &Value, old: Option<&Value>, path: &Path<'_>) {
    let options = Options::of(old, false);
    let (metadata, spec) = (template.at(&["metadata"]), template.at(&["spec"]));
    let (spec_path, annotations_path) = (path.child("spec"), path.child("annotations"));
    labels::validate_labels(errors, metadata.at(&["labels"]), &path.child("labels"));
    labels::validate_annotations(errors, metadata.at(&["annotations"]), &annotations_path);
    annotations::validate(errors, metadata.at(&["annotations"]), spec, &annotations_path, &options);
    validation::spec(errors, spec, None, &spec_path, &options);
    annotations::agree_with_fields(errors, metadata, spec, &spec_path);
    if !spec.items(&["ephemeralContainers"]).is_empty() {
        let detail = "ephemeral containers not allowed in pod template";
        errors.forbidden(&spec_path.child("ephemeralContainers"), detail);
    }
}
