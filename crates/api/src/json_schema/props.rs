//! `JSONSchemaProps` of custom resource definitions.

use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A JSON schema with the extensions of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JsonSchemaProps {
    /// The JSON type; empty if any is allowed.
    pub kind: String,
    /// `title`.
    pub title: String,
    /// `description`.
    pub description: String,
    /// `default`; null counts as absent.
    pub default: Option<Value>,
    /// `nullable`.
    pub nullable: bool,

    /// `properties`.
    pub properties: BTreeMap<String, JsonSchemaProps>,
    /// `additionalProperties`.
    pub additional: Option<AdditionalProperties>,
    /// `items`.
    pub items: Option<Box<JsonSchemaProps>>,

    /// `format`.
    pub format: String,
    /// `maximum`.
    pub maximum: Option<f64>,
    /// `exclusiveMaximum`.
    pub exclusive_maximum: bool,
    /// `minimum`.
    pub minimum: Option<f64>,
    /// `exclusiveMinimum`.
    pub exclusive_minimum: bool,
    /// `multipleOf`.
    pub multiple_of: Option<f64>,
    /// `maxLength`.
    pub max_length: Option<i64>,
    /// `minLength`.
    pub min_length: Option<i64>,
    /// `pattern`.
    pub pattern: String,
    /// `maxItems`.
    pub max_items: Option<i64>,
    /// `minItems`.
    pub min_items: Option<i64>,
    /// `uniqueItems`.
    pub unique_items: bool,
    /// `maxProperties`.
    pub max_properties: Option<i64>,
    /// `minProperties`.
    pub min_properties: Option<i64>,
    /// `required`.
    pub required: Vec<String>,
    /// `enum`.
    pub values: Vec<Value>,
    /// `allOf`.
    pub all_of: Vec<JsonSchemaProps>,
    /// `anyOf`.
    pub any_of: Vec<JsonSchemaProps>,
    /// `oneOf`.
    pub one_of: Vec<JsonSchemaProps>,
    /// `not`.
    pub not: Option<Box<JsonSchemaProps>>,

    /// `x-kubernetes-preserve-unknown-fields`.
    pub preserve_unknown: bool,
    /// `x-kubernetes-embedded-resource`.
    pub embedded: bool,
    /// `x-kubernetes-int-or-string`.
    pub int_or_string: bool,
    /// `x-kubernetes-list-type`.
    pub list_type: Option<String>,
    /// `x-kubernetes-list-map-keys`.
    pub list_map_keys: Vec<String>,
    /// `x-kubernetes-map-type`.
    pub map_type: Option<String>,
    /// `x-kubernetes-validations`.
    pub rules: Vec<ValidationRule>,
}

/// The fields that an object may have beside its properties.
#[derive(Clone, Debug, PartialEq)]
pub enum AdditionalProperties {
    /// Any fields, or none.
    Allowed(bool),
    /// Fields whose values have this schema.
    Schema(Box<JsonSchemaProps>),
}

/// A validation rule in the Common Expression Language.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValidationRule {
    /// The expression.
    pub rule: String,
    /// The message if the rule fails.
    pub message: String,
    /// An expression that computes the message.
    pub message_expression: String,
    /// The reason in the Status cause.
    pub reason: String,
    /// The field that errors are reported for.
    pub field_path: String,
    /// Whether `oldSelf` is an optional value.
    pub optional_old_self: Option<bool>,
}

impl JsonSchemaProps {
    /// Reads a schema that was decoded as part of a definition.
    pub fn read(value: &Value) -> Self {
        let empty = Map::new();
        let fields = value.as_object().unwrap_or(&empty);
        let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let flag = |name: &str| fields.get(name).and_then(Value::as_bool).unwrap_or_default();
        let number = |name: &str| fields.get(name).and_then(Value::as_f64);
        let whole = |name: &str| fields.get(name).and_then(Value::as_i64);
        let list = |name: &str| fields.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let texts = |name: &str| list(name).iter().filter_map(Value::as_str).map(str::to_owned).collect();
        let schemas = |name: &str| list(name).iter().map(JsonSchemaProps::read).collect();
        let schema = |name: &str| {
            fields.get(name).filter(|value| value.is_object()).map(|value| Box::new(JsonSchemaProps::read(value)))
        };
        JsonSchemaProps {
            kind: text("type"),
            title: text("title"),
            description: text("description"),
            default: fields.get("default").filter(|value| !value.is_null()).cloned(),
            nullable: flag("nullable"),
            properties: (fields.get("properties").and_then(Value::as_object).into_iter().flatten())
                .map(|(name, value)| (name.clone(), JsonSchemaProps::read(value)))
                .collect(),
            additional: match fields.get("additionalProperties") {
                Some(Value::Bool(allowed)) => Some(AdditionalProperties::Allowed(*allowed)),
                Some(value @ Value::Object(_)) => {
                    Some(AdditionalProperties::Schema(Box::new(JsonSchemaProps::read(value))))
                }
                _ => None,
            },
            items: schema("items"),
            format: text("format"),
            maximum: number("maximum"),
            exclusive_maximum: flag("exclusiveMaximum"),
            minimum: number("minimum"),
            exclusive_minimum: flag("exclusiveMinimum"),
            multiple_of: number("multipleOf"),
            max_length: whole("maxLength"),
            min_length: whole("minLength"),
            pattern: text("pattern"),
            max_items: whole("maxItems"),
            min_items: whole("minItems"),
            unique_items: flag("uniqueItems"),
            max_properties: whole("maxProperties"),
            min_properties: whole("minProperties"),
            required: texts("required"),
            values: list("enum").to_vec(),
            all_of: schemas("allOf"),
            any_of: schemas("anyOf"),
            one_of: schemas("oneOf"),
            not: schema("not"),
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            int_or_string: flag("x-kubernetes-int-or-string"),
            list_type: fields.get("x-kubernetes-list-type").and_then(Value::as_str).map(str::to_owned),
            list_map_keys: texts("x-kubernetes-list-map-keys"),
            map_type: fields.get("x-kubernetes-map-type").and_then(Value::as_str).map(str::to_owned),
            rules: list("x-kubernetes-validations").iter().map(ValidationRule::read).collect(),
        }
    }

    /// The schema of the field with that name.
    pub fn child(&self, name: &str) -> Option<&JsonSchemaProps> {
        self.properties.get(name).or_else(|| self.additional_schema())
    }

    /// The schema of fields that are not among the properties.
    pub fn additional_schema(&self) -> Option<&JsonSchemaProps> {
        match &self.additional {
            Some(AdditionalProperties::Schema(schema)) => Some(schema),
            _ => None,
        }
    }

    /// The JSON types that values may have.
    pub fn kinds(&self) -> Vec<&str> {
        if self.int_or_string {
            vec!["integer", "string"]
        } else if self.kind.is_empty() {
            Vec::new()
        } else {
            vec![&self.kind]
        }
    }
}

impl ValidationRule {
    fn read(value: &Value) -> Self {
        let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        ValidationRule {
            rule: text("rule"),
            message: text("message"),
            message_expression: text("messageExpression"),
            reason: text("reason"),
            field_path: text("fieldPath"),
            optional_old_self: value.get("optionalOldSelf").and_then(Value::as_bool),
        }
    }
}
