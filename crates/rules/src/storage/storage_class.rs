//! StorageClass: how volumes of a class are provisioned.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::{Read, Write};
use serde_json::Value;

use super::provisioner;
use crate::common::checks;
use crate::common::columns::{self, AGE, NAME, field};
use crate::common::node_labels;
use crate::kind::{Column, Context, KindRules, MetadataPasses};

const TYPE: &str = "io.k8s.api.storage.v1.StorageClass";
const DEFAULT_CLASS: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

/// The rules of StorageClass.
pub struct StorageClass;

impl KindRules for StorageClass {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        object.set_default(&["reclaimPolicy"], "Delete");
        object.set_default(&["volumeBindingMode"], "Immediate");
    }

    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        provisioner::validate_name(&mut errors, &Path::root("provisioner"), object.text(&["provisioner"]));
        provisioner::validate_parameters(&mut errors, object.fields(&["parameters"]), true);
        let policy = object.text(&["reclaimPolicy"]);
        if !policy.is_empty() {
            checks::one_of(&mut errors, &Path::root("reclaimPolicy"), policy, &["Delete", "Retain"]);
        }
        let mode = Path::root("volumeBindingMode");
        match object["volumeBindingMode"].as_str() {
            None => errors.required(&mode, ""),
            Some(value) => checks::one_of(&mut errors, &mode, value, &["Immediate", "WaitForFirstConsumer"]),
        }
        validate_topologies(&mut errors, object.items(&["allowedTopologies"]));
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        for field in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
            checks::immutable(&mut errors, &Path::root(field), &object[field], &old[field]);
        }
        errors
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Vec<String> {
        let mut warnings = Vec::new();
        for (i, term) in object.items(&["allowedTopologies"]).iter().enumerate() {
            for (j, expression) in term.items(&["matchLabelExpressions"]).iter().enumerate() {
                if let Some(message) = node_labels::deprecation(expression.text(&["key"])) {
                    warnings.push(format!("allowedTopologies[{i}].matchLabelExpressions[{j}].key: {message}"));
                }
            }
        }
        warnings
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                NAME,
                field("Provisioner", "string", TYPE, "provisioner"),
                field("ReclaimPolicy", "string", TYPE, "reclaimPolicy"),
                field("VolumeBindingMode", "string", TYPE, "volumeBindingMode"),
                field("AllowVolumeExpansion", "string", TYPE, "allowVolumeExpansion"),
                AGE,
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let annotated = |name: &&str| object.text(&["metadata", "annotations", name]) == "true";
        let mark = if DEFAULT_CLASS.iter().any(annotated) { " (default)" } else { "" };
        let or = |field: &str, default: &str| Value::from(object[field].as_str().unwrap_or(default));
        vec![
            format!("{}{mark}", object.text(&["metadata", "name"])).into(),
            object.text(&["provisioner"]).into(),
            or("reclaimPolicy", "Delete"),
            or("volumeBindingMode", "Immediate"),
            object.flag(&["allowVolumeExpansion"]).unwrap_or(false).into(),
            columns::age(object, now),
        ]
    }
}

fn validate_topologies(errors: &mut Errors, terms: &[Value]) {
    let mut seen: Vec<BTreeMap<&str, BTreeSet<&str>>> = Vec::new();
    for (index, term) in terms.iter().enumerate() {
        let topologies = Path::root("allowedTopologies");
        let term_path = topologies.index(index);
        let path = term_path.child("matchLabelExpressions");
        let mut by_key: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (index, expression) in term.items(&["matchLabelExpressions"]).iter().enumerate() {
            let path = path.index(index);
            let values = validate_topology_values(errors, &path.child("values"), expression.items(&["values"]));
            let key = expression.text(&["key"]);
            names::check(errors, &path.child("key"), key, names::qualified_name);
            if by_key.contains_key(key) {
                errors.duplicate(&path.child("key"), key);
            }
            by_key.insert(key, values);
        }
        // Upstream compares with a list of empty terms of equal length, so an empty term counts as a duplicate.
        let equals = seen.iter().filter(|other| **other == by_key).count();
        let starts = if by_key.is_empty() { terms.len() } else { 0 };
        for _ in 0..equals + starts {
            errors.duplicate(&path, "");
        }
        seen.push(by_key);
    }
}

fn validate_topology_values<'a>(errors: &mut Errors, path: &Path, values: &'a [Value]) -> BTreeSet<&'a str> {
    if values.is_empty() {
        errors.required(path, "");
    }
    let mut set = BTreeSet::new();
    for (index, value) in values.iter().enumerate() {
        let value = value.as_str().unwrap_or_default();
        if !set.insert(value) {
            errors.duplicate(&path.index(index), value);
        }
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};
    use serde_json::json;

    #[test]
    fn classes_are_defaulted_and_checked() {
        let right = defaulted(&StorageClass, json!({"provisioner": "X.example.com"}));
        assert_eq!(
            right,
            json!({"provisioner": "X.example.com", "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"})
        );
        assert!(messages(&StorageClass, &right, None).is_empty());
        let term = |key: &str| json!({"matchLabelExpressions": [{"key": key, "values": ["a"]}]});
        let wrong = json!({"reclaimPolicy": "Recycle", "volumeBindingMode": "Later",
            "allowedTopologies": [term("zone"), term("zone")]});
        assert_eq!(
            messages(&StorageClass, &wrong, None),
            [
                "provisioner: Required value",
                "reclaimPolicy: Unsupported value: \"Recycle\": supported values: \"Delete\", \"Retain\"",
                "volumeBindingMode: Unsupported value: \"Later\": supported values: \"Immediate\", \"WaitForFirstConsumer\"",
                "allowedTopologies[1].matchLabelExpressions: Duplicate value: \"\"",
            ]
        );
    }

    #[test]
    fn most_of_a_class_stays() {
        let old = defaulted(&StorageClass, json!({"provisioner": "a", "parameters": {"x": "1"}}));
        let new = defaulted(&StorageClass, json!({"provisioner": "b", "reclaimPolicy": "Retain"}));
        assert_eq!(
            messages(&StorageClass, &new, Some(&old)),
            [
                "parameters: Invalid value: null: field is immutable",
                "provisioner: Invalid value: \"b\": field is immutable",
                "reclaimPolicy: Invalid value: \"Retain\": field is immutable",
            ]
        );
    }
}
