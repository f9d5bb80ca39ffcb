//! Validation of the metadata of every kind, built-in or custom.

use knarr_api::field::{Errors, Path, quoted};
use knarr_api::names::{self, Check};
use knarr_api::value::Read;
use serde_json::Value;
use std::collections::HashSet;

use crate::KindRules;
use crate::common::checks::{IMMUTABLE, NEGATIVE};
use crate::common::labels;

const MANAGER_LIMIT: usize = 128;
const SUBRESOURCE_LIMIT: usize = 256;

/// Returns all errors in the metadata of a new object. A generated name is set by now.
pub fn validate_create(object: &Value, namespaced: bool, rules: &dyn KindRules) -> Errors {
    let mut errors = Errors::new();
    validate(&mut errors, object.at(&["metadata"]), namespaced, rules.name_check());
    if rules.requires_known_finalizers() {
        standard_finalizers(&mut errors, object.at(&["metadata"]));
    }
    errors
}

/// Returns all errors in the metadata of an updated object.
///
/// Kubernetes validates it once for all kinds alike and again in the rules of most kinds, and its response lists the
/// errors of every pass; see [`KindRules::metadata_passes`].
pub fn validate_update(object: &Value, old: &Value, namespaced: bool, rules: &dyn KindRules) -> Errors {
    let (new_metadata, old_metadata) = (object.at(&["metadata"]), old.at(&["metadata"]));
    let mut errors = Errors::new();
    validate(&mut errors, new_metadata, namespaced, names::path_segment);
    validate_change(&mut errors, new_metadata, old_metadata);
    let rounds = rules.metadata_passes();
    for _ in 0..rounds.as_update {
        validate_change(&mut errors, new_metadata, old_metadata);
        if rules.requires_known_finalizers() {
            standard_finalizers(&mut errors, new_metadata);
        }
    }
    for _ in 0..rounds.as_create {
        validate(&mut errors, new_metadata, namespaced, rules.name_check());
        if rules.requires_known_finalizers() {
            standard_finalizers(&mut errors, new_metadata);
        }
    }
    errors
}

fn validate(errors: &mut Errors, metadata: &Value, namespaced: bool, check: Check) {
    let path = Path::root("metadata");
    let generate_name = metadata.text(&["generateName"]);
    if !generate_name.is_empty() {
        for wrong in check_prefix(generate_name, check) {
            errors.invalid(&path.child("generateName"), generate_name, wrong);
        }
    }
    let name = metadata.text(&["name"]);
    if name.is_empty() {
        errors.required(&path.child("name"), "name or generateName is required");
    } else {
        names::check(errors, &path.child("name"), name, check);
    }
    let namespace = metadata.text(&["namespace"]);
    match (namespaced, namespace.is_empty()) {
        (true, true) => errors.required(&path.child("namespace"), ""),
        (true, false) => names::check(errors, &path.child("namespace"), namespace, names::dns_label),
        (false, true) => {}
        (false, false) => errors.forbidden(&path.child("namespace"), "not allowed on this type"),
    }
    if let Some(generation) = metadata.integer(&["generation"]).filter(|generation| *generation < 0) {
        errors.invalid(&path.child("generation"), generation, NEGATIVE);
    }
    validate_maps_and_owners(errors, metadata, &path, true);
}

fn validate_change(errors: &mut Errors, metadata: &Value, old: &Value) {
    let path = Path::root("metadata");
    if old.has(&["deletionTimestamp"]) {
        no_new_finalizers(errors, metadata, old, &path.child("finalizers"));
    }
    if metadata.text(&["resourceVersion"]).is_empty() {
        errors.invalid(&path.child("resourceVersion"), "", "must be specified for an update");
    }
    let generation = metadata.integer(&["generation"]).unwrap_or_default();
    if generation < old.integer(&["generation"]).unwrap_or_default() {
        errors.invalid(&path.child("generation"), generation, "must not be decremented");
    }
    for field in ["name", "namespace", "uid"] {
        if metadata.text(&[field]) != old.text(&[field]) {
            errors.invalid(&path.child(field), metadata.text(&[field]), IMMUTABLE);
        }
    }
    for field in ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        if metadata.at(&[field]) != old.at(&[field]) {
            // Times are rendered as JSON strings, which have quotes like other strings.
            errors.invalid(&path.child(field), metadata.at(&[field]).clone(), IMMUTABLE);
        }
    }
    validate_maps_and_owners(errors, metadata, &path, false);
}

