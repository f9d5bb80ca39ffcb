//! Which JSON schemas a definition may have.

use std::collections::BTreeSet;

use knarr_api::custom;
use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use super::{defaults, field_path, schema_fields, structural};
use crate::common::checks;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
const ALLOWED_AT_ROOT: [&str; 22] = [
    "Description",
    "Type",
    "Format",
    "Title",
    "Maximum",
    "ExclusiveMaximum",
    "Minimum",
    "ExclusiveMinimum",
    "MaxLength",
    "MinLength",
    "Pattern",
    "MaxItems",
    "MinItems",
    "UniqueItems",
    "MultipleOf",
    "Required",
    "Items",
    "Properties",
    "ExternalDocs",
    "Example",
    "XPreserveUnknownFields",
    "XValidations",
];

/// How strictly schemas are judged; updates tolerate what a definition already had.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Strictness {
    pub valid_types: bool,
    pub structural: bool,
    pub pruned_defaults: bool,
    pub atomic_sets: bool,
    pub sound_map_keys: bool,
}

/// Checks a `{openAPIV3Schema: …}`.
pub fn validate(errors: &mut Errors, path: &Path<'_>, holder: &Value, has_status: bool, strictness: Strictness) {
    let schema = &holder["openAPIV3Schema"];
    if schema.is_null() {
        return;
    }
    let path = path.child("openAPIV3Schema");
    let before = errors.0.len();
    if has_status {
        validate_root_with_status(errors, &path, schema);
    }
    if schema["nullable"] == true {
        errors.forbidden(&path.child("nullable"), "nullable cannot be true at the root");
    }
    let mut sound = false;
    let unsupported = if strictness.structural { structural::unsupported(schema) } else { None };
    if strictness.structural && unsupported.is_none() {
        let mut faults = structural::validate(&path, schema);
        if faults.is_empty() {
            defaults::validate(&mut faults, &path, schema, strictness.pruned_defaults);
        }
        sound = faults.is_empty();
        errors.extend(faults);
    }
    let place = Place { at_root: true, meta: false, no_defaults: None };
    validate_schema(errors, &path, schema, &place, strictness);
    if sound && errors.0.len() == before {
        errors.extend(custom::check_rules(&path, schema));
    }
    if let Some(wrong) = unsupported.filter(|_| errors.0.len() == before) {
        errors.invalid(&path, "", wrong);
    }
}

/// With a status of its own, a kind's schema may say only some things at its root.
fn validate_root_with_status(errors: &mut Errors, path: &Path<'_>, schema: &Value) {
    for field in schema_fields::present(schema) {
        if field == "Type" {
            let kind = schema.text(&["type"]);
            if kind != "object" {
                let detail = "only \"object\" is allowed as the type at the root of the schema if the status subresource is \
                            enabled";
                errors.invalid(&path.child("type"), kind, detail);
                return;
            }
        } else if !ALLOWED_AT_ROOT.contains(&field) {
            let allowed = ALLOWED_AT_ROOT.join(" ");
            let detail = format!(
                "only [{allowed}] fields are allowed at the root of the schema if the status subresource is enabled"
            );
            errors.invalid_verbatim(path, checks::escaped(&schema_fields::to_json(schema)), detail);
            return;
        }
    }
}

/// Where in the schema one stands.
#[derive(Clone)]
struct Place {
    at_root: bool,
    /// Inside `metadata`, `kind` or `apiVersion` of an object.
    meta: bool,
    /// Why there may be no default here.
    no_defaults: Option<String>,
}

impl Place {
    fn below(&self) -> Place {
        Place { at_root: false, ..self.clone() }
    }
}

fn validate_schema(errors: &mut Errors, path: &Path<'_>, schema: &Value, place: &Place, strictness: Strictness) {
    if !schema.is_object() {
        return;
    }
    validate_supported(errors, path, schema, place, strictness);
    if schema["uniqueItems"] == true {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.forbidden(&path.child("uniqueItems"), detail);
    }
    validate_properties(errors, path, schema, place, strictness);
    let below = place.below();
    validate_schema(errors, &path.child("not"), &schema["not"], &below, strictness);
    for list in ["allOf", "oneOf", "anyOf"] {
        for (index, nested) in schema.items(&[list]).iter().enumerate() {
            validate_schema(errors, &path.item(list, index), nested, &below, strictness);
        }
    }
    let definitions = path.child("definitions");
    for (name, nested) in schema.fields(&["definitions"]).into_iter().flatten() {
        validate_schema(errors, &definitions.key(name), nested, &below, strictness);
    }
    match &schema["items"] {
        Value::Array(list) => {
            for (index, item) in list.iter().enumerate() {
                validate_schema(errors, &path.item("items", index), item, &below, strictness);
            }
        }
        item => validate_schema(errors, &path.child("items"), item, &below, strictness),
    }
    let dependencies = path.child("dependencies");
    for (name, nested) in schema.fields(&["dependencies"]).into_iter().flatten() {
        validate_schema(errors, &dependencies.key(name), nested, &below, strictness);
    }
    if schema["x-kubernetes-preserve-unknown-fields"] == false {
        let at = path.child("x-kubernetes-preserve-unknown-fields");
        errors.invalid(&at, false, "must be true or undefined");
    }
    validate_map_type(errors, path, schema);
    validate_list_type(errors, path, schema, strictness);
    validate_rules(errors, path, schema);
}

