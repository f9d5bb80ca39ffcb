//! Pod templates in Deployments, Jobs and other workloads, and the kind PodTemplate.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use super::pod::options::Options;
use super::pod::{annotations, defaults, validation, warnings};
use crate::common::{columns, labels};
use crate::kind::{Column, Context, KindRules};

/// Sets the defaults of a pod template, the object with `metadata` and `spec`.
pub fn set_defaults(template: &mut Value) {
    if let Some(template) = template.as_object_mut() {
        defaults::set_spec_defaults(crate::common::defaults::object_or_new(template, "spec"));
    }
}

/// Warns about the name of an object whose pods get their names from it, if it is not a DNS label.
pub fn name_warning(object: &Value) -> Option<String> {
    let wrong = names::dns_label(object.text(&["metadata", "name"]));
    (!wrong.is_empty()).then(|| {
        format!(
            "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS \
             label is recommended: [{}]",
            wrong.join(" ")
        )
    })
}

/// Validates a template. An update tolerates violations that `old`, the stored template, already has.
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

/// The kind PodTemplate, a standalone template.
pub struct PodTemplate;

const COLUMNS: &[Column] = &[
    columns::NAME,
    columns::text("Containers", "string", "Names of each container in the template."),
    columns::text("Images", "string", "Images referenced by each container in the template."),
    columns::text("Pod Labels", "string", "The labels for the pod template."),
];

impl KindRules for PodTemplate {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        if let Some(fields) = object.as_object_mut() {
            let template = crate::common::defaults::object_or_new(fields, "template");
            defaults::set_spec_defaults(crate::common::defaults::object_or_new(template, "spec"));
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let before = old.map(|old| old.at(&["template"]));
        validate(&mut errors, object.at(&["template"]), before, &Path::root("template"));
        errors
    }

    fn warnings(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Vec<String> {
        if old.is_some_and(|old| old.at(&["template"]) == object.at(&["template"])) {
            return Vec::new();
        }
        warnings::of_template(object.at(&["template"]), &Path::root("template"))
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        let template = object.at(&["template"]);
        let [names, images] = columns::containers_and_images(template);
        vec![columns::name(object), names, images, labels::display(template.at(&["metadata", "labels"])).into()]
    }
}
