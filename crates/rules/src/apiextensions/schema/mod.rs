//! Validation of the JSON schemas of a definition.

mod lists;
mod rules;

pub use lists::{has_non_atomic_set, validate_map_keys};

use knarr_api::custom;
use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use super::{defaults, schema_fields, structural};
use crate::common::{checks, go_json};
use lists::validate_list_type;
use rules::validate_rules;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

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

/// Which checks apply to schemas. Updates skip those that the stored definition already violates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Strictness {
    /// Types must be known ones.
    pub valid_types: bool,
    /// Schemas must be structural.
    pub structural: bool,
    /// Defaults must not have unspecified fields.
    pub pruned_defaults: bool,
    /// Items of sets must be scalar or atomic.
    pub atomic_sets: bool,
    /// Keys of map lists must be required or have a default.
    pub sound_map_keys: bool,
}

/// Validates a `{openAPIV3Schema: …}`.
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

/// Validates the root of a schema with the status subresource, where only some fields are allowed.
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
            errors.invalid_verbatim(path, go_json::escape_html(&schema_fields::to_json(schema)), detail);
            return;
        }
    }
}

/// The position in the schema.
#[derive(Clone)]
struct Place {
    at_root: bool,
    /// Inside `metadata`, `kind` or `apiVersion` of an object.
    meta: bool,
    /// Why a default is not allowed here.
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

/// Rejects keywords of JSON Schema that definitions may not use.
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
