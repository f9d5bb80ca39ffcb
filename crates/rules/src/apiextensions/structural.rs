//! Checks that a schema is structural: it states the type of every field, so that unknown fields can be recognized.

use knarr_api::field::{Errors, Path};
use knarr_api::json_schema::{PATTERN_TOO_LARGE, estimate_pattern};
use knarr_api::value::Read;
use serde_json::{Value, json};

/// How large all patterns of a schema may be when compiled, in bytes.
const MAX_PATTERNS: u64 = 64 << 20;
/// What each byte of a refused pattern counts towards that.
const REFUSED_BYTE: u64 = 1 << 10;

/// The position in a schema.
#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Reports why a schema is not structural, in the order of upstream's messages.
pub fn validate(path: &Path<'_>, schema: &Value) -> Errors {
    let mut errors = Errors::new();
    validate_schema(&mut errors, schema, Level::Root, path);
    validate_complete(&mut errors, schema, Some(schema), path, path);
    validate_patterns(&mut errors, schema, &mut { MAX_PATTERNS }, path);
    errors.0.sort_by_cached_key(ToString::to_string);
    errors
}

/// Returns why a schema cannot be converted to a structural one at all.
pub fn unsupported(schema: &Value) -> Option<String> {
    for (name, rendered) in [("id", "id"), ("$schema", "schema"), ("$ref", "$ref")] {
        if !schema.text(&[name]).is_empty() {
            return Some(format!("OpenAPIV3Schema '{rendered}' is not supported"));
        }
    }
    for name in ["patternProperties", "dependencies", "additionalItems", "definitions"] {
        let value = &schema[name];
        if !value.is_null() && value.as_object().is_none_or(|fields| !fields.is_empty()) {
            return Some(format!("OpenAPIV3Schema '{name}' is not supported"));
        }
    }
    if schema["x-kubernetes-preserve-unknown-fields"] == false {
        return Some("internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined".to_owned());
    }
    if schema["items"].is_array() {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
    }
    let lists = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|list| schema.items(&[list]));
    let single = ["not", "items", "additionalProperties"].into_iter().map(|field| &schema[field]);
    let properties = schema.fields(&["properties"]).into_iter().flatten().map(|(_, schema)| schema);
    lists.chain(single).chain(properties).filter(|schema| schema.is_object()).find_map(unsupported)
}

fn flag(schema: &Value, name: &str) -> bool {
    schema[name] == true
}

fn validate_schema(errors: &mut Errors, schema: &Value, level: Level, path: &Path<'_>) {
    let kind = schema.text(&["type"]);
    let items = &schema["items"];
    if kind == "array" && items.is_null() {
        errors.required(&path.child("items"), "must be specified");
    }
    if items.is_object() {
        validate_schema(errors, items, Level::Item, &path.child("items"));
    }
    let properties = path.child("properties");
    for (name, property) in schema.fields(&["properties"]).into_iter().flatten() {
        validate_schema(errors, property, Level::Field, &properties.key(name));
    }
    let additional = &schema["additionalProperties"];
    if !additional.is_null() {
        if level == Level::Root {
            errors.forbidden(&path.child("additionalProperties"), "must not be used at the root");
        }
        if additional.is_object() {
            validate_schema(errors, additional, Level::Field, &path.child("additionalProperties"));
        }
    }
    validate_extensions(errors, schema, path);
    validate_values(errors, schema, is_int_or_string(schema), first_is_int_or_string(schema), path);
    validate_type(errors, schema, level, path);
    validate_meta(errors, schema, level, path);
    let embedded = flag(schema, "x-kubernetes-embedded-resource");
    let no_properties = schema.fields(&["properties"]).is_none_or(|fields| fields.is_empty());
    if embedded && !flag(schema, "x-kubernetes-preserve-unknown-fields") && no_properties {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without \
                    x-kubernetes-preserve-unknown-fields";
        errors.required(&properties, detail);
    }
}

fn validate_extensions(errors: &mut Errors, schema: &Value, path: &Path<'_>) {
    if flag(schema, "x-kubernetes-int-or-string") {
        for name in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
            if flag(schema, name) {
                errors.invalid(&path.child(name), true, "must be false if x-kubernetes-int-or-string is true");
            }
        }
    }
}

fn validate_type(errors: &mut Errors, schema: &Value, level: Level, path: &Path<'_>) {
    let kind = schema.text(&["type"]);
    let at = path.child("type");
    let embedded = flag(schema, "x-kubernetes-embedded-resource");
    if embedded && kind != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        match kind {
            "" => errors.required(&at, detail),
            kind => errors.invalid(&at, kind, detail),
        }
    } else if kind.is_empty()
        && !flag(schema, "x-kubernetes-int-or-string")
        && !flag(schema, "x-kubernetes-preserve-unknown-fields")
    {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.required(&at, detail);
    }
    if embedded && schema.has(&["additionalProperties"]) {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        errors.forbidden(&path.child("additionalProperties"), detail);
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.invalid(&at, kind, "must be object at the root");
    }
}

