//! Decoding of JSON by a schema, in one pass.

#[cfg(test)]
mod tests;

use super::emptied::Emptied;
use super::error::{DecodeError, StrictProblem};
use super::normalize::starts_over;
use super::normalize::zero;
use super::path::Step;
use super::scanner::{MAX_RAW_DEPTH, ValueStart};
use super::untyped::{State, number};
use super::{Decoded, time};
use crate::quantity;
use crate::schema::{Alternative, Field, Node, NodeRef, Object, Presence, Shape};
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value};
use std::borrow::Cow;

pub(super) fn decode<'a>(bytes: &'a [u8], node: NodeRef<'a>) -> Result<Decoded, DecodeError> {
    let mut decoder = Decoder { state: State::new(bytes) };
    let value = decoder.value(node)?;
    decoder.state.scanner.finish()?;
    decoder.state.outcome(value.unwrap_or_else(|| zero(node)))
}

struct Decoder<'a> {
    state: State<'a>,
}

/// The value, or none if it counts as absent. Only syntax errors stop decoding; others are recorded in the state.
type Outcome = Result<Option<Value>, DecodeError>;

impl<'a> Decoder<'a> {
    fn value(&mut self, node: NodeRef<'a>) -> Outcome {
        let start_kind = self.state.scanner.start_value()?;
        if let Some(outcome) = self.own_way(node, start_kind) {
            return outcome;
        }
        if start_kind == ValueStart::Null {
            self.state.scanner.literal(start_kind)?;
            return Ok(None);
        }
        match (&node.get().shape, start_kind) {
            (Shape::Object(object), ValueStart::Object) => self.object(node, object).map(Some),
            (Shape::Map(element), ValueStart::Object) => self.map(node.at(*element)).map(Some),
            (Shape::List(list), ValueStart::Array) => self.list(node.at(list.element)).map(Some),
            (Shape::String, ValueStart::String) => Ok(Some(Value::String(self.state.scanner.string()?.into_owned()))),
            (Shape::Boolean, ValueStart::True | ValueStart::False) => {
                self.state.scanner.literal(start_kind)?;
                Ok(Some(Value::Bool(start_kind == ValueStart::True)))
            }
            (Shape::Integer { bits }, ValueStart::Number) => self.integer(node, *bits),
            (Shape::Number, ValueStart::Number) => self.float(node),
            (Shape::Bytes, ValueStart::String) => self.bytes(),
            _ => {
                self.state.mistyped(start_kind.go_name(), &node.go_type);
                self.state.scanner.skip_value()?;
                Ok(None)
            }
        }
    }

    fn object(&mut self, node: NodeRef<'a>, object: &'a Object) -> Result<Value, DecodeError> {
        self.state.scanner.check_value_depth()?;
        let mut map = Map::new();
        let mut seen: u128 = 0;
        let mut key = self.state.scanner.first_key()?;
        while let Some(name) = key {
            match object.field_index(&name) {
                Some(at) => {
                    let bit = 1u128.checked_shl(at as u32).unwrap_or(0);
                    let again = seen & bit != 0;
                    if again {
                        self.state.report(StrictProblem::Duplicate, &name);
                    }
                    seen |= bit;
                    self.field(&mut map, node, object, &object.fields()[at], again)?;
                }
                None if node.preserve_unknown => {
                    self.state.steps.push(Step::Key(name.clone()));
                    let value = self.state.any()?;
                    self.state.steps.pop();
                    map.insert(name.into_owned(), value);
                }
                None => {
                    self.state.report(StrictProblem::Unknown, &name);
                    self.state.scanner.skip_value()?;
                }
            }
            key = self.state.scanner.next_key()?;
        }
        Ok(Value::Object(map))
    }

    fn field(
        &mut self,
        map: &mut Map<String, Value>,
        owner: NodeRef<'a>,
        object: &'a Object,
        field: &'a Field,
        again: bool,
    ) -> Result<(), DecodeError> {
        let inlined = inlined_from(owner, object, field);
        self.state.steps.push(Step::Field { owner: owner.get(), name: &field.name, inlined });
        let value = self.value(owner.at(field.node))?;
        if let Some(value) = value.as_ref().filter(|value| Emptied::matters(owner, field, value)) {
            self.state.note_emptied(value);
        }
        self.state.steps.pop();
        let Some(value) = value else { return Ok(()) };
        if field.presence == Presence::NonZero && is_zero(&value) && !starts_over(field, &value) {
            // An empty object adds nothing to the previous one; other zero values remove it.
            if again && !value.is_object() {
                map.remove(&*field.name);
            }
            return Ok(());
        }
        match map.get_mut(&*field.name) {
            Some(before) if again => merge_again(before, value),
            _ => {
                map.insert(field.name.to_string(), value);
            }
        }
        Ok(())
    }

