//! PersistentVolumeClaims, and the templates of them that StatefulSets and pods' ephemeral volumes have.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::persistent_volume::{CLASS_ANNOTATION, display_phase};
use super::pod::defaults::set_claim_spec_defaults;
use super::pod::warnings::claim_spec;
use crate::common::checks::{IMMUTABLE, one_of};
use crate::common::columns::{self, field, text, wide};
use crate::common::equality::same;
use crate::common::{defaults as set, diff, label_selector, labels, resources};
use crate::core::pod::validation::resources::quantity;
use crate::kind::{Column, Context, KindRules, MetadataPasses, keep_field};

const SPEC: &str = "io.k8s.api.core.v1.PersistentVolumeClaimSpec";
const STATUS: &str = "io.k8s.api.core.v1.PersistentVolumeClaimStatus";
const COLUMNS: &[Column] = &[
    columns::NAME,
    field("Status", "string", STATUS, "phase"),
    field("Volume", "string", SPEC, "volumeName"),
    field("Capacity", "string", STATUS, "capacity"),
    field("Access Modes", "string", STATUS, "accessModes"),
    text("StorageClass", "string", "StorageClass of the pvc"),
    text("VolumeAttributesClass", "string", "VolumeAttributesClass of the pvc"),
    columns::AGE,
    wide(field("VolumeMode", "string", SPEC, "volumeMode")),
];
pub const ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
pub const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];

pub struct PersistentVolumeClaim;

impl KindRules for PersistentVolumeClaim {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        let Some(claim) = object.as_object_mut() else { return };
        let status = set::object_or_new(claim, "status");
        set::text(status, "phase", "Pending");
        for list in ["capacity", "allocatedResources"] {
            resources::round_to_milli(status.get_mut(list));
        }
        set_claim_spec_defaults(set::object_or_new(claim, "spec"));
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        object.set(&["status"], json!({"phase": "Pending"}));
        sync_data_sources(object, None);
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        if context.subresource == "status" {
            return keep_field(object, old, "spec");
        }
        keep_field(object, old, "status");
        sync_data_sources(object, Some(old));
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource != "status" {
            validate_spec(&mut errors, object.at(&["spec"]), &Path::root("spec"), Options::of(old));
        }
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource == "status" {
            status(&mut errors, object);
        } else {
            changes(&mut errors, object, old);
        }
        errors
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>, context: &Context<'_>) -> Vec<String> {
        let mut warnings = Vec::new();
        if context.subresource == "status" {
            return warnings;
        }
        if object.has(&["metadata", "annotations", CLASS_ANNOTATION]) {
            warnings.push(format!(
                "metadata.annotations[{CLASS_ANNOTATION}]: deprecated since v1.8; use \"storageClassName\" attribute instead"
            ));
        }
        claim_spec(&mut warnings, object.at(&["spec"]), &Path::root("spec"));
        warnings
    }

    fn has_status(&self) -> bool {
        true
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = object.at(&["spec"]);
        let is_bound = !spec.text(&["volumeName"]).is_empty();
        let (mut capacity, mut modes) = ("", String::new());
        if is_bound {
            capacity = object.at(&["status", "capacity", "storage"]).as_str().unwrap_or("0");
            modes = display_access_modes(object.items(&["status", "accessModes"]));
        }
        let class = object.at(&["metadata", "annotations"]).get(CLASS_ANNOTATION).and_then(Value::as_str);
        let or_unset = |field: &str| Value::from(spec.at(&[field]).as_str().unwrap_or("<unset>"));
        vec![
            columns::name(object),
            display_phase(object).into(),
            spec.text(&["volumeName"]).into(),
            capacity.into(),
            modes.into(),
            class.unwrap_or(spec.text(&["storageClassName"])).into(),
            or_unset("volumeAttributesClassName"),
            columns::age(object, now),
            or_unset("volumeMode"),
        ]
    }
}

/// Access modes as tables show them.
pub fn display_access_modes(modes: &[Value]) -> String {
    let has = |mode: &str| modes.iter().any(|other| other.as_str() == Some(mode));
    let short: Vec<&str> =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")]
            .iter()
            .filter(|(mode, _)| has(mode))
            .map(|(_, short)| *short)
            .collect();
    short.join(",")
}

/// What a claim is filled from is told in two fields, of which clients may know only one.
fn sync_data_sources(claim: &mut Value, old: Option<&Value>) {
    let old_spec = old.map_or(&Value::Null, |old| old.at(&["spec"]));
    let had_reference = old_spec.has(&["dataSourceRef"]);
    // A source in another namespace is a feature that is off.
    if !had_reference && !claim.text(&["spec", "dataSourceRef", "namespace"]).is_empty() {
        claim.remove(&["spec", "dataSourceRef"]);
    }
    let had_source = had_reference || old_spec.has(&["dataSource"]);
    if !had_source && !claim.has(&["spec", "dataSourceRef"]) && !is_claim_or_snapshot(claim.at(&["spec", "dataSource"]))
    {
        claim.remove(&["spec", "dataSource"]);
    }
    let (source, reference) = (claim.at(&["spec", "dataSource"]), claim.at(&["spec", "dataSourceRef"]));
    match (source.is_null(), reference.is_null()) {
        (false, true) => {
            let source = source.clone();
            claim.set(&["spec", "dataSourceRef"], source);
        }
        (true, false) if reference.text(&["namespace"]).is_empty() => {
            let mut reference = reference.clone();
            reference.remove(&["namespace"]);
            claim.set(&["spec", "dataSource"], reference);
        }
        _ => {}
    }
}

