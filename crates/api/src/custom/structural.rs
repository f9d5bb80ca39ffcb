//! Whether a schema is structural: every field has a type, and logical junctors only add to what is stated outside them.

use super::props::{Additional, Props};
use crate::field::{Error, Errors, Path};
use regex::Regex;
use serde_json::Value;

/// What a schema may be at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Parts of JSON schema that definitions may not use at all; the first one found, in words.
pub fn unsupported(value: &Value) -> Option<String> {
    let fields = value.as_object()?;
    let given = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Object(fields)) => !fields.is_empty(),
        Some(_) => true,
    };
    for name in ["id", "$schema", "$ref", "patternProperties", "dependencies", "additionalItems", "definitions"] {
        let also_empty = name == "additionalItems" && fields.get(name).is_some_and(|value| !value.is_null());
        if given(name) || also_empty {
            let name = name.strip_prefix("$s").map_or_else(|| name.to_owned(), |rest| format!("s{rest}"));
            return Some(format!("OpenAPIV3Schema '{name}' is not supported"));
        }
    }
    if fields.get("items").is_some_and(Value::is_array) {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
    }
    let one = ["items", "additionalProperties", "not"].into_iter().filter_map(|name| fields.get(name));
    let named = fields.get("properties").and_then(Value::as_object).into_iter().flat_map(|all| all.values());
    let listed = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|name| fields.get(name)?.as_array()).flatten();
    one.chain(named).chain(listed).find_map(unsupported)
}

/// Everything that keeps a schema from being structural, sorted by its words.
pub fn check(path: &Path<'_>, props: &Props) -> Errors {
    let mut errors = Errors::new();
    invariants(props, Level::Root, path, &mut errors);
    complete(props, Some(props), path, path, &mut errors);
    errors.0.sort_by_cached_key(Error::to_string);
    errors
}

fn invariants(props: &Props, level: Level, path: &Path<'_>, errors: &mut Errors) {
    match &props.items {
        Some(items) => invariants(items, Level::Item, &path.child("items"), errors),
        None if props.kind == "array" => errors.required(&path.child("items"), "must be specified"),
        None => {}
    }
    let properties = path.child("properties");
    for (name, property) in &props.properties {
        invariants(property, Level::Field, &properties.key(name), errors);
    }
    let additional = path.child("additionalProperties");
    if props.additional.is_some() && level == Level::Root {
        errors.forbidden(&additional, "must not be used at the root");
    }
    if let Some(schema) = props.additional_schema() {
        invariants(schema, Level::Field, &additional, errors);
    }
    extensions(props, path, errors);
    let skip_any_of = is_int_or_string(&props.any_of);
    let skip_in_all_of = props.all_of.first().is_some_and(|first| is_int_or_string(&first.any_of));
    validations(props, skip_any_of, skip_in_all_of, path, errors);
    kind_of(props, level, path, errors);
    meta_fields(props, level, &properties, errors);
    if props.embedded && !props.preserve_unknown && props.properties.is_empty() {
        errors.required(
            &properties,
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        );
    }
}

fn kind_of(props: &Props, level: Level, path: &Path<'_>, errors: &mut Errors) {
    let kind = path.child("type");
    if props.embedded && props.kind != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        if props.kind.is_empty() {
            errors.required(&kind, detail);
        } else {
            errors.invalid(&kind, props.kind.as_str(), detail);
        }
    } else if props.kind.is_empty() && !props.int_or_string && !props.preserve_unknown {
        errors.required(
            &kind,
            match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            },
        );
    }
    if props.embedded && props.additional.is_some() {
        errors.forbidden(
            &path.child("additionalProperties"),
            "must not be used if x-kubernetes-embedded-resource is set",
        );
    }
    if level == Level::Root && !props.kind.is_empty() && props.kind != "object" {
        errors.invalid(&kind, props.kind.as_str(), "must be object at the root");
    }
}

