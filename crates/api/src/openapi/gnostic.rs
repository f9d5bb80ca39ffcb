//! The protobuf form of OpenAPI documents that Kubernetes' clients read.
//!
//! It has a message for every kind of JSON object in a document, and wraps values of several types. The tables list
//! the fields of our documents; one encoder interprets them.

use serde_json::{Map, Value};

use crate::protobuf::wire::{FIXED_64, VARINT, Writer};

/// The fields of an object, sorted by number.
pub(super) struct Message {
    pub fields: &'static [Entry],
    /// The number of the field for extensions (`x-`), above all others.
    pub extensions: u32,
}

pub(super) struct Entry {
    pub name: &'static str,
    pub number: u32,
    pub many: bool,
    pub form: Form,
}

#[derive(Clone, Copy)]
pub(super) enum Form {
    Text,
    Flag,
    Number,
    Integer,
    /// Any value, as text that YAML can read.
    Any,
    /// A message with a list of strings.
    Strings,
    Message(&'static Message),
    /// A message with entries of name and value under the given number.
    Map(u32, &'static Form),
    /// A message with one field set, chosen by the value, or none.
    Choice(fn(&Value) -> Option<(u32, Form)>),
}

pub(super) const fn one(name: &'static str, number: u32, form: Form) -> Entry {
    Entry { name, number, many: false, form }
}

pub(super) const fn many(name: &'static str, number: u32, form: Form) -> Entry {
    Entry { name, number, many: true, form }
}

/// Writes an object's fields from the last to the first, as the writer requires.
pub(super) fn write_message(writer: &mut Writer, message: &Message, object: &Map<String, Value>) {
    for (name, value) in object.iter().rev().filter(|(name, _)| name.starts_with("x-")) {
        write_named(writer, message.extensions, name, value, Form::Any);
    }
    for entry in message.fields.iter().rev() {
        let Some(value) = object.get(entry.name) else { continue };
        match value {
            Value::Array(items) if entry.many => {
                items.iter().rev().for_each(|item| write_one(writer, entry.number, item, entry.form));
            }
            value if is_default(value, entry.form) => {}
            value => write_one(writer, entry.number, value, entry.form),
        }
    }
}

/// An entry of a map: its name and its value.
pub(super) fn write_named(writer: &mut Writer, number: u32, name: &str, value: &Value, form: Form) {
    let before = writer.len();
    write_one(writer, 2, value, form);
    writer.text(1, name.as_bytes());
    writer.close(number, before);
}

fn write_one(writer: &mut Writer, number: u32, value: &Value, form: Form) {
    match form {
        Form::Text => writer.text(number, value.as_str().unwrap_or_default().as_bytes()),
        Form::Flag => writer.number(number, value.as_bool().unwrap_or_default().into()),
        Form::Integer => {
            writer.varint(value.as_i64().unwrap_or_default() as u64);
            writer.tag(number, VARINT);
        }
        Form::Number => {
            writer.bytes(&value.as_f64().unwrap_or_default().to_le_bytes());
            writer.tag(number, FIXED_64);
        }
        Form::Any => {
            let before = writer.len();
            writer.text(2, value.to_string().as_bytes());
            writer.close(number, before);
        }
        Form::Strings => {
            let before = writer.len();
            for item in value.as_array().into_iter().flatten().rev() {
                write_one(writer, 1, item, Form::Text);
            }
            writer.close(number, before);
        }
        Form::Message(message) => {
            let before = writer.len();
            if let Value::Object(object) = value {
                write_message(writer, message, object);
            }
            writer.close(number, before);
        }
        Form::Map(inner, form) => {
            let before = writer.len();
            for (name, value) in value.as_object().into_iter().flatten().rev() {
                write_named(writer, inner, name, value, *form);
            }
            writer.close(number, before);
        }
        Form::Choice(choose) => {
            let before = writer.len();
            if let Some((chosen, form)) = choose(value) {
                write_one(writer, chosen, value, form);
            }
            writer.close(number, before);
        }
    }
}

/// Plain fields that have their zero value are not written.
fn is_default(value: &Value, form: Form) -> bool {
    match form {
        Form::Text => value.as_str().is_none_or(str::is_empty),
        Form::Flag => value.as_bool() != Some(true),
        Form::Integer | Form::Number => value.as_f64().is_none_or(|number| number == 0.0),
        _ => false,
    }
}
