//! Values of expressions.

use super::authorizer::{AuthorizerValue, DECISION, Decision};
use super::equality::{equal_entries, equal_lists};
use super::error::EvaluateError;
use super::escape::unescape;
use super::message::Message;
use super::text::Text;
use crate::json_schema::JsonSchemaProps;
use crate::quantity::Quantity;
use base64::Engine;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value as Json};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::net::IpAddr;
use std::sync::Arc;

/// A value. JSON is borrowed, not copied.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Text<'a>),
    Bytes(Arc<[u8]>),
    Timestamp(Timestamp),
    Duration(SignedDuration),
    List(Arc<Vec<Value<'a>>>),
    Map(Arc<Vec<(Value<'a>, Value<'a>)>>),
    /// A map whose missing keys have an empty map as their value, such as the attributes of a device by domain.
    MapOfMaps(Arc<Vec<(Value<'a>, Value<'a>)>>),
    /// A list or an object of JSON, with its schema if there is one.
    JsonList(&'a [Json], Option<&'a JsonSchemaProps>),
    JsonMap(&'a Map<String, Json>, Option<&'a JsonSchemaProps>),
    Optional(Option<Arc<Value<'a>>>),
    Type(Cow<'static, str>),
    Quantity(Arc<Quantity>),
    Url(Arc<str>),
    Ip(IpAddr),
    Cidr(IpAddr, u8),
    Semver(Arc<Semver>),
    Format(&'static str),
    /// An object that `Name{...}` built.
    Message(Arc<Message<'a>>),
    /// The authorizer with an access check, and its decision.
    Authorizer(Arc<AuthorizerValue<'a>>),
    Decision(Arc<Decision>),
    /// JSON that does not match its schema; its use fails with this message.
    Unfit(Arc<str>),
}

/// A semantic version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Semver {
    /// Major, minor and patch.
    pub numbers: [u64; 3],
    /// The identifiers of the pre-release.
    pub before: Vec<String>,
}

impl<'a> Value<'a> {
    /// Converts JSON by its schema: texts can be times, integers can be doubles.
    pub fn of_json(json: &'a Json, props: Option<&'a JsonSchemaProps>) -> Self {
        if let Some(problem) = props.and_then(|props| unfit(json, props)) {
            return Value::Unfit(problem.into());
        }
        match json {
            Json::Null => Value::Null,
            Json::Bool(flag) => Value::Bool(*flag),
            Json::Number(number) => match (number.as_i64(), props.map(|props| props.kind.as_str())) {
                (_, Some("number")) | (None, _) => Value::Double(number.as_f64().unwrap_or_default()),
                (Some(whole), _) => Value::Int(whole),
            },
            Json::String(text) => of_text(text, props),
            Json::Array(items) => Value::JsonList(items, props),
            Json::Object(fields) => Value::JsonMap(fields, props),
        }
    }

    /// A string.
    pub fn text(text: impl Into<Text<'a>>) -> Self {
        Value::String(text.into())
    }

    /// A list.
    pub fn list(items: Vec<Value<'a>>) -> Self {
        Value::List(Arc::new(items))
    }

    /// An optional with a value.
    pub fn some(value: Value<'a>) -> Self {
        Value::Optional(Some(Arc::new(value)))
    }

    /// The name of the type in CEL.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Null => "null_type",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Uint(_) => "uint",
            Value::Double(_) => "double",
            Value::String(_) => "string",
            Value::Bytes(_) => "bytes",
            Value::Timestamp(_) => "google.protobuf.Timestamp",
            Value::Duration(_) => "google.protobuf.Duration",
            Value::List(_) | Value::JsonList(..) => "list",
            Value::Map(_) | Value::MapOfMaps(_) | Value::JsonMap(..) => "map",
            Value::Optional(_) => "optional_type",
            Value::Type(_) => "type",
            Value::Quantity(_) => "kubernetes.Quantity",
            Value::Url(_) => "kubernetes.URL",
            Value::Ip(_) => "net.IP",
            Value::Cidr(..) => "net.CIDR",
            Value::Semver(_) => "kubernetes.Semver",
            Value::Format(_) => "kubernetes.NamedFormat",
            Value::Message(_) => "object",
            Value::Authorizer(authorizer) => authorizer.stage.type_name(),
            Value::Decision(_) => DECISION,
            Value::Unfit(_) => "error",
        }
    }

    /// The elements, or none if the value is not a list.
    pub fn elements(&self) -> Option<Cow<'_, [Value<'a>]>> {
        match self {
            Value::List(items) => Some(Cow::Borrowed(items)),
            Value::JsonList(items, props) => {
                let element = props.and_then(|props| props.items.as_deref());
                Some(items.iter().map(|item| Value::of_json(item, element)).collect())
            }
            _ => None,
        }
    }

    /// One element of a list.
    pub fn element(&self, at: usize) -> Option<Value<'a>> {
        match self {
            Value::List(items) => items.get(at).cloned(),
            Value::JsonList(items, props) => {
                let element = props.and_then(|props| props.items.as_deref());
                items.get(at).map(|item| Value::of_json(item, element))
            }
            _ => None,
        }
    }

    /// The entries, or none if the value is not a map.
    pub fn entries(&self) -> Option<Cow<'_, [(Value<'a>, Value<'a>)]>> {
        match self {
            Value::Map(entries) | Value::MapOfMaps(entries) => Some(Cow::Borrowed(entries)),
            Value::JsonMap(fields, props) => {
                let entry = |(name, value): (&'a String, &'a Json)| {
                    (Value::text(name.as_str()), Value::of_json(value, props.and_then(|props| props.child(name))))
                };
                Some(fields.iter().map(entry).collect())
            }
            _ => None,
        }
    }

    /// The number of elements, entries or characters.
    pub fn size(&self) -> Option<usize> {
        match self {
            Value::String(text) => Some(text.chars().count()),
            Value::Bytes(bytes) => Some(bytes.len()),
            Value::List(items) => Some(items.len()),
            Value::JsonList(items, _) => Some(items.len()),
            Value::Map(entries) | Value::MapOfMaps(entries) => Some(entries.len()),
            Value::JsonMap(fields, _) => Some(fields.len()),
            _ => None,
        }
    }

    /// The number of elements or entries of a list or map.
    pub(super) fn length(&self) -> Option<usize> {
        match self {
            Value::String(_) | Value::Bytes(_) => None,
            other => other.size(),
        }
    }

    /// How many entries are searched one by one for a key: maps that expressions build have no order.
    pub fn searched(&self) -> usize {
        match self {
            Value::Map(entries) | Value::MapOfMaps(entries) => entries.len(),
            Value::Optional(Some(inner)) => inner.searched(),
            _ => 0,
        }
    }

    /// The field with that name in expressions.
    pub fn field(&self, written: &str) -> Option<Value<'a>> {
        match self {
            Value::JsonMap(fields, props) => {
                let is_object = props.is_some_and(|props| !props.properties.is_empty());
                let name = if is_object { unescape(written) } else { Cow::Borrowed(written) };
                let value = fields.get(&*name)?;
                Some(Value::of_json(value, props.and_then(|props| props.child(&name))))
            }
            Value::Map(entries) => {
                let found = entries.iter().find(|(key, _)| matches!(key, Value::String(key) if **key == *written));
                found.map(|(_, value)| value.clone())
            }
            Value::MapOfMaps(_) => self.get(&Value::text(written)),
            _ => None,
        }
    }

    /// The value of a map for a key.
    pub fn get(&self, key: &Value<'_>) -> Option<Value<'a>> {
        match (self, key) {
            (Value::JsonMap(fields, props), Value::String(key)) => {
                let value = fields.get(&**key)?;
                Some(Value::of_json(value, props.and_then(|props| props.child(key))))
            }
            (Value::Map(entries), key) => {
                entries.iter().find(|(other, _)| other.equals(key)).map(|(_, value)| value.clone())
            }
            (Value::MapOfMaps(entries), key) => {
                let found = entries.iter().find(|(other, _)| other.equals(key));
                Some(found.map_or_else(|| Value::Map(Arc::default()), |(_, value)| value.clone()))
            }
            _ => None,
        }
    }

    /// Equality of the language: values of different types differ, numbers compare by value.
    pub fn equals(&self, other: &Value<'_>) -> bool {
        #[cfg(test)]
        super::equality::comparisons::count_one();
        match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::String(a), Value::String(b)) => **a == **b,
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::Timestamp(a), Value::Timestamp(b)) => a == b,
            (Value::Duration(a), Value::Duration(b)) => a == b,
            (Value::Type(a), Value::Type(b)) => a == b,
            (Value::Quantity(a), Value::Quantity(b)) => a == b,
            (Value::Url(a), Value::Url(b)) => a == b,
            (Value::Ip(a), Value::Ip(b)) => a == b,
            (Value::Cidr(a, x), Value::Cidr(b, y)) => a == b && x == y,
            (Value::Semver(a), Value::Semver(b)) => a == b,
            (Value::Format(a), Value::Format(b)) => a == b,
            (Value::Message(a), Value::Message(b)) => a.equals(b),
            (Value::Optional(a), Value::Optional(b)) => match (a, b) {
                (Some(a), Some(b)) => a.equals(b),
                (None, None) => true,
                _ => false,
            },
            _ => {
                if let Some(order) = self.compare_numbers(other) {
                    return order == Some(Ordering::Equal);
                }
                // Items of JSON are converted to be compared, which takes longer than what the lesser of two values costs.
                if self.length().is_none() || self.length() != other.length() {
                    return false;
                }
                if let (Some(a), Some(b)) = (self.elements(), other.elements()) {
                    return equal_lists(self, &a, &b);
                }
                match (self.entries(), other.entries()) {
                    (Some(a), Some(b)) if matches!(other, Value::Map(_)) => equal_entries(&a, &b),
                    (Some(a), Some(b)) => {
                        a.len() == b.len()
                            && a.iter().all(|(key, value)| other.get(key).is_some_and(|other| value.equals(&other)))
                    }
                    _ => false,
                }
            }
        }
    }

    /// The order of two values, if their types have one.
    pub fn compare(&self, other: &Value<'_>) -> Result<Ordering, EvaluateError> {
        let order = match (self, other) {
            (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
            (Value::String(a), Value::String(b)) => Some((**a).cmp(&**b)),
            (Value::Bytes(a), Value::Bytes(b)) => Some(a.cmp(b)),
            (Value::Timestamp(a), Value::Timestamp(b)) => Some(a.cmp(b)),
            (Value::Duration(a), Value::Duration(b)) => Some(a.cmp(b)),
            _ => match self.compare_numbers(other) {
                Some(order) => return order.ok_or_else(|| EvaluateError::new("NaN values cannot be ordered")),
                None => None,
            },
        };
        order.ok_or_else(EvaluateError::no_such_overload)
    }

    /// The order of two numbers; none if one is not a number, `Some(None)` for NaN.
    fn compare_numbers(&self, other: &Value<'_>) -> Option<Option<Ordering>> {
        let wide = |value: &Value<'_>| match value {
            Value::Int(number) => Some(i128::from(*number)),
            Value::Uint(number) => Some(i128::from(*number)),
            _ => None,
        };
        let float = |value: &Value<'_>| match value {
            Value::Int(number) => Some(*number as f64),
            Value::Uint(number) => Some(*number as f64),
            Value::Double(number) => Some(*number),
            _ => None,
        };
        match (wide(self), wide(other)) {
            (Some(a), Some(b)) => Some(Some(a.cmp(&b))),
            _ => Some(float(self)?.partial_cmp(&float(other)?)),
        }
    }
}

