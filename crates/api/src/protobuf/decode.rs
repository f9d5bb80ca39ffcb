//! Decodes messages of Kubernetes' protobuf encoding into JSON values.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Number, Value};

use super::plan::{FieldPlan, Form, MessageId, Plans, Type};
use super::wire::{BYTES, Content, FIXED_64, Reader, VARINT};
use super::{ProtobufError, special};
use crate::decode::MAX_RAW_DEPTH;
use crate::schema::{Alternative, Presence};
use crate::value::depth;
use crate::{go_duration, quantity};

/// The maximum depth: far beyond any real object, and small enough for the stack.
const DEEPEST: u32 = 200;
/// The maximum number of messages, and of those that are always printed within them: each takes two bytes, or none, and becomes
/// an object of several hundred.
const MOST_MESSAGES: u32 = 200_000;

pub(super) fn message(plans: &Plans, id: MessageId, bytes: &[u8]) -> Result<Map<String, Value>, ProtobufError> {
    let mut decoder = Decoder { plans, depth: 0, messages: 0 };
    let mut object = Map::new();
    decoder.message(id, bytes, &mut object)?;
    Ok(object)
}

struct Decoder<'p> {
    plans: &'p Plans,
    depth: u32,
    messages: u32,
}

impl Decoder<'_> {
    fn message(&mut self, id: MessageId, bytes: &[u8], object: &mut Map<String, Value>) -> Result<(), ProtobufError> {
        self.fields(id, bytes, object)?;
        self.complete(id, object)
    }

    /// Merges the fields into those of earlier occurrences of the message.
    fn fields(&mut self, id: MessageId, bytes: &[u8], object: &mut Map<String, Value>) -> Result<(), ProtobufError> {
        self.enter()?;
        let message = self.plans.message(id);
        let mut reader = Reader::new(bytes);
        while let Some((number, content)) = reader.next()? {
            if let Ok(at) = message.fields.binary_search_by_key(&number, |field| field.number) {
                self.field(&message.fields[at], content, object)?;
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn enter(&mut self) -> Result<(), ProtobufError> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(ProtobufError::TooDeep(DEEPEST));
        }
        self.count()
    }

    fn count(&mut self) -> Result<(), ProtobufError> {
        self.messages += 1;
        if self.messages > MOST_MESSAGES { Err(ProtobufError::TooMany(MOST_MESSAGES)) } else { Ok(()) }
    }

    fn field(
        &mut self,
        field: &FieldPlan,
        content: Content<'_>,
        object: &mut Map<String, Value>,
    ) -> Result<(), ProtobufError> {
        match field.form {
            Form::Inlined(part) => self.fields(part, delimited(field, content)?, object),
            Form::One(kind) => {
                let value = self.one(field, kind, content, object.get_mut(field.name).map(Value::take))?;
                if field.presence == Presence::NonZero && is_zero(&value) {
                    object.remove(field.name);
                } else {
                    object.insert(field.name.to_owned(), value);
                }
                Ok(())
            }
            Form::Many(kind) => {
                if !matches!(object.get(field.name), Some(Value::Array(_))) {
                    object.insert(field.name.to_owned(), Value::Array(Vec::new()));
                }
                let Some(Value::Array(items)) = object.get_mut(field.name) else { return Ok(()) };
                match (packed(kind), content) {
                    (Some(wire_type), Content::Bytes(bytes)) => {
                        let mut reader = Reader::new(bytes);
                        while !reader.is_empty() {
                            let content = match wire_type {
                                FIXED_64 => Content::Fixed64(reader.fixed64()?),
                                _ => Content::Varint(reader.varint()?),
                            };
                            items.push(self.one(field, kind, content, None)?);
                        }
                    }
                    _ => items.push(self.one(field, kind, content, None)?),
                }
                Ok(())
            }
            Form::Map(kind) => {
                let (key, value) = self.entry(field, kind, delimited(field, content)?)?;
                if !matches!(object.get(field.name), Some(Value::Object(_))) {
                    object.insert(field.name.to_owned(), Value::Object(Map::new()));
                }
                if let Some(Value::Object(entries)) = object.get_mut(field.name) {
                    entries.insert(key, value);
                }
                Ok(())
            }
        }
    }

    fn entry(&mut self, field: &FieldPlan, kind: Type, bytes: &[u8]) -> Result<(String, Value), ProtobufError> {
        let (mut key, mut value) = (String::new(), None);
        let mut reader = Reader::new(bytes);
        while let Some((number, content)) = reader.next()? {
            match number {
                1 => key = text(field, delimited(field, content)?)?.to_owned(),
                2 => value = Some(self.one(field, kind, content, None)?),
                _ => {}
            }
        }
        let value = value.map_or_else(|| self.zero(kind), Ok)?;
        Ok((key, value))
    }

    fn one(
        &mut self,
        field: &FieldPlan,
        kind: Type,
        content: Content<'_>,
        before: Option<Value>,
    ) -> Result<Value, ProtobufError> {
        Ok(match kind {
            Type::String => Value::String(text(field, delimited(field, content)?)?.to_owned()),
            Type::Int32 => Value::from(varint(field, content)? as i32),
            Type::Int64 => Value::from(varint(field, content)? as i64),
            Type::Double => match content {
                Content::Fixed64(bits) => double(f64::from_bits(bits)),
                other => return Err(wrong_wire_type(field, other)),
            },
            Type::Bool => Value::Bool(varint(field, content)? != 0),
            Type::Bytes => Value::String(STANDARD.encode(delimited(field, content)?)),
            Type::Message(id) => {
                let mut object = match before {
                    Some(Value::Object(object)) => object,
                    _ => Map::new(),
                };
                self.message(id, delimited(field, content)?, &mut object)?;
                Value::Object(object)
            }
            _ => self.nested(field, kind, delimited(field, content)?)?,
        })
    }

    /// A value that is a message in protobuf, but not an object in JSON.
    fn nested(&mut self, field: &FieldPlan, kind: Type, bytes: &[u8]) -> Result<Value, ProtobufError> {
        let mut reader = Reader::new(bytes);
        let mut numbers = [0u64; 3];
        let mut texts: [&[u8]; 4] = [b""; 4];
        let mut schemas: Vec<Value> = Vec::new();
        let mut strings: Vec<Value> = Vec::new();
        while let Some((number, content)) = reader.next()? {
            match (kind, number, content) {
                (Type::SchemaOr(other, schema), 1 | 2, Content::Bytes(bytes)) => match (other, number) {
                    (Alternative::Strings, 2) => strings.push(text(field, bytes)?.into()),
                    _ => schemas.push(self.one(field, Type::Message(schema), Content::Bytes(bytes), None)?),
                },
                (Type::Strings, 1, Content::Bytes(bytes)) => strings.push(text(field, bytes)?.into()),
                (_, 1..=2, Content::Varint(value)) => numbers[number as usize] = value,
                (_, 1..=3, Content::Bytes(bytes)) => texts[number as usize] = bytes,
                (_, 1..=3, other) => return Err(wrong_wire_type(field, other)),
                _ => {}
            }
        }
        Ok(match kind {
            Type::Time | Type::MicroTime if bytes.is_empty() => Value::Null,
            Type::Time | Type::MicroTime => {
                let nanoseconds = matches!(kind, Type::MicroTime).then_some(numbers[2] as i32);
                let time = special::format_time(numbers[1] as i64, nanoseconds);
                time.map_err(|problem| problem_of(field, problem))?.map_or(Value::Null, Value::from)
            }
            Type::Duration => go_duration::format(numbers[1] as i64).into(),
            Type::Quantity => {
                let text = text(field, texts[1])?;
                let text = if text.is_empty() { "0" } else { text };
                quantity::canonical(text).map_err(|error| problem_of(field, error.to_string()))?.into_owned().into()
            }
            Type::IntOrString => match numbers[1] {
                0 => Value::from(numbers[2] as i32),
                1 => text(field, texts[3])?.into(),
                _ => return Err(problem_of(field, "neither an integer nor a string".to_owned())),
            },
            Type::Json if texts[1].is_empty() => Value::Null,
            Type::Json => self.json(field, texts[1])?,
            Type::Strings => Value::Array(strings),
            Type::SchemaOr(Alternative::Boolean, _) => schemas.pop().unwrap_or(Value::Bool(numbers[1] != 0)),
            Type::SchemaOr(Alternative::Strings, _) if !strings.is_empty() => Value::Array(strings),
            Type::SchemaOr(Alternative::Schemas, _) => schema_list(bytes, schemas)?,
            Type::SchemaOr(..) => schemas.pop().unwrap_or(Value::Null),
            _ => Value::Null,
        })
    }

    fn json(&self, field: &FieldPlan, bytes: &[u8]) -> Result<Value, ProtobufError> {
        let value = serde_json::from_slice(bytes).map_err(|error| problem_of(field, format!("no JSON: {error}")))?;
        let mut visits = usize::MAX;
        match depth(&value, &mut visits) {
            Some(depth) if self.depth as usize + depth <= MAX_RAW_DEPTH => Ok(value),
            _ => Err(ProtobufError::TooDeep(MAX_RAW_DEPTH as u32)),
        }
    }

    /// Adds the fields that Kubernetes prints although they were not on the wire.
    fn complete(&mut self, id: MessageId, object: &mut Map<String, Value>) -> Result<(), ProtobufError> {
        let plans = self.plans;
        for field in &plans.message(id).fields {
            if let Form::Inlined(part) = field.form {
                self.complete(part, object)?;
            } else if matches!(field.presence, Presence::Always | Presence::Nullable)
                && !object.contains_key(field.name)
            {
                let zero = match (field.presence, field.form) {
                    (Presence::Always, Form::One(kind)) => self.zero(kind)?,
                    _ => Value::Null,
                };
                object.insert(field.name.to_owned(), zero);
            }
        }
        Ok(())
    }

    fn zero(&mut self, kind: Type) -> Result<Value, ProtobufError> {
        Ok(match kind {
            Type::String => "".into(),
            Type::Int32 | Type::Int64 | Type::IntOrString | Type::Double => 0.into(),
            Type::Bool | Type::SchemaOr(Alternative::Boolean, _) => false.into(),
            Type::Duration => "0s".into(),
            Type::Quantity => "0".into(),
            Type::Message(id) => {
                self.count()?;
                let mut object = Map::new();
                self.complete(id, &mut object)?;
                Value::Object(object)
            }
            Type::Bytes | Type::Strings | Type::Time | Type::MicroTime | Type::Json | Type::SchemaOr(..) => Value::Null,
        })
    }
}

