//! A JSON schema as a custom resource's definition gives it.

use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A schema with all that a definition can say in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Props {
    /// Empty when any type will do.
    pub kind: String,
    pub title: String,
    pub description: String,
    pub default: Option<Value>,
    pub nullable: bool,

    pub properties: BTreeMap<String, Props>,
    pub additional: Option<Additional>,
    pub items: Option<Box<Props>>,

    pub format: String,
    pub maximum: Option<f64>,
    pub exclusive_maximum: bool,
    pub minimum: Option<f64>,
    pub exclusive_minimum: bool,
    pub multiple_of: Option<f64>,
    pub max_length: Option<i64>,
    pub min_length: Option<i64>,
    pub pattern: String,
    pub max_items: Option<i64>,
    pub min_items: Option<i64>,
    pub unique_items: bool,
    pub max_properties: Option<i64>,
    pub min_properties: Option<i64>,
    pub required: Vec<String>,
    pub values: Vec<Value>,
    pub all_of: Vec<Props>,
    pub any_of: Vec<Props>,
    pub one_of: Vec<Props>,
    pub not: Option<Box<Props>>,

    pub preserve_unknown: bool,
    pub embedded: bool,
    pub int_or_string: bool,
    pub list_type: Option<String>,
    pub list_map_keys: Vec<String>,
    pub map_type: Option<String>,
    pub rules: Vec<Rule>,
}

/// What an object may hold beside its properties.
#[derive(Clone, Debug, PartialEq)]
pub enum Additional {
    /// Anything, or nothing.
    Allowed(bool),
    Schema(Box<Props>),
}

/// A rule in the Common Expression Language.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    pub rule: String,
    pub message: String,
    pub message_expression: String,
    pub reason: String,
    pub field_path: String,
    pub optional_old_self: Option<bool>,
}

impl Props {
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
        let schemas = |name: &str| list(name).iter().map(Props::read).collect();
        let schema =
            |name: &str| fields.get(name).filter(|value| value.is_object()).map(|value| Box::new(Props::read(value)));
        Props {
            kind: text("type"),
            title: text("title"),
            description: text("description"),
            default: fields.get("default").filter(|value| !value.is_null()).cloned(),
            nullable: flag("nullable"),
            properties: (fields.get("properties").and_then(Value::as_object).into_iter().flatten())
                .map(|(name, value)| (name.clone(), Props::read(value)))
                .collect(),
            additional: match fields.get("additionalProperties") {
                Some(Value::Bool(allowed)) => Some(Additional::Allowed(*allowed)),
                Some(value @ Value::Object(_)) => Some(Additional::Schema(Box::new(Props::read(value)))),
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
            rules: list("x-kubernetes-validations").iter().map(Rule::read).collect(),
        }
    }

    /// The schema of what an object holds under a name.
    pub fn child(&self, name: &str) -> Option<&Props> {
        self.properties.get(name).or_else(|| self.additional_schema())
    }

    pub fn additional_schema(&self) -> Option<&Props> {
        match &self.additional {
            Some(Additional::Schema(schema)) => Some(schema),
            _ => None,
        }
    }

    /// The types that values may have, as validation names them.
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

impl Rule {
    fn read(value: &Value) -> Self {
        let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        Rule {
            rule: text("rule"),
            message: text("message"),
            message_expression: text("messageExpression"),
            reason: text("reason"),
            field_path: text("fieldPath"),
            optional_old_self: value.get("optionalOldSelf").and_then(Value::as_bool),
        }
    }
}