    fn map(&mut self, element: NodeRef<'a>) -> Result<Value, DecodeError> {
        self.state.scanner.check_value_depth()?;
        let mut map = Map::new();
        let mut key = self.state.scanner.first_key()?;
        while let Some(name) = key {
            if map.contains_key(&*name) {
                self.state.report(StrictProblem::Duplicate, &name);
            }
            self.state.steps.push(Step::Key(name.clone()));
            let value = self.value(element)?;
            self.state.steps.pop();
            // Absent bytes in a map are empty.
            let absent = || if matches!(element.get().shape, Shape::Bytes) { Value::from("") } else { zero(element) };
            map.insert(name.into_owned(), value.unwrap_or_else(absent));
            key = self.state.scanner.next_key()?;
        }
        Ok(Value::Object(map))
    }

    fn list(&mut self, element: NodeRef<'a>) -> Result<Value, DecodeError> {
        self.state.scanner.check_value_depth()?;
        let mut items = Vec::new();
        let mut more = self.state.scanner.first_element()?;
        while more {
            self.state.steps.push(Step::Index(items.len()));
            let value = self.value(element)?;
            self.state.steps.pop();
            items.push(value.unwrap_or_else(|| zero(element)));
            more = self.state.scanner.next_element()?;
        }
        Ok(Value::Array(items))
    }

    fn integer(&mut self, node: NodeRef<'a>, bits: u8) -> Outcome {
        let text = self.state.scanner.number()?;
        match text.parse::<i64>() {
            Ok(number) if bits == 64 || i32::try_from(number).is_ok() => Ok(Some(number.into())),
            _ => {
                self.state.mistyped(&format!("number {text}"), &node.go_type);
                Ok(None)
            }
        }
    }

    fn float(&mut self, node: NodeRef<'a>) -> Outcome {
        let text = self.state.scanner.number()?;
        let value = number(text);
        if value.is_none() {
            self.state.mistyped(&format!("number {text}"), &node.go_type);
        }
        Ok(value)
    }

    fn bytes(&mut self) -> Outcome {
        let text = self.state.scanner.string()?;
        match canonical_base64(text) {
            Ok(text) => Ok(Some(Value::String(text))),
            Err(at) => {
                self.state.misread(format!("illegal base64 data at input byte {at}"));
                Ok(None)
            }
        }
    }

    /// Types with their own decoding, whose errors stop decoding.
    fn own_way(&mut self, node: NodeRef<'a>, start_kind: ValueStart) -> Option<Outcome> {
        Some(match node.get().shape {
            Shape::Time => self.time(start_kind, time::seconds),
            Shape::MicroTime => self.time(start_kind, time::micros),
            Shape::Duration => self.text(start_kind),
            Shape::Quantity => self.quantity(start_kind),
            Shape::IntOrString => self.int_or_string(start_kind),
            Shape::Raw | Shape::Fields => {
                let deepest = std::mem::replace(&mut self.state.scanner.deepest, MAX_RAW_DEPTH);
                let outcome = self.raw(start_kind);
                self.state.scanner.deepest = deepest;
                outcome
            }
            Shape::Any => self.raw(start_kind),
            Shape::SchemaOr { schema, other } => {
                let strict = std::mem::replace(&mut self.state.strict, false);
                let outcome = self.schema_or(node.at(schema), other, start_kind);
                self.state.strict = strict;
                outcome
            }
            _ => return None,
        })
    }

    fn time(&mut self, start_kind: ValueStart, read: fn(&str) -> Result<Option<String>, String>) -> Outcome {
        let Some(text) = self.text(start_kind)? else { return Ok(None) };
        match read(text.as_str().unwrap_or_default()) {
            Ok(time) => Ok(time.map(Value::String)),
            Err(message) => {
                self.state.unreadable(message);
                Ok(None)
            }
        }
    }

    fn text(&mut self, start_kind: ValueStart) -> Outcome {
        match start_kind {
            ValueStart::String => Ok(Some(Value::String(self.state.scanner.string()?.into_owned()))),
            ValueStart::Null => self.state.scanner.literal(start_kind).map(|()| None),
            _ => {
                self.state.mistyped_within(start_kind.go_name(), "string");
                self.state.scanner.skip_value()?;
                Ok(None)
            }
        }
    }

