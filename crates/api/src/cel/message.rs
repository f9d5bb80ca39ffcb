//! Objects that `Name{...}` builds, and conversion of values to JSON.

use serde_json::{Map, Value as Json};

use super::error::EvaluateError;
use super::functions::format_value;
use super::value::Value;

/// An object that an expression built field by field.
#[derive(Clone, Debug)]
pub struct Message<'a> {
    /// The name of the type.
    pub name: &'a str,
    /// The fields by name.
    pub fields: Vec<(&'a str, Value<'a>)>,
}

impl<'a> Message<'a> {
    /// The field of that name.
    pub fn field(&self, name: &str) -> Option<Value<'a>> {
        self.fields.iter().find(|(own, _)| *own == name).map(|(_, value)| value.clone())
    }

    pub(super) fn equals(&self, other: &Message<'_>) -> bool {
        self.name == other.name
            && self.fields.len() == other.fields.len()
            && self.fields.iter().all(|(name, value)| other.field(name).is_some_and(|theirs| value.equals(&theirs)))
    }

    /// The first nested object whose name is not its path.
    pub fn misnamed(&self) -> Option<String> {
        check_names(&Value::Message(std::sync::Arc::new(self.clone())), self.name)
    }
}

fn check_names(value: &Value<'_>, path: &str) -> Option<String> {
    if let Value::Message(message) = value {
        if message.name != path {
            return Some(format!(
                "unexpected type name {:?}, expected {path:?}, which matches field name path from root Object type",
                message.name
            ));
        }
        return message.fields.iter().find_map(|(name, value)| check_names(value, &format!("{path}.{name}")));
    }
    if let Value::List(items) = value {
        return items.iter().find_map(|item| check_names(item, path));
    }
    if let Value::Map(entries) = value {
        return entries.iter().find_map(|(_, value)| check_names(value, path));
    }
    None
}

impl Value<'_> {
    /// The value as JSON, or an error for types that JSON does not have.
    pub fn to_json(&self) -> Result<Json, EvaluateError> {
        Ok(match self {
            Value::Null | Value::Optional(None) => Json::Null,
            Value::Bool(flag) => (*flag).into(),
            Value::Int(number) => (*number).into(),
            Value::Uint(number) => (*number).into(),
            // JSON does not distinguish 3.0 from 3.
            Value::Double(number) if number.fract() == 0.0 && number.abs() < 9.0e15 => (*number as i64).into(),
            Value::Double(number) => (*number).into(),
            Value::String(text) => text.to_string().into(),
            Value::Bytes(bytes) => {
                use base64::Engine;
                base64::engine::general_purpose::STANDARD.encode(bytes).into()
            }
            Value::Timestamp(_)
            | Value::Duration(_)
            | Value::Ip(_)
            | Value::Cidr(..)
            | Value::Quantity(_)
            | Value::Url(_) => format_value(self).into(),
            Value::JsonList(items, _) => Json::Array(items.to_vec()),
            Value::JsonMap(fields, _) => Json::Object((*fields).clone()),
            Value::List(items) => Json::Array(items.iter().map(Value::to_json).collect::<Result<_, _>>()?),
            Value::Map(entries) => {
                let mut object = Map::new();
                for (key, value) in entries.iter() {
                    let Value::String(key) = key else {
                        let message =
                            format!("map key {:?} is of type {}, not string", format_value(key), key.type_name());
                        return Err(EvaluateError::new(message));
                    };
                    object.insert(key.to_string(), value.to_json()?);
                }
                Json::Object(object)
            }
            Value::Message(message) => {
                let fields = message
                    .fields
                    .iter()
                    .map(|(name, value)| Ok((super::unescape(name).into_owned(), value.to_json()?)));
                Json::Object(fields.collect::<Result<_, EvaluateError>>()?)
            }
            Value::Optional(Some(inner)) => inner.to_json()?,
            other => return Err(EvaluateError::new(format!("{} has no JSON form", other.type_name()))),
        })
    }
}