fn is_claim_or_snapshot(source: &Value) -> bool {
    matches!(
        (source.text(&["apiGroup"]), source.text(&["kind"])),
        ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
    )
}

fn changes(errors: &mut Errors, claim: &Value, old: &Value) {
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
    // For these an empty name and none are not the same.
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

/// A claim without a class may get one, and one named in the old annotation may move to the field.
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

fn status(errors: &mut Errors, claim: &Value) {
    const STATES: &[&str] = &[
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    if claim.items(&["spec", "accessModes"]).is_empty() {
        errors.required(&Path::root("Spec").child("accessModes"), "");
    }
    let path = Path::root("status");
    let capacity = path.child("capacity");
    for (name, amount) in claim.fields(&["status", "capacity"]).into_iter().flatten() {
        valid_amount(errors, amount, &capacity.key(name));
    }
    let states = path.child("allocatedResourceStatuses");
    for (name, state) in claim.fields(&["status", "allocatedResourceStatuses"]).into_iter().flatten() {
        resource_key(errors, name, &states);
        if !STATES.contains(&state.as_str().unwrap_or_default()) {
            errors.not_supported(&states, name.as_str(), STATES);
        }
    }
    let allocated = path.child("allocatedResources");
    for (name, amount) in claim.fields(&["status", "allocatedResources"]).into_iter().flatten() {
        if resource_key(errors, name, &allocated) && valid_amount(errors, amount, &allocated.key(name)) {
            quantity(errors, "storage", &resources::quantity(amount), &allocated.key(name));
        }
    }
}

fn valid_amount(errors: &mut Errors, amount: &Value, path: &Path<'_>) -> bool {
    let value = resources::quantity(amount).value();
    if value < 0 {
        errors.invalid(path, value, "must be a valid resource quantity");
    }
    value >= 0
}

fn resource_key(errors: &mut Errors, name: &str, path: &Path<'_>) -> bool {
    let wrong = names::qualified_name(name);
    let is_other = wrong.is_empty() && resources::is_native(name) && name != "storage";
    if is_other {
        errors.not_supported(path, name, &["storage"]);
    }
    for text in &wrong {
        errors.invalid(path, name, text.as_str());
    }
    wrong.is_empty() && !is_other
}

/// How strictly a claim is judged. What a stored claim already has, it may keep.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub invalid_selector_values: bool,
    pub invalid_source_groups: bool,
}

impl Options {
    pub fn of(old: Option<&Value>) -> Options {
        let Some(spec) = old.map(|old| old.at(&["spec"])) else { return Options::default() };
        Options {
            invalid_selector_values: label_selector::is_faulty(spec.at(&["selector"])),
            invalid_source_groups: spec.has(&["dataSource", "apiGroup"]) || spec.has(&["dataSourceRef", "apiGroup"]),
        }
    }
}

/// The template of a claim that is made for a pod's ephemeral volume.
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

/// A claim's spec, in a claim or a template.
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

/// The ways in which a volume may be mounted; one pod alone goes with no other way.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{context, defaulted, messages};

    fn claim(spec: Value) -> Value {
        let mut whole = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        for (field, value) in spec.as_object().into_iter().flatten() {
            whole[field] = value.clone();
        }
        defaulted(&PersistentVolumeClaim, json!({"metadata": {"name": "c", "namespace": "n"}, "spec": whole}))
    }

    #[test]
    fn claims_are_checked() {
        for (spec, expected) in [
            (json!({}), vec![]),
            (json!({"accessModes": []}), vec!["spec.accessModes: Required value: at least 1 access mode is required"]),
            (json!({"resources": {}}), vec!["spec.resources[storage]: Required value"]),
            (
                json!({"resources": {"requests": {"storage": "0"}}}),
                vec!["spec.resources[storage]: Invalid value: \"0\": must be greater than zero"],
            ),
            (
                json!({"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]}),
                vec!["spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes"],
            ),
            (
                json!({"volumeMode": "Tape"}),
                vec!["spec.volumeMode: Unsupported value: \"Tape\": supported values: \"Block\", \"Filesystem\""],
            ),
        ] {
            assert_eq!(messages(&PersistentVolumeClaim, &claim(spec.clone()), None), expected, "{spec}");
        }
    }

    #[test]
    fn sources_are_set_in_both_fields() {
        let mut object = claim(json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "a"}}));
        PersistentVolumeClaim.prepare_create(&mut object, &context("v1"));
        assert_eq!(object["spec"]["dataSourceRef"], json!({"kind": "PersistentVolumeClaim", "name": "a"}));
        let mut object = claim(json!({"dataSource": {"kind": "Ship", "name": "a"}}));
        PersistentVolumeClaim.prepare_create(&mut object, &context("v1"));
        assert_eq!(object["spec"].get("dataSource"), None);
    }

    #[test]
    fn bound_claims_may_grow() {
        let mut old = claim(json!({"volumeName": "v"}));
        old["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
        let mut new = old.clone();
        new["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
        assert!(messages(&PersistentVolumeClaim, &new, Some(&old)).is_empty());
        new["spec"]["resources"]["requests"]["storage"] = json!("1Mi");
        assert_eq!(
            messages(&PersistentVolumeClaim, &new, Some(&old)),
            ["spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"]
        );
        let mut moved = old.clone();
        moved["spec"]["volumeName"] = json!("w");
        assert!(messages(&PersistentVolumeClaim, &moved, Some(&old))[0].starts_with(
            "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for \
             bound claims\n@@ "
        ));
    }
}