fn validate_maps_and_owners(errors: &mut Errors, metadata: &Value, path: &Path<'_>, with_finalizers: bool) {
    labels::validate_labels(errors, metadata.at(&["labels"]), &path.child("labels"));
    labels::validate_annotations(errors, metadata.at(&["annotations"]), &path.child("annotations"));
    owners(errors, metadata.at(&["ownerReferences"]), &path.child("ownerReferences"));
    if with_finalizers {
        finalizers(errors, metadata, &path.child("finalizers"));
    }
    let managed = path.child("managedFields");
    for (i, entry) in metadata.items(&["managedFields"]).iter().enumerate() {
        managed_fields(errors, entry, &managed.index(i));
    }
}

/// Checks a prefix for generated names. It may end in a dash because something is appended to it.
fn check_prefix(prefix: &str, check: Check) -> Vec<String> {
    if std::ptr::fn_addr_eq(check, names::path_segment as Check) {
        return names::path_segment(prefix).into_iter().filter(|wrong| !wrong.starts_with("may not be")).collect();
    }
    check(&mask_trailing_dash(prefix))
}

/// Replaces a trailing dash, which the check would reject although something follows it.
pub fn mask_trailing_dash(name: &str) -> std::borrow::Cow<'_, str> {
    match name.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => {
            let mut masked = rest.to_owned();
            masked.pop();
            masked.push('a');
            masked.into()
        }
        _ => name.into(),
    }
}

fn owners(errors: &mut Errors, references: &Value, path: &Path<'_>) {
    let mut controller: Option<String> = None;
    for reference in references.as_array().into_iter().flatten() {
        owner(errors, reference, path);
        if reference.flag(&["controller"]) == Some(true) {
            let this = format!("{}/{}", reference.text(&["kind"]), reference.text(&["name"]));
            match &controller {
                // The error shows all references, of which there may be thousands.
                Some(_) if errors.is_full() => {}
                Some(first) => errors.invalid_verbatim(
                    path,
                    references_json(references),
                    format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                    ),
                ),
                None => controller = Some(this),
            }
        }
    }
}

fn owner(errors: &mut Errors, reference: &Value, path: &Path<'_>) {
    let api_version = reference.text(&["apiVersion"]);
    let (group, version) = match api_version.matches('/').count() {
        0 if !api_version.is_empty() => ("", api_version),
        1 => api_version.split_once('/').unwrap_or_default(),
        _ => ("", ""),
    };
    if version.is_empty() {
        errors.invalid(&path.child("apiVersion"), api_version, "version must not be empty");
    }
    for field in ["kind", "name", "uid"] {
        if reference.text(&[field]).is_empty() {
            errors.invalid(&path.child(field), "", "must not be empty");
        }
    }
    if (group, version, reference.text(&["kind"])) == ("", "v1", "Event") {
        let detail = "/v1, Kind=Event is disallowed from being an owner";
        errors.invalid_verbatim(path, reference_json(reference), detail);
    }
}

/// Renders owner references as JSON, with the fields in the order in which Kubernetes declares them.
fn references_json(references: &Value) -> String {
    let each: Vec<String> = references.as_array().into_iter().flatten().map(reference_json).collect();
    format!("[{}]", each.join(","))
}

fn reference_json(reference: &Value) -> String {
    let mut fields = Vec::new();
    for name in ["apiVersion", "kind", "name", "uid"] {
        fields.push(format!("\"{name}\":{}", Value::from(reference.text(&[name]))));
    }
    for name in ["controller", "blockOwnerDeletion"] {
        if let Some(flag) = reference.flag(&[name]) {
            fields.push(format!("\"{name}\":{flag}"));
        }
    }
    format!("{{{}}}", fields.join(","))
}

fn finalizers(errors: &mut Errors, metadata: &Value, path: &Path<'_>) {
    let all = metadata.items(&["finalizers"]);
    for finalizer in all {
        names::check(errors, path, finalizer.as_str().unwrap_or_default(), names::qualified_name);
    }
    let has = |name: &str| all.iter().any(|finalizer| finalizer.as_str() == Some(name));
    if has("orphan") && has("foregroundDeletion") {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.invalid(path, metadata.at(&["finalizers"]).clone(), detail);
    }
}

/// Requires that finalizers without a domain are ones that Kubernetes defines.
fn standard_finalizers(errors: &mut Errors, metadata: &Value) {
    for (i, finalizer) in metadata.items(&["finalizers"]).iter().enumerate() {
        let name = finalizer.as_str().unwrap_or_default();
        if !name.contains('/') && !matches!(name, "kubernetes" | "orphan" | "foregroundDeletion") {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.invalid(&Path::root("metadata").item("finalizers", i), name, detail);
        }
    }
}

fn no_new_finalizers(errors: &mut Errors, metadata: &Value, old: &Value, path: &Path<'_>) {
    let before: HashSet<&str> = old.items(&["finalizers"]).iter().filter_map(Value::as_str).collect();
    let now = metadata.items(&["finalizers"]).iter().filter_map(Value::as_str);
    let mut added: Vec<&str> = now.filter(|finalizer| !before.contains(finalizer)).collect();
    added.sort_unstable();
    added.dedup();
    if !added.is_empty() {
        let list: Vec<String> = added.iter().map(|name| quoted(name)).collect();
        let detail = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            list.join(", ")
        );
        errors.forbidden(path, detail);
    }
}

