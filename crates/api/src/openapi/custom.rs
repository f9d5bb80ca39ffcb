//! The OpenAPI schemas of custom resources.

use serde_json::{Map, Value, json};

use super::Source;
use super::schemas::Style;
use crate::catalogue::Kind;

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// A version of a custom kind with its schema.
#[derive(Debug, Clone)]
pub struct CustomSchema<'a> {
    pub(super) kind: &'a Kind,
    /// The definition's `openAPIV3Schema`.
    pub(super) schema: &'a Value,
    pub(super) type_name: String,
    pub(super) list_type_name: String,
}

impl<'a> CustomSchema<'a> {
    /// The OpenAPI schemas of a custom kind.
    pub fn new(kind: &'a Kind, schema: &'a Value) -> CustomSchema<'a> {
        CustomSchema { kind, schema, type_name: kind.type_name.clone(), list_type_name: kind.list_type_name() }
    }
}

/// The name of a custom kind's type: the group from its end, then version and kind.
pub fn custom_type_name(group: &str, version: &str, kind: &str) -> String {
    let mut parts: Vec<&str> = group.split('.').rev().collect();
    parts.extend([version, kind]);
    parts.join(".")
}

pub(super) fn definition(source: &Source<'_>, style: Style, name: &str) -> Option<Value> {
    let own = |custom: &&CustomSchema<'_>| custom.type_name == name;
    if let Some(custom) = source.custom.iter().find(own) {
        return Some(object(source, style, custom));
    }
    let custom = source.custom.iter().find(|custom| custom.list_type_name == name)?;
    Some(list(source, style, custom))
}

fn object(source: &Source<'_>, style: Style, custom: &CustomSchema<'_>) -> Value {
    let keeps_unknown = preserves(custom.schema);
    let mut out = if keeps_unknown && style == Style::V2 {
        // Older clients would refuse fields that are not in the schema.
        Map::from_iter([("type".to_owned(), Value::from("object"))])
    } else {
        let mut out = schema(source, style, custom.schema);
        out.insert("type".into(), "object".into());
        let properties = properties_of(&mut out);
        properties.insert("metadata".into(), described(source, style));
        insert_type_meta(source, properties);
        out
    };
    add_marks(custom, &custom.kind.kind, &mut out);
    Value::Object(out)
}

fn list(source: &Source<'_>, style: Style, custom: &CustomSchema<'_>) -> Value {
    let Kind { kind, plural, list_kind, .. } = custom.kind;
    let items = json!({
        "description": format!("The {plural} of the list."),
        "type": "array",
        "items": style.reference(&custom.type_name),
    });
    let mut properties = Map::new();
    properties.insert("items".into(), items);
    properties.insert("metadata".into(), style.reference(LIST_META));
    insert_type_meta(source, &mut properties);
    let mut out = Map::new();
    out.insert("description".into(), format!("{list_kind} is a list of {kind}").into());
    out.insert("type".into(), "object".into());
    out.insert("required".into(), json!(["items"]));
    out.insert("properties".into(), properties.into());
    add_marks(custom, list_kind, &mut out);
    Value::Object(out)
}

fn add_marks(custom: &CustomSchema<'_>, kind: &str, out: &mut Map<String, Value>) {
    let own = json!([{"group": custom.kind.group, "version": custom.kind.version, "kind": kind}]);
    out.insert("x-kubernetes-group-version-kind".into(), own);
    if !custom.kind.selectable.is_empty() {
        let fields = custom.kind.selectable.iter().map(|path| json!({"fieldPath": path}));
        out.insert("x-kubernetes-selectable-fields".into(), fields.collect());
    }
}

/// `apiVersion` and `kind` with the descriptions of built-in kinds.
fn insert_type_meta(source: &Source<'_>, properties: &mut Map<String, Value>) {
    for field in ["apiVersion", "kind"] {
        let mut value = json!({"type": "string"});
        if let Some(description) = (source.describe)("io.k8s.api.core.v1.Pod", field) {
            value["description"] = description.into();
        }
        properties.insert(field.into(), value);
    }
}

/// `metadata` with the description that it has in a built-in kind.
fn described(source: &Source<'_>, style: Style) -> Value {
    let reference = style.reference(OBJECT_META);
    let Some(description) = (source.describe)("io.k8s.api.core.v1.Pod", "metadata") else {
        return reference;
    };
    match style {
        Style::V2 => json!({"description": description, "$ref": reference["$ref"]}),
        Style::V3 => json!({"description": description, "allOf": [reference]}),
    }
}

fn properties_of(out: &mut Map<String, Value>) -> &mut Map<String, Value> {
    let properties = out.entry("properties").or_insert_with(|| json!({}));
    if !properties.is_object() {
        *properties = json!({});
    }
    match properties {
        Value::Object(properties) => properties,
        _ => unreachable!("it was made an object above"),
    }
}

fn preserves(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

/// A nested schema. OpenAPI v2 can express less, and omits the rest.
fn schema(source: &Source<'_>, style: Style, schema_value: &Value) -> Map<String, Value> {
    let Some(fields) = schema_value.as_object() else { return Map::new() };
    let open = style == Style::V2
        && (preserves(schema_value)
            || schema_value["nullable"] == true
            || schema_value["x-kubernetes-int-or-string"] == true);
    let mut out = Map::new();
    for (name, value) in fields {
        let kept = match name.as_str() {
            "description" => Some(value.clone()),
            "nullable" | "default" | "oneOf" | "anyOf" | "allOf" | "not" if style == Style::V2 => None,
            extension if extension.starts_with("x-") => Some(value.clone()),
            _ if open => None,
            "properties" | "patternProperties" | "definitions" => {
                Some(each(value, |value| Value::Object(schema(source, style, value))))
            }
            "items" | "additionalProperties" | "not" if value.is_object() => {
                Some(Value::Object(schema(source, style, value)))
            }
            "oneOf" | "anyOf" | "allOf" => {
                let parts = value.as_array().into_iter().flatten();
                Some(parts.map(|part| Value::Object(schema(source, style, part))).collect())
            }
            _ => Some(value.clone()),
        };
        if let Some(kept) = kept {
            out.insert(name.clone(), kept);
        }
    }
    if style == Style::V3 {
        complete(source, schema_value, &mut out);
    }
    out
}

/// Expresses the two extensions in plain OpenAPI v3.
fn complete(source: &Source<'_>, schema_value: &Value, out: &mut Map<String, Value>) {
    if schema_value["x-kubernetes-int-or-string"] == true && !out.contains_key("anyOf") {
        out.insert("anyOf".into(), json!([{"type": "integer"}, {"type": "string"}]));
    }
    if schema_value["x-kubernetes-embedded-resource"] == true {
        let properties = properties_of(out);
        properties.insert("metadata".into(), described(source, Style::V3));
        insert_type_meta(source, properties);
        let mut required = vec![Value::from("kind"), Value::from("apiVersion")];
        let given = out.get("required").and_then(Value::as_array).into_iter().flatten().cloned();
        required.extend(given.filter(|name| name != "kind" && name != "apiVersion"));
        out.insert("required".into(), required.into());
    }
}

fn each(value: &Value, change: impl Fn(&Value) -> Value) -> Value {
    match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), change(value))).collect(),
        other => other.clone(),
    }
}
