//! Validation of the spec of a claim, in a PersistentVolumeClaim or in a template.

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use super::{ACCESS_MODES, VOLUME_MODES};
use crate::common::checks::one_of;
use crate::common::{label_selector, labels, resources};
use crate::core::pod::validation::resources::quantity;

/// How strictly a claim is validated. An update tolerates violations that the stored claim already has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub invalid_selector_values: bool,
    pub invalid_source_groups: bool,
}

impl Options {
    /// Returns the options for an update of `old`, or for a new claim.
    pub fn of(old: Option<&Value>) -> Options {
        let Some(spec) = old.map(|old| old.at(&["spec"])) else { return Options::default() };
        Options {
            invalid_selector_values: label_selector::is_invalid(spec.at(&["selector"])),
            invalid_source_groups: spec.has(&["dataSource", "apiGroup"]) || spec.has(&["dataSourceRef", "apiGroup"]),
        }
    }
}

/// Validates the template of a claim for an ephemeral volume.
pub fn validate_template(errors: &mut Errors, template: &Value, path: &Path<'_>) {
    let metadata = template.at(&["metadata"]);
    let metadata_path = path.child("metadata");
    labels::validate_annotations(errors, metadata.at(&["annotations"]), &metadata_path.child("annotations"));
    labels::validate_labels(errors, metadata.at(&["labels"]), &metadata_path.child("labels"));
    for (field, value) in metadata.as_object().into_iter().flatten() {
        if !matches!(field.as_str(), "annotations" | "labels") && !value.is_null() {
            let rendered = if field == "uid" { "uID" } else { field };
            errors.forbidden(&metadata_path.child(rendered), "cannot be set");
        }
    }
    validate_spec(errors, template.at(&["spec"]), &path.child("spec"), Options::default());
}

/// Validates the spec of a claim, in a claim or in a template.
pub fn validate_spec(errors: &mut Errors, spec: &Value, path: &Path<'_>, options: Options) {
    let modes = spec.items(&["accessModes"]);
    if modes.is_empty() {
        errors.required(&path.child("accessModes"), "at least 1 access mode is required");
    }
    if spec.has(&["selector"]) {
        let lax = options.invalid_selector_values;
        label_selector::validate(errors, &path.child("selector"), spec.at(&["selector"]), lax);
    }
    access_modes(errors, modes, &path.child("accessModes"));
    storage_request(errors, spec, path);
    if let Some(class) = spec.at(&["storageClassName"]).as_str().filter(|class| !class.is_empty()) {
        names::check(errors, &path.child("storageClassName"), class, names::dns_subdomain);
    }
    if let Some(mode) = spec.at(&["volumeMode"]).as_str() {
        one_of(errors, &path.child("volumeMode"), mode, VOLUME_MODES);
    }
    data_sources(errors, spec, path, options);
    if let Some(class) = spec.at(&["volumeAttributesClassName"]).as_str().filter(|class| !class.is_empty()) {
        names::check(errors, &path.child("volumeAttributesClassName"), class, names::dns_subdomain);
    }
}

/// Validates access modes. `ReadWriteOncePod` excludes all others.
pub fn access_modes(errors: &mut Errors, modes: &[Value], path: &Path<'_>) {
    let (mut single, mut others) = (false, false);
    for mode in modes.iter().filter_map(Value::as_str) {
        one_of(errors, path, mode, ACCESS_MODES);
        single |= mode == "ReadWriteOncePod";
        others |= mode != "ReadWriteOncePod" && ACCESS_MODES.contains(&mode);
    }
    if single && others {
        errors.forbidden(path, "may not use ReadWriteOncePod with other access modes");
    }
}

fn storage_request(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    let path = path.child("resources");
    let path = path.key("storage");
    let request = spec.at(&["resources", "requests", "storage"]);
    if request.is_null() {
        return errors.required(&path, "");
    }
    let amount = resources::quantity(request);
    if amount.signum() <= 0 {
        errors.invalid(&path, amount.to_string(), "must be greater than zero");
    } else {
        quantity(errors, "storage", &amount, &path);
    }
}

fn data_sources(errors: &mut Errors, spec: &Value, path: &Path<'_>, options: Options) {
    let (source, reference) = (spec.at(&["dataSource"]), spec.at(&["dataSourceRef"]));
    if !source.is_null() {
        data_source(errors, source, &path.child("dataSource"), options);
    }
    if !reference.is_null() {
        let path = path.child("dataSourceRef");
        data_source(errors, reference, &path, options);
        let namespace = reference.text(&["namespace"]);
        if !namespace.is_empty() {
            names::check(errors, &path.child("namespace"), namespace, names::dns_label);
        }
    }
    if source.is_null() || reference.is_null() {
        return;
    }
    let differs = ["apiGroup", "kind", "name"].iter().any(|field| source.at(&[field]) != reference.at(&[field]));
    let rendered = "{}";
    if !reference.text(&["namespace"]).is_empty() {
        errors.invalid_verbatim(path, rendered, "may not be specified when dataSourceRef.namespace is specified");
    } else if differs {
        errors.invalid_verbatim(path, rendered, "must match dataSourceRef");
    }
}

fn data_source(errors: &mut Errors, source: &Value, path: &Path<'_>, options: Options) {
    for field in ["name", "kind"] {
        if source.text(&[field]).is_empty() {
            errors.required(&path.child(field), "");
        }
    }
    let (group, kind) = (source.text(&["apiGroup"]), source.text(&["kind"]));
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        errors.invalid(path, kind, detail);
    }
    if !group.is_empty() && !options.invalid_source_groups {
        names::check(errors, &path.child("apiGroup"), group, names::dns_subdomain);
    }
}
