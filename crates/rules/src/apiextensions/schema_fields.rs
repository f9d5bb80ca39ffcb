//! The fields of a JSON schema: their names in objects and in errors, and a schema as errors show it.

use knarr_api::value::Read;
use serde_json::Value;

/// What a field holds, as far as showing it needs to know.
#[derive(Clone, Copy, PartialEq)]
enum Holds {
    Text,
    Flag,
    /// Anything that may be absent, shown as it is.
    Plain,
    Schema,
    Schemas,
    SchemaMap,
    SchemaOrList,
    SchemaOrFlag,
    Rules,
}

struct Field {
    shown: &'static str,
    name: &'static str,
    holds: Holds,
}

const fn field(shown: &'static str, name: &'static str, holds: Holds) -> Field {
    Field { shown, name, holds }
}

/// All fields in the order errors show them in.
const FIELDS: [Field; 44] = [
    field("ID", "id", Holds::Text),
    field("Schema", "$schema", Holds::Text),
    field("Ref", "$ref", Holds::Plain),
    field("Description", "description", Holds::Text),
    field("Type", "type", Holds::Text),
    field("Nullable", "nullable", Holds::Flag),
    field("Format", "format", Holds::Text),
    field("Title", "title", Holds::Text),
    field("Default", "default", Holds::Plain),
    field("Maximum", "maximum", Holds::Plain),
    field("ExclusiveMaximum", "exclusiveMaximum", Holds::Flag),
    field("Minimum", "minimum", Holds::Plain),
    field("ExclusiveMinimum", "exclusiveMinimum", Holds::Flag),
    field("MaxLength", "maxLength", Holds::Plain),
    field("MinLength", "minLength", Holds::Plain),
    field("Pattern", "pattern", Holds::Text),
    field("MaxItems", "maxItems", Holds::Plain),
    field("MinItems", "minItems", Holds::Plain),
    field("UniqueItems", "uniqueItems", Holds::Flag),
    field("MultipleOf", "multipleOf", Holds::Plain),
    field("Enum", "enum", Holds::Plain),
    field("MaxProperties", "maxProperties", Holds::Plain),
    field("MinProperties", "minProperties", Holds::Plain),
    field("Required", "required", Holds::Plain),
    field("Items", "items", Holds::SchemaOrList),
    field("AllOf", "allOf", Holds::Schemas),
    field("OneOf", "oneOf", Holds::Schemas),
    field("AnyOf", "anyOf", Holds::Schemas),
    field("Not", "not", Holds::Schema),
    field("Properties", "properties", Holds::SchemaMap),
    field("AdditionalProperties", "additionalProperties", Holds::SchemaOrFlag),
    field("PatternProperties", "patternProperties", Holds::SchemaMap),
    field("Dependencies", "dependencies", Holds::Plain),
    field("AdditionalItems", "additionalItems", Holds::SchemaOrFlag),
    field("Definitions", "definitions", Holds::SchemaMap),
    field("ExternalDocs", "externalDocs", Holds::Plain),
    field("Example", "example", Holds::Plain),
    field("XPreserveUnknownFields", "x-kubernetes-preserve-unknown-fields", Holds::Plain),
    field("XEmbeddedResource", "x-kubernetes-embedded-resource", Holds::Flag),
    field("XIntOrString", "x-kubernetes-int-or-string", Holds::Flag),
    field("XListMapKeys", "x-kubernetes-list-map-keys", Holds::Plain),
    field("XListType", "x-kubernetes-list-type", Holds::Plain),
    field("XMapType", "x-kubernetes-map-type", Holds::Plain),
    field("XValidations", "x-kubernetes-validations", Holds::Rules),
];