/// Requires the standard types of `metadata`, `kind` and `apiVersion`.
fn validate_meta(errors: &mut Errors, schema: &Value, level: Level, path: &Path<'_>) {
    let checked = level == Level::Root || flag(schema, "x-kubernetes-embedded-resource");
    let properties = path.child("properties");
    for name in ["kind", "apiVersion"] {
        let property = schema.at(&["properties", name]);
        if checked && !property.is_null() && property.text(&["type"]) != "string" {
            let at = properties.key(name);
            errors.invalid(&at.child("type"), property.text(&["type"]), "must be string");
        }
    }
    let Some(metadata) = schema.at(&["properties", "metadata"]).as_object() else { return };
    let at = properties.key("metadata");
    let kind = metadata.get("type").and_then(Value::as_str).unwrap_or_default();
    if checked && kind != "object" {
        errors.invalid(&at.child("type"), kind, "must be object");
    }
    if level == Level::Root && !metadata.iter().all(|(field, value)| may_be_in_metadata(field, value)) {
        let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        errors.forbidden(&at, detail);
    }
}

fn may_be_in_metadata(field: &str, value: &Value) -> bool {
    match field {
        "type" | "default" => true,
        "properties" => value
            .as_object()
            .is_some_and(|fields| fields.keys().all(|name| matches!(name.as_str(), "name" | "generateName"))),
        _ => value.is_null(),
    }
}

fn int_or_string() -> Value {
    json!([{"type": "integer"}, {"type": "string"}])
}

fn is_int_or_string(schema: &Value) -> bool {
    schema["anyOf"] == int_or_string()
}

fn first_is_int_or_string(schema: &Value) -> bool {
    schema.items(&["allOf"]).first().is_some_and(is_int_or_string)
}

/// Validates `allOf`, `anyOf`, `oneOf` and `not`, which may restrict values but not declare types.
fn validate_values(errors: &mut Errors, schema: &Value, skip_any: bool, skip_first_all: bool, path: &Path<'_>) {
    if !skip_any {
        for (index, nested) in schema.items(&["anyOf"]).iter().enumerate() {
            validate_nested(errors, nested, false, &path.item("anyOf", index));
        }
    }
    for (index, nested) in schema.items(&["allOf"]).iter().enumerate() {
        validate_nested(errors, nested, skip_first_all && index == 0, &path.item("allOf", index));
    }
    for (index, nested) in schema.items(&["oneOf"]).iter().enumerate() {
        validate_nested(errors, nested, false, &path.item("oneOf", index));
    }
    if schema.has(&["not"]) {
        validate_nested(errors, &schema["not"], false, &path.child("not"));
    }
}

/// Checks the patterns of a schema and of all schemas in it. `left` is how large they may be together, so that neither checking
/// them nor using them exhausts the server.
fn validate_patterns(errors: &mut Errors, schema: &Value, left: &mut u64, path: &Path<'_>) {
    let pattern = schema.text(&["pattern"]);
    if !pattern.is_empty() {
        if *left == 0 {
            return;
        }
        let estimated = estimate_pattern(pattern).and_then(|size| {
            *left = left.saturating_sub(size);
            if *left == 0 { Err(PATTERN_TOO_LARGE.to_owned()) } else { Ok(()) }
        });
        if let Err(why) = estimated {
            // Reading a pattern that is refused took time, too.
            *left = left.saturating_sub(pattern.len() as u64 * REFUSED_BYTE);
            let detail = format!("must be a valid regular expression, but isn't: error parsing regexp: {why}");
            errors.invalid(&path.child("pattern"), pattern, detail);
        }
    }
    for list in ["anyOf", "allOf", "oneOf"] {
        for (index, nested) in schema.items(&[list]).iter().enumerate() {
            validate_patterns(errors, nested, left, &path.item(list, index));
        }
    }
    for field in ["not", "items", "additionalProperties"] {
        if schema[field].is_object() {
            validate_patterns(errors, &schema[field], left, &path.child(field));
        }
    }
    let properties = path.child("properties");
    for (name, property) in schema.fields(&["properties"]).into_iter().flatten() {
        validate_patterns(errors, property, left, &properties.key(name));
    }
}