/// Why a JSON value does not match its schema.
fn unfit(json: &Json, props: &JsonSchemaProps) -> Option<String> {
    let got = match json {
        Json::Null if props.nullable || props.kind.is_empty() => return None,
        Json::Null => return Some("invalid data, got null for schema with nullable=false".to_owned()),
        Json::Bool(_) => "bool",
        Json::Number(number) if number.is_f64() => "float64",
        Json::Number(_) => "int64",
        Json::String(_) => "string",
        Json::Array(_) => "[]interface {}",
        Json::Object(_) => "map[string]interface {}",
    };
    if props.int_or_string {
        let fits = matches!(got, "int64" | "string");
        return (!fits)
            .then(|| "invalid data, expected XIntOrString value to be either a string or integer".to_owned());
    }
    let (fits, expected) = match props.kind.as_str() {
        "object" if got != "map[string]interface {}" => {
            return Some("invalid data, expected a map for the provided schema with type=object".to_owned());
        }
        "array" if got != "[]interface {}" => {
            return Some("invalid data, expected an array for the provided schema with type=array".to_owned());
        }
        "string" => (got == "string", "string"),
        "number" => (matches!(got, "int64" | "float64"), "float"),
        "integer" => (got == "int64", "int"),
        "boolean" => (got == "bool", "bool"),
        _ => return None,
    };
    (!fits).then(|| format!("invalid data, expected {expected}, got {got}"))
}