fn meta_fields(props: &Props, level: Level, properties: &Path<'_>, errors: &mut Errors) {
    let is_resource = level == Level::Root || props.embedded;
    for name in ["kind", "apiVersion"] {
        if let Some(property) = props.properties.get(name).filter(|property| is_resource && property.kind != "string") {
            errors.invalid(&properties.key(name).child("type"), property.kind.as_str(), "must be string");
        }
    }
    let Some(metadata) = props.properties.get("metadata") else { return };
    let path = properties.key("metadata");
    if is_resource && metadata.kind != "object" {
        errors.invalid(&path.child("type"), metadata.kind.as_str(), "must be object");
    }
    if level == Level::Root {
        let only_names = metadata.properties.keys().all(|name| name == "name" || name == "generateName");
        let mut rest = Props { kind: String::new(), default: None, ..metadata.clone() };
        if only_names {
            rest.properties.clear();
        }
        if rest != Props::default() {
            errors.forbidden(
                &path,
                "must not specify anything other than name and generateName, but metadata is implicitly specified",
            );
        }
    }
}

fn extensions(props: &Props, path: &Path<'_>, errors: &mut Errors) {
    let detail = "must be false if x-kubernetes-int-or-string is true";
    if props.int_or_string && props.preserve_unknown {
        errors.invalid(&path.child("x-kubernetes-preserve-unknown-fields"), true, detail);
    }
    if props.int_or_string && props.embedded {
        errors.invalid(&path.child("x-kubernetes-embedded-resource"), true, detail);
    }
}

fn validations(props: &Props, skip_any_of: bool, skip_in_all_of: bool, path: &Path<'_>, errors: &mut Errors) {
    if !skip_any_of {
        for (at, nested) in props.any_of.iter().enumerate() {
            nested_invariants(nested, false, false, &path.child("anyOf").index(at), errors);
        }
    }
    for (at, nested) in props.all_of.iter().enumerate() {
        nested_invariants(nested, skip_in_all_of && at == 0, false, &path.child("allOf").index(at), errors);
    }
    for (at, nested) in props.one_of.iter().enumerate() {
        nested_invariants(nested, false, false, &path.child("oneOf").index(at), errors);
    }
    if let Some(nested) = &props.not {
        nested_invariants(nested, false, false, &path.child("not"), errors);
    }
    if !props.pattern.is_empty()
        && let Err(error) = Regex::new(&props.pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {error}");
        errors.invalid(&path.child("pattern"), props.pattern.as_str(), detail);
    }
}

/// Inside a junctor only validations may stand.
fn nested_invariants(props: &Props, skip_any_of: bool, skip_in_all_of: bool, path: &Path<'_>, errors: &mut Errors) {
    validations(props, skip_any_of, skip_in_all_of, path, errors);
    if let Some(items) = &props.items {
        nested_invariants(items, false, false, &path.child("items"), errors);
    }
    let properties = path.child("properties");
    for (name, property) in &props.properties {
        nested_invariants(property, false, false, &properties.key(name), errors);
    }
    let forbidden = [
        ("type", !props.kind.is_empty(), "must be empty to be structural"),
        (
            "additionalProperties",
            matches!(props.additional, Some(Additional::Allowed(true) | Additional::Schema(_))),
            "must be undefined to be structural",
        ),
        ("default", props.default.is_some(), "must be undefined to be structural"),
        ("title", !props.title.is_empty(), "must be empty to be structural"),
        ("description", !props.description.is_empty(), "must be empty to be structural"),
        ("nullable", props.nullable, "must be false to be structural"),
        ("x-kubernetes-preserve-unknown-fields", props.preserve_unknown, "must be false to be structural"),
        ("x-kubernetes-embedded-resource", props.embedded, "must be false to be structural"),
        ("x-kubernetes-int-or-string", props.int_or_string, "must be false to be structural"),
        ("x-kubernetes-list-map-keys", !props.list_map_keys.is_empty(), "must be empty to be structural"),
        ("x-kubernetes-list-type", props.list_type.is_some(), "must be undefined to be structural"),
        ("x-kubernetes-map-type", props.map_type.is_some(), "must be undefined to be structural"),
        ("x-kubernetes-validations", !props.rules.is_empty(), "must be empty to be structural"),
    ];
    for (name, given, detail) in forbidden {
        if given {
            errors.forbidden(&path.child(name), detail);
        }
    }
    if props.properties.contains_key("metadata") {
        errors.forbidden(&properties.key("metadata"), "must not be specified in a nested context");
    }
}

