//! The fields of a JSON schema: their names in objects and in error messages, and how messages render a schema.

use knarr_api::value::Read;
use serde_json::Value;

/// The type of a field, as far as rendering depends on it.
#[derive(Clone, Copy, PartialEq)]
enum FieldType {
    Text,
    Flag,
    /// Any value that may be absent, rendered as it is.
    Plain,
    Schema,
    Schemas,
    SchemaMap,
    SchemaOrList,
    SchemaOrFlag,
    Rules,
}

struct Field {
    go_name: &'static str,
    name: &'static str,
    field_type: FieldType,
}

const fn field(go_name: &'static str, name: &'static str, field_type: FieldType) -> Field {
    Field { go_name, name, field_type }
}

/// All fields, in the order of error messages.
const FIELDS: [Field; 44] = [
    field("ID", "id", FieldType::Text),
    field("Schema", "$schema", FieldType::Text),
    field("Ref", "$ref", FieldType::Plain),
    field("Description", "description", FieldType::Text),
    field("Type", "type", FieldType::Text),
    field("Nullable", "nullable", FieldType::Flag),
    field("Format", "format", FieldType::Text),
    field("Title", "title", FieldType::Text),
    field("Default", "default", FieldType::Plain),
    field("Maximum", "maximum", FieldType::Plain),
    field("ExclusiveMaximum", "exclusiveMaximum", FieldType::Flag),
    field("Minimum", "minimum", FieldType::Plain),
    field("ExclusiveMinimum", "exclusiveMinimum", FieldType::Flag),
    field("MaxLength", "maxLength", FieldType::Plain),
    field("MinLength", "minLength", FieldType::Plain),
    field("Pattern", "pattern", FieldType::Text),
    field("MaxItems", "maxItems", FieldType::Plain),
    field("MinItems", "minItems", FieldType::Plain),
    field("UniqueItems", "uniqueItems", FieldType::Flag),
    field("MultipleOf", "multipleOf", FieldType::Plain),
    field("Enum", "enum", FieldType::Plain),
    field("MaxProperties", "maxProperties", FieldType::Plain),
    field("MinProperties", "minProperties", FieldType::Plain),
    field("Required", "required", FieldType::Plain),
    field("Items", "items", FieldType::SchemaOrList),
    field("AllOf", "allOf", FieldType::Schemas),
    field("OneOf", "oneOf", FieldType::Schemas),
    field("AnyOf", "anyOf", FieldType::Schemas),
    field("Not", "not", FieldType::Schema),
    field("Properties", "properties", FieldType::SchemaMap),
    field("AdditionalProperties", "additionalProperties", FieldType::SchemaOrFlag),
    field("PatternProperties", "patternProperties", FieldType::SchemaMap),
    field("Dependencies", "dependencies", FieldType::Plain),
    field("AdditionalItems", "additionalItems", FieldType::SchemaOrFlag),
    field("Definitions", "definitions", FieldType::SchemaMap),
    field("ExternalDocs", "externalDocs", FieldType::Plain),
    field("Example", "example", FieldType::Plain),
    field("XPreserveUnknownFields", "x-kubernetes-preserve-unknown-fields", FieldType::Plain),
    field("XEmbeddedResource", "x-kubernetes-embedded-resource", FieldType::Flag),
    field("XIntOrString", "x-kubernetes-int-or-string", FieldType::Flag),
    field("XListMapKeys", "x-kubernetes-list-map-keys", FieldType::Plain),
    field("XListType", "x-kubernetes-list-type", FieldType::Plain),
    field("XMapType", "x-kubernetes-map-type", FieldType::Plain),
    field("XValidations", "x-kubernetes-validations", FieldType::Rules),
];

/// Returns the Go names of the fields that are set in a schema, in order.
pub fn present(schema: &Value) -> impl Iterator<Item = &'static str> + '_ {
    FIELDS.iter().filter(|field| !is_zero(&schema[field.name])).map(|field| field.go_name)
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// Renders a schema with the field names of the internal type, including absent fields.
pub fn to_json(schema: &Value) -> String {
    if schema.is_null() {
        return "null".to_owned();
    }
    let parts: Vec<String> = FIELDS
        .iter()
        .map(|field| format!("\"{}\":{}", field.go_name, field_json(&schema[field.name], field.field_type)))
        .collect();
    format!("{{{}}}", parts.join(","))
}

fn field_json(value: &Value, field_type: FieldType) -> String {
    match (field_type, value) {
        (FieldType::Text, Value::Null) => "\"\"".to_owned(),
        (FieldType::Flag, Value::Null) => "false".to_owned(),
        (_, Value::Null) => "null".to_owned(),
        (FieldType::Text | FieldType::Flag | FieldType::Plain, value) => value.to_string(),
        (FieldType::Schema, schema) => to_json(schema),
        (FieldType::Schemas, schemas) => list_json(schemas.items(&[])),
        (FieldType::SchemaMap, schemas) => {
            let fields = schemas.as_object().into_iter().flatten();
            let parts: Vec<String> =
                fields.map(|(name, schema)| format!("{}:{}", Value::from(name.as_str()), to_json(schema))).collect();
            format!("{{{}}}", parts.join(","))
        }
        (FieldType::SchemaOrList, Value::Array(list)) => {
            format!("{{\"Schema\":null,\"JSONSchemas\":{}}}", list_json(list))
        }
        (FieldType::SchemaOrList, schema) => format!("{{\"Schema\":{},\"JSONSchemas\":null}}", to_json(schema)),
        (FieldType::SchemaOrFlag, Value::Bool(allows)) => format!("{{\"Allows\":{allows},\"Schema\":null}}"),
        (FieldType::SchemaOrFlag, schema) => format!("{{\"Allows\":true,\"Schema\":{}}}", to_json(schema)),
        (FieldType::Rules, rules) => {
            let parts: Vec<String> = rules.items(&[]).iter().map(rule_json).collect();
            format!("[{}]", parts.join(","))
        }
    }
}

fn list_json(schemas: &[Value]) -> String {
    let parts: Vec<String> = schemas.iter().map(to_json).collect();
    format!("[{}]", parts.join(","))
}

/// Renders a validation rule with the field names of the internal type.
pub fn rule_json(rule: &Value) -> String {
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

/// Returns whether the predicate holds for this schema or any schema below it.
pub fn any(schema: &Value, ask: &mut dyn FnMut(&Value) -> bool) -> bool {
    if schema.is_null() {
        return false;
    }
    if ask(schema) {
        return true;
    }
    for field in &FIELDS {
        let value = &schema[field.name];
        let found = match field.field_type {
            FieldType::Schema => any(value, ask),
            FieldType::Schemas => value.items(&[]).iter().any(|schema| any(schema, ask)),
            FieldType::SchemaMap => value.as_object().into_iter().flatten().any(|(_, schema)| any(schema, ask)),
            FieldType::SchemaOrList | FieldType::SchemaOrFlag => match value {
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
        let text = to_json(&json!({"type": "object", "properties": {"a": {"type": "string"}}}));
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
