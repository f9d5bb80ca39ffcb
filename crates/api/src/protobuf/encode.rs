//! Encodes JSON values as messages of Kubernetes' protobuf encoding.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::plan::{FieldPlan, Form, MessageId, Plans, Type};
use super::wire::{FIXED_64, VARINT, Writer};
use super::{ProtobufError, special};
use crate::schema::{Alternative, Presence};
use crate::{go_duration, quantity};

pub(super) fn message(plans: &Plans, id: MessageId, object: &Value) -> Result<Vec<u8>, ProtobufError> {
    let mut encoder = Encoder { plans, writer: Writer::new(1024) };
    encoder.message(id, object.as_object().unwrap_or(&Map::new()))?;
    Ok(encoder.writer.finish())
}

struct Encoder<'p> {
    plans: &'p Plans,
    writer: Writer,
}

/// The writer goes backwards, so everything here is visited from the last to the first.
impl Encoder<'_> {
    fn message(&mut self, id: MessageId, object: &Map<String, Value>) -> Result<(), ProtobufError> {
        let plans = self.plans;
        for field in plans.message(id).fields.iter().rev() {
            if let Form::Inlined(part) = field.form {
                let before = self.writer.len();
                self.message(part, object)?;
                self.writer.close(field.number, before);
            } else {
                self.field(field, object.get(field.name).filter(|value| !value.is_null()))?;
            }
        }
        Ok(())
    }

    fn field(&mut self, field: &FieldPlan, value: Option<&Value>) -> Result<(), ProtobufError> {
        match field.form {
            Form::One(kind) => match value {
                Some(value) => self.one(field, field.number, kind, value),
                None if matches!(field.presence, Presence::NonZero | Presence::Always) => {
                    self.zero(field, field.number, kind)
                }
                None => Ok(()),
            },
            Form::Many(kind) => {
                let items = match value {
                    Some(Value::Array(items)) => items,
                    Some(_) => return Err(wrong(field, "a list")),
                    None => return Ok(()),
                };
                items.iter().rev().try_for_each(|item| self.element(field, field.number, kind, item))
            }
            Form::Map(kind) => {
                let entries = match value {
                    Some(Value::Object(entries)) => entries,
                    Some(_) => return Err(wrong(field, "a map")),
                    None => return Ok(()),
                };
                for (key, value) in entries.iter().rev() {
                    let before = self.writer.len();
                    // Bytes and lists are the values that can be absent.
                    if !(value.is_null() && matches!(kind, Type::Bytes | Type::Strings)) {
                        self.element(field, 2, kind, value)?;
                    }
                    self.writer.text(1, key.as_bytes());
                    self.writer.close(field.number, before);
                }
                Ok(())
            }
            Form::Inlined(_) => Ok(()),
        }
    }

    fn element(&mut self, field: &FieldPlan, number: u32, kind: Type, value: &Value) -> Result<(), ProtobufError> {
        if value.is_null() { self.zero(field, number, kind) } else { self.one(field, number, kind, value) }
    }

    fn one(&mut self, field: &FieldPlan, number: u32, kind: Type, value: &Value) -> Result<(), ProtobufError> {
        match kind {
            Type::String => {
                let text = value.as_str().ok_or_else(|| wrong(field, "a string"))?;
                self.writer.text(number, text.as_bytes());
            }
            Type::Int32 | Type::Int64 => {
                let integer = integer(value).ok_or_else(|| wrong(field, "an integer"))?;
                self.writer.number(number, integer as u64);
            }
            Type::Double => {
                let double = value.as_f64().ok_or_else(|| wrong(field, "a number"))?;
                self.writer.bytes(&double.to_le_bytes());
                self.writer.tag(number, FIXED_64);
            }
            Type::Bool => {
                let flag = value.as_bool().ok_or_else(|| wrong(field, "a boolean"))?;
                self.writer.number(number, flag.into());
            }
            Type::Bytes => {
                let text = value.as_str().ok_or_else(|| wrong(field, "base64"))?;
                let bytes = STANDARD.decode(text).map_err(|_| wrong(field, "base64"))?;
                self.writer.text(number, &bytes);
            }
            _ => {
                let before = self.writer.len();
                self.nested(field, kind, value)?;
                self.writer.close(number, before);
            }
        }
        Ok(())
    }

    /// The content of a value that is a message in protobuf.
    fn nested(&mut self, field: &FieldPlan, kind: Type, value: &Value) -> Result<(), ProtobufError> {
        let text = || value.as_str().ok_or_else(|| wrong(field, "a string"));
        match kind {
            Type::Message(id) => {
                let object = value.as_object().ok_or_else(|| wrong(field, "an object"))?;
                self.message(id, object)?;
            }
            Type::Time | Type::MicroTime => {
                let time = special::parse_time(text()?).map_err(|problem| problem_of(field, problem))?;
                if let Some((seconds, nanoseconds)) = time {
                    let nanoseconds = if matches!(kind, Type::Time) { 0 } else { nanoseconds };
                    self.writer.number(2, nanoseconds as u64);
                    self.writer.number(1, seconds as u64);
                }
            }
            Type::Duration => {
                let duration = go_duration::parse(text()?).map_err(|_| wrong(field, "a duration"))?;
                self.writer.number(1, duration as u64);
            }
            Type::Quantity => {
                let number = value.is_number().then(|| value.to_string());
                let text = number.as_deref().map_or_else(text, Ok)?;
                let canonical = quantity::canonical(text.trim()).map_err(|e| problem_of(field, e.to_string()))?;
                self.writer.text(1, canonical.as_bytes());
            }
            Type::IntOrString => {
                let (is_text, number, text) = match value {
                    Value::String(text) => (1, 0, text.as_str()),
                    _ => (0, integer(value).ok_or_else(|| wrong(field, "an integer or a string"))?, ""),
                };
                self.writer.text(3, text.as_bytes());
                self.writer.number(2, number as u64);
                self.writer.number(1, is_text);
            }
            Type::Json => self.writer.text(1, value.to_string().as_bytes()),
            Type::Strings => {
                let items = value.as_array().ok_or_else(|| wrong(field, "a list"))?;
                for item in items.iter().rev() {
                    self.element(field, 1, Type::String, item)?;
                }
            }
            Type::SchemaOr(other, schema) => self.schema_or(field, other, schema, value)?,
            Type::String | Type::Int32 | Type::Int64 | Type::Double | Type::Bool | Type::Bytes => {}
        }
        Ok(())
    }

    fn schema_or(
        &mut self,
        field: &FieldPlan,
        other: Alternative,
        schema: MessageId,
        value: &Value,
    ) -> Result<(), ProtobufError> {
        match (other, value) {
            (Alternative::Boolean, Value::Bool(allows)) => self.writer.number(1, (*allows).into()),
            (Alternative::Boolean, Value::Object(_)) => {
                self.one(field, 2, Type::Message(schema), value)?;
                self.writer.number(1, 1);
            }
            (_, Value::Object(_)) => self.one(field, 1, Type::Message(schema), value)?,
            (Alternative::Schemas, Value::Array(items)) => {
                items.iter().rev().try_for_each(|item| self.element(field, 2, Type::Message(schema), item))?;
            }
            (Alternative::Strings, Value::Array(items)) => {
                items.iter().rev().try_for_each(|item| self.element(field, 2, Type::String, item))?;
            }
            _ => return Err(wrong(field, "a schema")),
        }
        Ok(())
    }

    /// The wire form of the zero value of a field that is not a pointer.
    fn zero(&mut self, field: &FieldPlan, number: u32, kind: Type) -> Result<(), ProtobufError> {
        match kind {
            Type::String => self.writer.text(number, b""),
            Type::Int32 | Type::Int64 | Type::Bool => {
                self.writer.varint(0);
                self.writer.tag(number, VARINT);
            }
            Type::Double => {
                self.writer.bytes(&[0; 8]);
                self.writer.tag(number, FIXED_64);
            }
            Type::Bytes | Type::Strings => {}
            Type::Time | Type::MicroTime | Type::Json => self.writer.text(number, b""),
            Type::Duration => self.nested_zero(number, |writer| writer.number(1, 0)),
            Type::Quantity => self.nested_zero(number, |writer| writer.text(1, b"0")),
            Type::IntOrString => self.one(field, number, kind, &Value::from(0))?,
            Type::SchemaOr(Alternative::Boolean, _) => self.nested_zero(number, |writer| writer.number(1, 0)),
            Type::SchemaOr(..) => self.writer.text(number, b""),
            Type::Message(id) => {
                let before = self.writer.len();
                self.message(id, &Map::new())?;
                self.writer.close(number, before);
            }
        }
        Ok(())
    }

    fn nested_zero(&mut self, number: u32, content: impl FnOnce(&mut Writer)) {
        let before = self.writer.len();
        content(&mut self.writer);
        self.writer.close(number, before);
    }
}

/// Integers may be written with a fraction of zero.
fn integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && number.abs() < 9.2e18).then_some(number as i64)
    })
}

fn wrong(field: &FieldPlan, expected: &str) -> ProtobufError {
    problem_of(field, format!("the value is not {expected}"))
}

fn problem_of(field: &FieldPlan, problem: String) -> ProtobufError {
    ProtobufError::Value { field: field.name.to_owned(), problem }
}