/// Parts of JSON Schema that definitions may not use.
fn validate_supported(errors: &mut Errors, path: &Path<'_>, schema: &Value, place: &Place, strictness: Strictness) {
    let kind = schema.text(&["type"]);
    if strictness.valid_types && !kind.is_empty() {
        checks::one_of(errors, &path.child("type"), kind, &TYPES);
    }
    if let Some(reason) = place.no_defaults.as_ref().filter(|_| schema.has(&["default"])) {
        errors.forbidden(&path.child("default"), format!("must not be set {reason}"));
    }
    for name in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        let specified = match &schema[name] {
            Value::Null => false,
            Value::String(text) => !text.is_empty() || name == "$ref",
            Value::Object(fields) => !fields.is_empty() || name == "additionalItems",
            _ => true,
        };
        if specified {
            errors.forbidden(&path.child(name), format!("{name} is not supported"));
        }
    }
    if kind == "null" {
        errors.forbidden(&path.child("type"), "type cannot be set to null, use nullable as an alternative");
    }
    if schema["items"].as_array().is_some_and(|list| !list.is_empty()) {
        errors.forbidden(&path.child("items"), "items must be a schema object and not an array");
    }
    if place.meta && schema["x-kubernetes-embedded-resource"] == true {
        let detail = "must not be used inside of resource meta";
        errors.forbidden(&path.child("x-kubernetes-embedded-resource"), detail);
    }
}

fn validate_properties(errors: &mut Errors, path: &Path<'_>, schema: &Value, place: &Place, strictness: Strictness) {
    let properties = schema.fields(&["properties"]).filter(|properties| !properties.is_empty());
    let additional = &schema["additionalProperties"];
    if !additional.is_null() {
        if properties.is_some() && *additional != true {
            let detail = "additionalProperties and properties are mutual exclusive";
            errors.forbidden(&path.child("additionalProperties"), detail);
        }
        let mut below = place.below();
        if place.meta {
            below.no_defaults = Some("inside additionalProperties applying to object metadata".to_owned());
        }
        validate_schema(errors, &path.child("additionalProperties"), additional, &below, strictness);
    }
    let at = path.child("properties");
    for (name, property) in properties.into_iter().flatten() {
        let mut below = place.below();
        let is_meta = matches!(name.as_str(), "metadata" | "kind" | "apiVersion");
        if is_meta && (place.at_root || schema["x-kubernetes-embedded-resource"] == true) {
            below.meta = true;
            if place.at_root {
                below.no_defaults = Some(format!("in top-level {name}"));
            }
        }
        validate_schema(errors, &at.key(name), property, &below, strictness);
    }
}

fn validate_map_type(errors: &mut Errors, path: &Path<'_>, schema: &Value) {
    let Some(map_type) = schema["x-kubernetes-map-type"].as_str() else { return };
    must_have_type(errors, path, schema, "object", "must be object if x-kubernetes-map-type is specified");
    checks::one_of(errors, &path.child("x-kubernetes-map-type"), map_type, &["atomic", "granular"]);
}

fn must_have_type(errors: &mut Errors, path: &Path<'_>, schema: &Value, expected: &str, detail: &str) {
    match schema.text(&["type"]) {
        kind if kind == expected => {}
        "" => errors.required(&path.child("type"), detail),
        kind => errors.invalid(&path.child("type"), kind, detail),
    }
}