    fn quantity(&mut self, start_kind: ValueStart) -> Outcome {
        let text: Cow<'a, str> = match start_kind {
            ValueStart::Null => return self.state.scanner.literal(start_kind).map(|()| None),
            ValueStart::String => self.state.scanner.string()?,
            _ => {
                let start = self.state.scanner.position();
                self.state.scanner.skip_value()?;
                String::from_utf8_lossy(self.state.scanner.slice_from(start))
            }
        };
        match quantity::canonical(text.trim()) {
            Ok(canonical) => Ok(Some(Value::String(canonical.into_owned()))),
            Err(error) => {
                self.state.unreadable(error.to_string());
                Ok(None)
            }
        }
    }

    fn int_or_string(&mut self, start_kind: ValueStart) -> Outcome {
        match start_kind {
            ValueStart::String => Ok(Some(Value::String(self.state.scanner.string()?.into_owned()))),
            ValueStart::Null => self.state.scanner.literal(start_kind).map(|()| None),
            ValueStart::Number => {
                let text = self.state.scanner.number()?;
                if let Ok(number) = text.parse::<i32>() {
                    return Ok(Some(number.into()));
                }
                self.state.mistyped_within(&format!("number {text}"), "int32");
                Ok(None)
            }
            _ => {
                self.state.mistyped_within(start_kind.go_name(), "int32");
                self.state.scanner.skip_value()?;
                Ok(None)
            }
        }
    }

    /// Kept verbatim and not validated here.
    fn raw(&mut self, start_kind: ValueStart) -> Outcome {
        if start_kind == ValueStart::Null {
            return self.state.scanner.literal(start_kind).map(|()| None);
        }
        let strict = std::mem::replace(&mut self.state.strict, false);
        let value = self.state.any();
        self.state.strict = strict;
        value.map(Some)
    }

    fn schema_or(&mut self, schema: NodeRef<'a>, other: Alternative, start_kind: ValueStart) -> Outcome {
        match (start_kind, other) {
            (ValueStart::Object, _) => self.value(schema),
            (ValueStart::Null, _) => self.state.scanner.literal(start_kind).map(|()| None),
            (ValueStart::True | ValueStart::False, Alternative::Boolean) => {
                self.state.scanner.literal(start_kind)?;
                Ok(Some(Value::Bool(start_kind == ValueStart::True)))
            }
            (ValueStart::Array, Alternative::Schemas) => self.list(schema).map(Some),
            (ValueStart::Array, Alternative::Strings) => self.state.any().map(Some),
            (_, Alternative::Boolean) => {
                self.state.unreadable("boolean or JSON schema expected".to_owned());
                self.state.scanner.skip_value()?;
                Ok(None)
            }
            _ => {
                self.state.scanner.skip_value()?;
                Ok(None)
            }
        }
    }
}

/// The structs a field is inlined from: the one in its owner, and one in that.
fn inlined_from<'a>(owner: NodeRef<'a>, object: &Object, field: &Field) -> [Option<&'a Node>; 2] {
    let Some(at) = field.inlined else { return [None, None] };
    let first = owner.at(object.inlined[at as usize].node);
    let second = match &first.get().shape {
        Shape::Object(inner) => inner
            .field(&field.name)
            .and_then(|field| field.inlined)
            .map(|at| first.at(inner.inlined[at as usize].node).get()),
        _ => None,
    };
    [Some(first.get()), second]
}

/// A duplicate field is merged into an object; other values are replaced.
fn merge_again(before: &mut Value, value: Value) {
    match (before, value) {
        (Value::Object(before), Value::Object(value)) => {
            for (name, value) in value {
                match before.get_mut(&name) {
                    Some(before) => merge_again(before, value),
                    None => {
                        before.insert(name, value);
                    }
                }
            }
        }
        (before, value) => *before = value,
    }
}

pub(super) fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical)
        .with_decode_allow_trailing_bits(true),
);

/// The canonical base64 text, or the index of the first invalid byte.
fn canonical_base64(text: Cow<'_, str>) -> Result<String, usize> {
    let text = if text.contains(['\r', '\n']) { text.replace(['\r', '\n'], "").into() } else { text };
    let bytes = BASE64.decode(text.as_bytes()).map_err(|error| match error {
        base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
        base64::DecodeError::InvalidLength(length) => length / 4 * 4,
        base64::DecodeError::InvalidPadding => text.len() / 4 * 4,
    })?;
    let padded = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    // Only the last symbol before padding can have unused bits.
    if padded == 0 { Ok(text.into_owned()) } else { Ok(BASE64.encode(bytes)) }
}