fn validate_nested(errors: &mut Errors, schema: &Value, skip_any: bool, path: &Path<'_>) {
    validate_values(errors, schema, skip_any, false, path);
    if schema["items"].is_object() {
        validate_nested(errors, &schema["items"], false, &path.child("items"));
    }
    let properties = path.child("properties");
    for (name, property) in schema.fields(&["properties"]).into_iter().flatten() {
        validate_nested(errors, property, false, &properties.key(name));
    }
    const EMPTY: &str = "must be empty to be structural";
    const UNDEFINED: &str = "must be undefined to be structural";
    const FALSE: &str = "must be false to be structural";
    for (name, detail) in [
        ("type", EMPTY),
        ("additionalProperties", UNDEFINED),
        ("default", UNDEFINED),
        ("title", EMPTY),
        ("description", EMPTY),
        ("nullable", FALSE),
        ("x-kubernetes-preserve-unknown-fields", FALSE),
        ("x-kubernetes-embedded-resource", FALSE),
        ("x-kubernetes-int-or-string", FALSE),
        ("x-kubernetes-list-map-keys", EMPTY),
        ("x-kubernetes-list-type", UNDEFINED),
        ("x-kubernetes-map-type", UNDEFINED),
        ("x-kubernetes-validations", EMPTY),
    ] {
        let specified = match &schema[name] {
            Value::Null | Value::Bool(false) => false,
            Value::String(text) => !text.is_empty() || detail == UNDEFINED,
            Value::Array(items) => !items.is_empty(),
            _ => true,
        };
        if specified {
            errors.forbidden(&path.child(name), detail);
        }
    }
    if schema.has(&["properties", "metadata"]) {
        errors.forbidden(&properties.key("metadata"), "must not be specified in a nested context");
    }
}

/// Requires that fields in `allOf`, `anyOf`, `oneOf` and `not` also occur in the schema itself, at `at`.
fn validate_complete(errors: &mut Errors, junctors: &Value, schema: Option<&Value>, at: &Path<'_>, path: &Path<'_>) {
    if junctors.has(&["not"]) {
        validate_nested_complete(errors, &junctors["not"], schema, at, &path.child("not"));
    }
    for list in ["allOf", "anyOf", "oneOf"] {
        for (index, nested) in junctors.items(&[list]).iter().enumerate() {
            validate_nested_complete(errors, nested, schema, at, &path.item(list, index));
        }
    }
}

fn validate_nested_complete(
    errors: &mut Errors,
    nested: &Value,
    schema: Option<&Value>,
    at: &Path<'_>,
    path: &Path<'_>,
) {
    let Some(schema) = schema else {
        errors.required(at, format!("because it is defined in {path}"));
        return;
    };
    validate_complete(errors, nested, Some(schema), at, path);
    if nested["items"].is_object() {
        let items = Some(&schema["items"]).filter(|items| items.is_object());
        validate_nested_complete(errors, &nested["items"], items, &at.child("items"), &path.child("items"));
    }
    let (at_properties, path_properties) = (at.child("properties"), path.child("properties"));
    for (name, property) in nested.fields(&["properties"]).into_iter().flatten() {
        let (at, path) = (at_properties.key(name), path_properties.key(name));
        match schema.at(&["properties", name]) {
            Value::Null => errors.required(&at, format!("because it is defined in {path}")),
            known => validate_nested_complete(errors, property, Some(known), &at, &path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_structural_or_not() {
        for (schema, wrong) in [
            (
                json!({"type": "object", "properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true}}}),
                vec![],
            ),
            (json!({}), vec!["s.type: Required value: must not be empty at the root"]),
            (
                json!({"type": "array"}),
                vec![
                    "s.items: Required value: must be specified",
                    "s.type: Invalid value: \"array\": must be object at the root",
                ],
            ),
            (
                json!({"type": "object", "properties": {"a": {}, "l": {"type": "array", "items": {}}}}),
                vec![
                    "s.properties[a].type: Required value: must not be empty for specified object fields",
                    "s.properties[l].items.type: Required value: must not be empty for specified array items",
                ],
            ),
            (
                json!({"type": "object", "anyOf": [{"type": "object", "properties": {"b": {"minimum": 1}}}]}),
                vec![
                    "s.anyOf[0].type: Forbidden: must be empty to be structural",
                    "s.properties[b]: Required value: because it is defined in s.anyOf[0].properties[b]",
                ],
            ),
            (
                json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
                vec![
                    "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata \
                     is implicitly specified",
                ],
            ),
            (
                json!({"type": "object", "additionalProperties": {"type": "string"}}),
                vec!["s.additionalProperties: Forbidden: must not be used at the root"],
            ),
        ] {
            let errors = validate(&Path::root("s"), &schema);
            let read: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
            assert_eq!(read, wrong);
        }
    }

    /// Many patterns that are small as text and large when compiled: the schema is refused, and soon.
    #[test]
    fn patterns_are_limited_together() {
        let schema = |count: usize, pattern: &str| {
            let field = |number: usize| (format!("f{number:05}"), json!({"type": "string", "pattern": pattern}));
            json!({"type": "object", "properties": (0..count).map(field).collect::<serde_json::Map<_, _>>()})
        };
        const LARGE: &str = r"^[\p{L}\p{N}]{1,60}$";
        for (count, pattern, wrong) in
            [(5_000, "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", 0), (3, LARGE, 0), (20_000, LARGE, 1), (2, r"^\Qa.b\E$", 0)]
        {
            let errors = validate(&Path::root("s"), &schema(count, pattern));
            assert_eq!(errors.0.len(), wrong, "{count} of {pattern}");
        }
    }
}
