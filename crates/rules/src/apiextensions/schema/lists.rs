//! Validation of list and set types in a schema (`x-kubernetes-list-type`, `x-kubernetes-list-map-keys`).

use std::collections::BTreeSet;

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use super::{Strictness, must_have_type};
use crate::common::checks;

pub(super) fn validate_list_type(errors: &mut Errors, path: &Path<'_>, schema: &Value, strictness: Strictness) {
    const LIST_TYPE: &str = "x-kubernetes-list-type";
    let list_type = schema[LIST_TYPE].as_str();
    let keys = schema.items(&["x-kubernetes-list-map-keys"]);
    let at = path.child(LIST_TYPE);
    if let Some(list_type) = list_type {
        must_have_type(errors, path, schema, "array", "must be array if x-kubernetes-list-type is specified");
        if schema.text(&["type"]) == "array" && list_type == "set" && strictness.atomic_sets {
            validate_set_items(errors, &path.child("items"), &schema["items"]);
        }
        checks::one_of(errors, &at, list_type, &["atomic", "set", "map"]);
    }
    if !keys.is_empty() && list_type != Some("map") {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        match list_type {
            None => errors.required(&at, detail),
            Some(list_type) => errors.invalid(&at, list_type, detail),
        }
    }
    if list_type == Some("map") {
        validate_map_items(errors, path, schema, keys);
    }
    if strictness.sound_map_keys {
        validate_map_keys(errors, path, schema);
    }
}

/// Returns whether the items of a set are lists or maps that are not atomic.
pub fn has_non_atomic_set(schema: &Value) -> bool {
    let mut errors = Errors::new();
    if schema["x-kubernetes-list-type"] == "set" {
        validate_set_items(&mut errors, &Path::default(), &schema["items"]);
    }
    !errors.is_empty()
}

fn validate_set_items(errors: &mut Errors, path: &Path<'_>, items: &Value) {
    let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let list_type = &items["x-kubernetes-list-type"];
    match items.text(&["type"]) {
        "array" if !list_type.is_null() && list_type != "atomic" => {
            errors.invalid(&path.child("x-kubernetes-list-type"), list_type.clone(), detail);
        }
        "object" if items["x-kubernetes-map-type"] != "atomic" => {
            errors.invalid(&path.child("x-kubernetes-map-type"), list_type.clone(), detail);
        }
        _ => {}
    }
}

fn validate_map_items(errors: &mut Errors, path: &Path<'_>, schema: &Value, keys: &[Value]) {
    let keys_at = path.child("x-kubernetes-list-map-keys");
    if keys.is_empty() {
        errors.required(&keys_at, "must not be empty if x-kubernetes-list-type is map");
    }
    let items = &schema["items"];
    let at = path.child("items");
    if items.is_null() {
        errors.required(&at, "must have a schema if x-kubernetes-list-type is map");
        return;
    }
    if items.is_array() {
        errors.invalid(&at, items.clone(), "must only have a single schema if x-kubernetes-list-type is map");
        return;
    }
    let kind = items.text(&["type"]);
    if kind != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.invalid(&at.child("type"), kind, detail);
        return;
    }
    let rendered = || schema["x-kubernetes-list-map-keys"].clone();
    let mut seen = BTreeSet::new();
    for key in keys.iter().map(|key| key.as_str().unwrap_or_default()) {
        match items.at(&["properties", key]) {
            Value::Null => errors.invalid(&keys_at, rendered(), "entries must all be names of item properties"),
            property if matches!(property.text(&["type"]), "array" | "object") => {
                let properties = at.child("properties");
                let property = properties.key(key);
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.invalid(&property.child("type"), kind, detail);
            }
            _ => {}
        }
        if !seen.insert(key) {
            errors.invalid(&keys_at, rendered(), "must not contain duplicate entries");
        }
    }
}

/// Requires that the keys of map lists are required or have a default.
pub fn validate_map_keys(errors: &mut Errors, path: &Path<'_>, schema: &Value) {
    let items = &schema["items"];
    let Some(list_type) = schema["x-kubernetes-list-type"].as_str().filter(|kind| matches!(*kind, "set" | "map"))
    else {
        return;
    };
    if !items.is_object() {
        return;
    }
    let at = path.child("items");
    if items["nullable"] == true {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.forbidden(&at.child("nullable"), detail);
    }
    if list_type != "map" {
        return;
    }
    let required: Vec<&str> = items.items(&["required"]).iter().filter_map(Value::as_str).collect();
    let properties = at.child("properties");
    for key in schema.items(&["x-kubernetes-list-map-keys"]).iter().filter_map(Value::as_str) {
        let property = items.at(&["properties", key]);
        let at = properties.key(key);
        if property.is_null() {
            continue;
        }
        if !required.contains(&key) && !property.has(&["default"]) {
            let detail =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.required(&at.child("default"), detail);
        }
        if property["nullable"] == true {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.forbidden(&at.child("nullable"), detail);
        }
    }
}