/// The fields that a schema has, by the names errors show, in their order.
pub fn present(schema: &Value) -> impl Iterator<Item = &'static str> + '_ {
    FIELDS.iter().filter(|field| !is_zero(&schema[field.name])).map(|field| field.shown)
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// A schema by its internal names, all fields of it.
pub fn shown(schema: &Value) -> String {
    if schema.is_null() {
        return "null".to_owned();
    }
    let parts: Vec<String> = FIELDS
        .iter()
        .map(|field| format!("\"{}\":{}", field.shown, shown_field(&schema[field.name], field.holds)))
        .collect();
    format!("{{{}}}", parts.join(","))
}

fn shown_field(value: &Value, holds: Holds) -> String {
    match (holds, value) {
        (Holds::Text, Value::Null) => "\"\"".to_owned(),
        (Holds::Flag, Value::Null) => "false".to_owned(),
        (_, Value::Null) => "null".to_owned(),
        (Holds::Text | Holds::Flag | Holds::Plain, value) => value.to_string(),
        (Holds::Schema, schema) => shown(schema),
        (Holds::Schemas, schemas) => shown_list(schemas.items(&[])),
        (Holds::SchemaMap, schemas) => {
            let fields = schemas.as_object().into_iter().flatten();
            let parts: Vec<String> =
                fields.map(|(name, schema)| format!("{}:{}", Value::from(name.as_str()), shown(schema))).collect();
            format!("{{{}}}", parts.join(","))
        }
        (Holds::SchemaOrList, Value::Array(list)) => {
            format!("{{\"Schema\":null,\"JSONSchemas\":{}}}", shown_list(list))
        }
        (Holds::SchemaOrList, schema) => format!("{{\"Schema\":{},\"JSONSchemas\":null}}", shown(schema)),
        (Holds::SchemaOrFlag, Value::Bool(allows)) => format!("{{\"Allows\":{allows},\"Schema\":null}}"),
        (Holds::SchemaOrFlag, schema) => format!("{{\"Allows\":true,\"Schema\":{}}}", shown(schema)),
        (Holds::Rules, rules) => {
            let parts: Vec<String> = rules.items(&[]).iter().map(shown_rule).collect();
            format!("[{}]", parts.join(","))
        }
    }
}

fn shown_list(schemas: &[Value]) -> String {
    let parts: Vec<String> = schemas.iter().map(shown).collect();
    format!("[{}]", parts.join(","))
}

/// A validation rule by its internal names.
pub fn shown_rule(rule: &Value) -> String {
    let text = |field: &str| Value::from(rule.text(&[field]));
    format!(
        "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\"OptionalOldSelf\":{}}}",
        text("rule"),
        text("message"),
        text("messageExpression"),
        rule["reason"],
        text("fieldPath"),
        rule["optionalOldSelf"]
    )
}

/// Whether any schema below and including this one is as asked.
pub fn any(schema: &Value, ask: &mut dyn FnMut(&Value) -> bool) -> bool {
    if schema.is_null() {
        return false;
    }
    if ask(schema) {
        return true;
    }
    for field in &FIELDS {
        let value = &schema[field.name];
        let found = match field.holds {
            Holds::Schema => any(value, ask),
            Holds::Schemas => value.items(&[]).iter().any(|schema| any(schema, ask)),
            Holds::SchemaMap => value.as_object().into_iter().flatten().any(|(_, schema)| any(schema, ask)),
            Holds::SchemaOrList | Holds::SchemaOrFlag => match value {
                Value::Array(list) => list.iter().any(|schema| any(schema, ask)),
                Value::Object(_) => any(value, ask),
                _ => false,
            },
            _ => false,
        };
        if found {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schemas_are_shown_whole() {
        let text = shown(&json!({"type": "object", "properties": {"a": {"type": "string"}}}));
        assert!(text.starts_with("{\"ID\":\"\",\"Schema\":\"\",\"Ref\":null,\"Description\":\"\",\"Type\":\"object\""));
        assert!(text.contains("\"Properties\":{\"a\":{\"ID\":\"\""));
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["Properties"]["a"]["Type"], "string");
    }

    #[test]
    fn schemas_are_searched() {
        let schema = json!({"items": {"anyOf": [{"properties": {"x": {"format": "odd"}}}]}});
        assert!(any(&schema, &mut |schema| schema["format"] == "odd"));
        assert!(!any(&schema, &mut |schema| schema["format"] == "even"));
    }
}