fn of_text<'a>(text: &'a str, props: Option<&'a JsonSchemaProps>) -> Value<'a> {
    let plain = || Value::text(text);
    let Some(props) = props.filter(|props| props.kind == "string") else { return plain() };
    let unfit = |what: &str, why: &str| Value::Unfit(format!("Invalid {what} {text}: {why}").into());
    match props.format.as_str() {
        "byte" => match base64::engine::general_purpose::URL_SAFE.decode(text) {
            Ok(bytes) => Value::Bytes(bytes.into()),
            Err(error) => {
                let at = match error {
                    base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
                    _ => text.len() / 4 * 4,
                };
                unfit("byte formatted string", &format!("illegal base64 data at input byte {at}"))
            }
        },
        "date-time" if text.is_empty() => Value::Timestamp(Timestamp::UNIX_EPOCH),
        "date-time" => {
            text.parse().map_or_else(|_| unfit("date-time formatted string", "not a time"), Value::Timestamp)
        }
        "date" => format!("{text}T00:00:00Z")
            .parse()
            .map_or_else(|_| unfit("date formatted string", "not a date"), Value::Timestamp),
        "duration" => super::functions::parse_duration(text)
            .map_or_else(|| unfit("duration", &format!("unable to parse {text} as duration")), Value::Duration),
        _ => plain(),
    }
}