fn validate_list_type(errors: &mut Errors, path: &Path<'_>, schema: &Value, strictness: Strictness) {
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

/// Whether the items of a set cannot be told apart as wholes.
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

/// Keys of map-lists must always be there.
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

fn validate_rules(errors: &mut Errors, path: &Path<'_>, schema: &Value) {
    for (index, rule) in schema.items(&["x-kubernetes-validations"]).iter().enumerate() {
        validate_rule(errors, &path.item("x-kubernetes-validations", index), schema, rule);
    }
}

fn validate_rule(errors: &mut Errors, path: &Path<'_>, schema: &Value, rule: &Value) {
    let has_line_break = |text: &str| text.contains(['\n', '\r']);
    let (text, message) = (rule.text(&["rule"]).trim(), rule.text(&["message"]));
    let at = path.child("message");
    if text.is_empty() {
        errors.required(&path.child("rule"), "rule is not specified");
    } else if !message.is_empty() && message.trim().is_empty() {
        errors.invalid(&at, message, "must be non-empty if specified");
    } else if has_line_break(message.trim()) {
        errors.invalid(&at, message, "must not contain line breaks");
    } else if has_line_break(text) && message.trim().is_empty() {
        errors.required(&at, "message must be specified if rule contains line breaks");
    }
    let expression = rule.text(&["messageExpression"]);
    if !expression.is_empty() && expression.trim().is_empty() {
        errors.required(&path.child("messageExpression"), "messageExpression must be non-empty if specified");
    }
    if let Some(reason) = rule["reason"].as_str() {
        checks::one_of(errors, &path.child("reason"), reason, &REASONS);
    }
    let field = rule.text(&["fieldPath"]);
    let at = path.child("fieldPath");
    if !field.is_empty() && field.trim().is_empty() {
        errors.invalid(&at, field, "must be non-empty if specified");
    }
    if has_line_break(field) {
        errors.invalid(&at, field, "must not contain line breaks");
    }
    if !field.is_empty()
        && structural::unsupported(schema).is_none()
        && field_path::resolve(field, schema, true).is_err()
    {
        errors.invalid(&at, field, "must be a valid path");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const STRICT: Strictness = Strictness {
        valid_types: true,
        structural: true,
        pruned_defaults: true,
        atomic_sets: true,
        sound_map_keys: true,
    };

    #[test]
    fn wrong_schemas_are_reported() {
        let list = |items: Value| json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": items});
        for (property, wrong) in [
            (json!({"type": "string", "default": "x"}), vec![]),
            (
                json!({"type": "text"}),
                vec![
                    "openAPIV3Schema.properties[p].type: Unsupported value: \"text\": supported values: \"array\", \"boolean\", \
                     \"integer\", \"number\", \"object\", \"string\"",
                ],
            ),
            (
                list(json!({"type": "object", "properties": {"name": {"type": "string"}}})),
                vec![
                    "openAPIV3Schema.properties[p].items.properties[name].default: Required value: this property is in \
                     x-kubernetes-list-map-keys, so it must have a default or be a required property",
                ],
            ),
            (
                list(json!({"type": "string"})),
                vec![
                    "openAPIV3Schema.properties[p].items.type: Invalid value: \"string\": must be object if parent array's \
                     x-kubernetes-list-type is map",
                ],
            ),
            (
                json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}}),
                vec![
                    "openAPIV3Schema.properties[p].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime \
                     complexity becomes quadratic",
                ],
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": false}),
                vec![
                    "openAPIV3Schema.properties[p].additionalProperties: Forbidden: additionalProperties and properties are mutual \
                     exclusive",
                ],
            ),
            (
                json!({"type": "string", "x-kubernetes-validations": [{"rule": " "}, {"rule": "a\nb"}]}),
                vec![
                    "openAPIV3Schema.properties[p].x-kubernetes-validations[0].rule: Required value: rule is not specified",
                    "openAPIV3Schema.properties[p].x-kubernetes-validations[1].message: Required value: message must be \
                     specified if rule contains line breaks",
                ],
            ),
        ] {
            let holder = json!({"openAPIV3Schema": {"type": "object", "properties": {"p": property}}});
            let mut errors = Errors::new();
            validate(&mut errors, &Path::default(), &holder, false, STRICT);
            let read: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
            assert_eq!(read, wrong);
        }
    }

    #[test]
    fn the_root_with_a_status_is_plain() {
        let holder = json!({"openAPIV3Schema": {"type": "object", "oneOf": [{"required": ["a"]}], "properties": {"a": {"type": "string"}}}});
        let mut errors = Errors::new();
        validate(&mut errors, &Path::root("s"), &holder, true, STRICT);
        assert_eq!(errors.0.len(), 1);
        assert!(errors.0[0].detail.starts_with("only [Description Type Format Title"));
    }
}