/// A single schema, unless it was in a list of schemas.
fn schema_list(bytes: &[u8], mut schemas: Vec<Value>) -> Result<Value, ProtobufError> {
    let mut reader = Reader::new(bytes);
    while let Some((number, _)) = reader.next()? {
        // An empty list counts as absent: it has no wire form.
        if number == 2 && !schemas.is_empty() {
            return Ok(Value::Array(schemas));
        }
    }
    Ok(schemas.pop().unwrap_or(Value::Null))
}

/// How a list of numbers may be packed into one field.
fn packed(kind: Type) -> Option<u8> {
    match kind {
        Type::Int32 | Type::Int64 | Type::Bool => Some(VARINT),
        Type::Double => Some(FIXED_64),
        _ => None,
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// Integers are written without a fraction, as Go does.
fn double(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return Value::from(value as i64);
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

fn delimited<'a>(field: &FieldPlan, content: Content<'a>) -> Result<&'a [u8], ProtobufError> {
    match content {
        Content::Bytes(bytes) => Ok(bytes),
        other => Err(wrong_wire_type(field, other)),
    }
}

fn varint(field: &FieldPlan, content: Content<'_>) -> Result<u64, ProtobufError> {
    match content {
        Content::Varint(value) => Ok(value),
        other => Err(wrong_wire_type(field, other)),
    }
}

fn text<'a>(field: &FieldPlan, bytes: &'a [u8]) -> Result<&'a str, ProtobufError> {
    std::str::from_utf8(bytes).map_err(|_| problem_of(field, "the text is not UTF-8".to_owned()))
}

fn wrong_wire_type(field: &FieldPlan, content: Content<'_>) -> ProtobufError {
    let wire_type = match content {
        Content::Varint(_) => VARINT,
        Content::Fixed64(_) => FIXED_64,
        Content::Bytes(_) => BYTES,
        Content::Other(wire_type) => wire_type,
    };
    ProtobufError::WireType { field: field.name.to_owned(), wire_type }
}

fn problem_of(field: &FieldPlan, problem: String) -> ProtobufError {
    ProtobufError::Value { field: field.name.to_owned(), problem }
}