fn managed_fields(errors: &mut Errors, entry: &Value, path: &Path<'_>) {
    let operation = entry.text(&["operation"]);
    if !matches!(operation, "Apply" | "Update") {
        errors.invalid(&path.child("operation"), operation, "must be `Apply` or `Update`");
    }
    let fields_type = entry.text(&["fieldsType"]);
    if !fields_type.is_empty() && fields_type != "FieldsV1" {
        errors.invalid(&path.child("fieldsType"), fields_type, "must be `FieldsV1`");
    }
    field_manager(errors, entry.text(&["manager"]), &path.child("manager"));
    if entry.text(&["subresource"]).len() > SUBRESOURCE_LIMIT {
        errors.too_long(&path.child("subresource"), SUBRESOURCE_LIMIT);
    }
}

/// Validates the name of a field manager, in managed fields or in the parameter `fieldManager`.
pub fn field_manager(errors: &mut Errors, manager: &str, path: &Path<'_>) {
    if manager.len() > MANAGER_LIMIT {
        errors.too_long(path, MANAGER_LIMIT);
    }
    for (position, character) in manager.char_indices() {
        if character.is_control() || (character.is_whitespace() && character != ' ') {
            let code = format!("U+{:04X}", character as u32);
            errors.invalid(path, manager, format!("invalid character {code} (at position {position})"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    struct Plain;
    impl KindRules for Plain {}

    fn read(errors: &Errors) -> Vec<String> {
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn new_metadata_is_checked() {
        for (metadata, expected) in [
            (json!({"name": "a", "namespace": "n"}), vec![]),
            (json!({"namespace": "n"}), vec!["metadata.name: Required value: name or generateName is required"]),
            (json!({"name": "a"}), vec!["metadata.namespace: Required value"]),
            (json!({"name": "a-12345", "generateName": "a-", "namespace": "n"}), vec![]),
            (
                json!({"name": "a", "namespace": "n", "finalizers": ["x"]}),
                vec![
                    "metadata.finalizers[0]: Invalid value: \"x\": name is neither a standard finalizer name nor is it \
                     fully qualified",
                ],
            ),
            (
                json!({"name": "a", "namespace": "n", "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1", "controller": true},
                    {"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "2", "controller": true},
                ]}),
                vec![
                    "metadata.ownerReferences: Invalid value: [{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"name\":\"p\",\
                     \"uid\":\"1\",\"controller\":true},{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"name\":\"q\",\
                     \"uid\":\"2\",\"controller\":true}]: Only one reference can have Controller set to true. Found \
                     \"true\" in references for Pod/p and Pod/q",
                ],
            ),
        ] {
            assert_eq!(read(&validate_create(&json!({"metadata": metadata}), true, &Plain)), expected);
        }
    }

    #[test]
    fn identity_does_not_change() {
        let old = json!({"metadata": {
            "name": "a", "namespace": "n", "uid": "1", "resourceVersion": "5", "deletionTimestamp": "2026-01-01T00:00:00Z",
        }});
        let mut new = old.clone();
        assert!(validate_update(&new, &old, true, &Plain).is_empty());
        new["metadata"]["uid"] = json!("2");
        new["metadata"]["finalizers"] = json!(["a/b"]);
        let errors = read(&validate_update(&new, &old, true, &Plain));
        assert_eq!(errors.len(), 4);
        assert_eq!(
            errors[..2],
            [
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found \
                 new finalizers []string{\"a/b\"}",
                "metadata.uid: Invalid value: \"2\": field is immutable",
            ]
        );
    }

    #[test]
    fn long_metadata_is_validated_in_proportion() {
        let start = std::time::Instant::now();
        let reference = json!({"apiVersion": "v1", "kind": "A", "name": "a", "controller": true});
        let owner = |at: usize| {
            let mut owner = reference.clone();
            owner["uid"] = at.to_string().into();
            owner
        };
        let owners: Vec<Value> = (0..30_000).map(owner).collect();
        let errors = validate_create(&json!({"metadata": {"name": "a", "ownerReferences": owners}}), false, &Plain);
        assert!(!errors.is_empty());
        let finalizers = |from: usize| (from..from + 60_000).map(|at| format!("a/{at}")).collect::<Vec<_>>();
        let object = |from: usize| {
            json!({"metadata": {"name": "a", "resourceVersion": "1", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "finalizers": finalizers(from)}})
        };
        assert!(!validate_update(&object(30_000), &object(0), false, &Plain).is_empty());
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }
}
