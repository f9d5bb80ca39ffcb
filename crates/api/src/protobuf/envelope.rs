//! The messages around encoded objects: envelope, lists and watch events.

use serde_json::{Value, json};

use super::wire::{BYTES, Content, Reader, Writer, varint};
use super::{ProtobufError, encode, plan};
use crate::catalogue::GroupVersionKind;

/// The first bytes of Kubernetes protobuf.
pub const MAGIC: [u8; 4] = *b"k8s\0";

/// An empty content encoding and an empty content type, which end every envelope.
const SUFFIX: [u8; 4] = [0x1a, 0x00, 0x22, 0x00];

/// Wraps an encoded object in its envelope.
pub fn wrap(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let mut out = prefix(api_version, kind, message.len(), message.len() + SUFFIX.len());
    out.extend_from_slice(message);
    out.extend_from_slice(&SUFFIX);
    out
}

/// The start of a list of encoded items. Each item is preceded by its [`list_item_prefix`], and [`list_suffix`] comes
/// last. `metadata` is that of the list; `lengths` are those of the items without prefix.
pub fn list_prefix(
    api_version: &str,
    kind: &str,
    metadata: &Value,
    lengths: impl IntoIterator<Item = usize>,
) -> Result<Vec<u8>, ProtobufError> {
    // The same for all lists: field 1 is the metadata, field 2 the items.
    let list = GroupVersionKind::new("v1", "PodList");
    let (plans, message) = plan::message_of(&list).ok_or(ProtobufError::NoKind)?;
    let head = encode::message(plans, message, &json!({ "metadata": metadata }))?;
    let items: usize = lengths.into_iter().map(|length| list_item_prefix(length).len() + length).sum();
    let mut out = prefix(api_version, kind, head.len() + items, head.len());
    out.extend_from_slice(&head);
    Ok(out)
}

/// The bytes before an encoded item in a list.
pub fn list_item_prefix(length: usize) -> ItemPrefix {
    let mut encoded = [0; 10];
    let used = varint(length as u64, &mut encoded);
    let mut bytes = [0; 11];
    bytes[0] = 2 << 3 | BYTES;
    bytes[1..=used].copy_from_slice(&encoded[..used]);
    ItemPrefix { bytes, used: used + 1 }
}

/// The bytes after the last item of a list.
pub fn list_suffix() -> &'static [u8] {
    &SUFFIX
}

/// The bytes of [`list_item_prefix`].
#[derive(Debug, Clone, Copy)]
pub struct ItemPrefix {
    bytes: [u8; 11],
    used: usize,
}

impl std::ops::Deref for ItemPrefix {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

/// A watch event in a stream: its length in four bytes, then the event with an object in its envelope.
pub fn watch_frame(event: &str, object: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new(object.len() + event.len() + 32);
    let before = writer.len();
    writer.text(1, object);
    writer.close(2, before);
    writer.text(1, event.as_bytes());
    writer.bytes(&(writer.len() as u32).to_be_bytes());
    writer.finish()
}

fn prefix(api_version: &str, kind: &str, message: usize, capacity: usize) -> Vec<u8> {
    let mut writer = Writer::new(api_version.len() + kind.len() + 32);
    writer.varint(message as u64);
    writer.tag(2, BYTES);
    let before = writer.len();
    writer.text(2, kind.as_bytes());
    writer.text(1, api_version.as_bytes());
    writer.close(1, before);
    writer.bytes(&MAGIC);
    let mut out = writer.finish();
    out.reserve_exact(capacity);
    out
}

/// An opened envelope.
#[derive(Debug, Default)]
pub(super) struct Envelope<'a> {
    pub api_version: &'a str,
    pub kind: &'a str,
    pub raw: &'a [u8],
    pub content_encoding: &'a str,
}

pub(super) fn open(bytes: &[u8]) -> Result<Envelope<'_>, ProtobufError> {
    let body = bytes.strip_prefix(&MAGIC).ok_or(ProtobufError::NoMagic)?;
    let mut envelope = Envelope::default();
    let mut reader = Reader::new(body);
    while let Some((number, content)) = reader.next()? {
        match (number, content) {
            (1, Content::Bytes(meta)) => {
                let mut meta = Reader::new(meta);
                while let Some((number, content)) = meta.next()? {
                    match (number, content) {
                        (1, Content::Bytes(text)) => envelope.api_version = utf8("apiVersion", text)?,
                        (2, Content::Bytes(text)) => envelope.kind = utf8("kind", text)?,
                        _ => {}
                    }
                }
            }
            (2, Content::Bytes(raw)) => envelope.raw = raw,
            (3, Content::Bytes(text)) => envelope.content_encoding = utf8("contentEncoding", text)?,
            _ => {}
        }
    }
    Ok(envelope)
}

fn utf8<'a>(field: &str, text: &'a [u8]) -> Result<&'a str, ProtobufError> {
    std::str::from_utf8(text)
        .map_err(|_| ProtobufError::Value { field: field.to_owned(), problem: "the text is not UTF-8".to_owned() })
}
