//! Kubernetes' protobuf encoding of objects.
//!
//! No code is generated. A plan of each message is built from the schema table on first use, and one encoder and
//! one decoder interpret it. The output equals that of Kubernetes to the byte: fields in the order of their numbers,
//! map entries sorted by key, and every field written that is not a pointer in Kubernetes, zero or not.
//!
//! An object is sent in an envelope: four magic bytes and a message with its `apiVersion`, `kind` and encoded bytes. Lists
//! and watch events can be assembled from items that are already encoded.

mod decode;
mod encode;
mod envelope;
mod plan;
mod special;
pub(crate) mod wire;

use serde_json::Value;

use crate::catalogue::GroupVersionKind;

pub use envelope::{MAGIC, list_item_prefix, list_prefix, list_suffix, watch_frame, wrap};

/// Why a message cannot be decoded or encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoMagic,
    #[error("the message ends too early")]
    Truncated,
    #[error("a number in the message is longer than 64 bits")]
    Overlong,
    #[error("the message nests deeper than {0} levels")]
    TooDeep(u32),
    #[error("the message holds more than {0} messages")]
    TooMany(u32),
    #[error("wrong wire type {wire_type} for field {field}")]
    WireType { field: String, wire_type: u8 },
    #[error("field {field}: {problem}")]
    Value { field: String, problem: String },
    #[error("no kind {kind:?} in version {version:?} is known to protobuf")]
    UnknownKind { version: String, kind: String },
    #[error("Object 'Kind' is missing")]
    NoKind,
    #[error("content encoding {0} is not supported")]
    ContentEncoding(String),
}

/// Whether objects of a kind have a protobuf form.
pub fn supports(kind: &GroupVersionKind) -> bool {
    plan::message_of(kind).is_some()
}

/// Encodes an object with its envelope; its `apiVersion` and `kind` name its type.
pub fn encode(object: &Value) -> Result<Vec<u8>, ProtobufError> {
    let kind = kind_of(object).ok_or(ProtobufError::NoKind)?;
    let message = encode_message(&kind, object)?;
    Ok(wrap(&kind.api_version(), &kind.kind, &message))
}

/// Encodes an object without its envelope, as in a list.
pub fn encode_message(kind: &GroupVersionKind, object: &Value) -> Result<Vec<u8>, ProtobufError> {
    let (plans, message) = plan::message_of(kind).ok_or_else(|| unknown(kind))?;
    encode::message(plans, message, object)
}

/// Decodes an object from its envelope. If that does not name a type, the expected kind is assumed.
pub fn decode(bytes: &[u8], expected: Option<&GroupVersionKind>) -> Result<Value, ProtobufError> {
    let envelope = envelope::open(bytes)?;
    if !envelope.content_encoding.is_empty() {
        return Err(ProtobufError::ContentEncoding(envelope.content_encoding.to_owned()));
    }
    let mut kind = GroupVersionKind::new(envelope.api_version, envelope.kind);
    if let Some(expected) = expected {
        if kind.kind.is_empty() {
            kind.kind = expected.kind.clone();
        }
        if kind.version.is_empty() {
            kind.group = expected.group.clone();
            kind.version = expected.version.clone();
        }
    }
    if kind.kind.is_empty() {
        return Err(ProtobufError::NoKind);
    }
    decode_message(&kind, envelope.raw)
}

/// Decodes an object as one of another version, whose fields must have the same numbers.
pub fn decode_in(api_version: &str, bytes: &[u8]) -> Result<Value, ProtobufError> {
    let envelope = envelope::open(bytes)?;
    if !envelope.content_encoding.is_empty() {
        return Err(ProtobufError::ContentEncoding(envelope.content_encoding.to_owned()));
    }
    decode_message(&GroupVersionKind::new(api_version, envelope.kind), envelope.raw)
}

/// Decodes an object that has no envelope.
pub fn decode_message(kind: &GroupVersionKind, bytes: &[u8]) -> Result<Value, ProtobufError> {
    let (plans, message) = plan::message_of(kind).ok_or_else(|| unknown(kind))?;
    let mut object = decode::message(plans, message, bytes)?;
    // Watch events are the only kind without a type.
    if kind.kind != "WatchEvent" {
        if !kind.version.is_empty() {
            object.insert("apiVersion".to_owned(), kind.api_version().into());
        }
        object.insert("kind".to_owned(), kind.kind.as_str().into());
    }
    Ok(Value::Object(object))
}

fn kind_of(object: &Value) -> Option<GroupVersionKind> {
    // The documents at the root of discovery have a kind, but no version.
    let version = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    Some(GroupVersionKind::new(version, object.get("kind")?.as_str()?))
}

fn unknown(kind: &GroupVersionKind) -> ProtobufError {
    ProtobufError::UnknownKind { version: kind.api_version(), kind: kind.kind.clone() }
}

#[cfg(test)]
mod tests;