/// What a junctor speaks of must be stated outside it.
fn complete(
    nested: &Props,
    outside: Option<&Props>,
    outside_path: &Path<'_>,
    nested_path: &Path<'_>,
    errors: &mut Errors,
) {
    let Some(outside) = outside else {
        return errors.required(outside_path, format!("because it is defined in {nested_path}"));
    };
    if let Some(not) = &nested.not {
        complete_nested(not, Some(outside), outside_path, &nested_path.child("not"), errors);
    }
    for (name, all) in [("allOf", &nested.all_of), ("anyOf", &nested.any_of), ("oneOf", &nested.one_of)] {
        for (at, one) in all.iter().enumerate() {
            complete_nested(one, Some(outside), outside_path, &nested_path.child(name).index(at), errors);
        }
    }
}

fn complete_nested(
    nested: &Props,
    outside: Option<&Props>,
    outside_path: &Path<'_>,
    nested_path: &Path<'_>,
    errors: &mut Errors,
) {
    let Some(stated) = outside else {
        return errors.required(outside_path, format!("because it is defined in {nested_path}"));
    };
    complete(nested, outside, outside_path, nested_path, errors);
    if let Some(items) = &nested.items {
        let (outside_path, nested_path) = (outside_path.child("items"), nested_path.child("items"));
        complete_nested(items, stated.items.as_deref(), &outside_path, &nested_path, errors);
    }
    let (outside_properties, nested_properties) = (outside_path.child("properties"), nested_path.child("properties"));
    for (name, property) in &nested.properties {
        let (outside_path, nested_path) = (outside_properties.key(name), nested_properties.key(name));
        complete_nested(property, stated.properties.get(name), &outside_path, &nested_path, errors);
    }
}

/// The way to say that a value is a number or a text, which may stand in a junctor though it states types.
fn is_int_or_string(any_of: &[Props]) -> bool {
    let only = |kind: &str| Props { kind: kind.to_owned(), ..Props::default() };
    any_of == [only("integer"), only("string")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn problems(schema: Value) -> Vec<String> {
        check(&Path::root("s"), &Props::read(&schema)).0.iter().map(Error::to_string).collect()
    }

    #[test]
    fn structural_schemas_pass() {
        let schema = json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"port": {"x-kubernetes-int-or-string": true,
                "anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": "^x"},
                "list": {"type": "array", "items": {"type": "string"}},
                "map": {"type": "object", "additionalProperties": {"type": "integer"}},
                "any": {"x-kubernetes-preserve-unknown-fields": true}},
                "allOf": [{"properties": {"list": {"minItems": 1}}}]},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}}}}});
        assert_eq!(problems(schema), [""; 0]);
    }

    #[test]
    fn what_is_not_structural_is_named() {
        for (schema, expected) in [
            (json!({}), vec!["s.type: Required value: must not be empty at the root"]),
            (json!({"type": "string"}), vec![r#"s.type: Invalid value: "string": must be object at the root"#]),
            (
                json!({"type": "object", "additionalProperties": {"type": "string"}}),
                vec!["s.additionalProperties: Forbidden: must not be used at the root"],
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "array"}, "b": {}}}),
                vec![
                    "s.properties[a].items: Required value: must be specified",
                    "s.properties[b].type: Required value: must not be empty for specified object fields",
                ],
            ),
            (
                json!({"type": "object", "anyOf": [{"type": "object", "properties": {"a": {"minimum": 1}}}]}),
                vec![
                    "s.anyOf[0].type: Forbidden: must be empty to be structural",
                    "s.properties[a]: Required value: because it is defined in s.anyOf[0].properties[a]",
                ],
            ),
            (
                json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
                vec![
                    "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but \
                     metadata is implicitly specified",
                ],
            ),
        ] {
            assert_eq!(problems(schema.clone()), expected, "{schema}");
        }
    }

    #[test]
    fn unsupported_parts_are_found_anywhere() {
        let schema = json!({"properties": {"a": {"items": {"$ref": "x"}}}});
        assert_eq!(unsupported(&schema).as_deref(), Some("OpenAPIV3Schema '$ref' is not supported"));
        assert_eq!(unsupported(&json!({"$schema": "x"})).as_deref(), Some("OpenAPIV3Schema 'schema' is not supported"));
        assert_eq!(unsupported(&json!({"properties": {"id": {"type": "string"}}})), None);
    }
}
