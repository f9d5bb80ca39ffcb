//! Encodes lists chunk by chunk, while they are sent: a list is never in memory as a whole.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use knarr_api::status::Status;
use knarr_store::Entry;
use serde_json::{Map, Value, json};

use super::encode::{not_acceptable, type_of, value};
use super::produced::Produced;
use super::table::{IncludeObject, Tables, partial, serves_stored_metadata};
use super::{Body, protobuf_list, with_type, yaml};
use crate::kinds::Resource;
use crate::persist::list::Listed;
use crate::persist::trim;
use crate::route::accept::{Encoding, Format, Shape};
use crate::stored;

/// Stored bytes are joined to chunks of about this size.
const JOINED_CHUNK_SIZE: usize = 256 * 1024;
/// What has to be parsed and encoded is sent in smaller chunks.
const ENCODED_CHUNK_SIZE: usize = 64 * 1024;
/// Lists of no more stored bytes are encoded at once.
pub(super) const SMALL_LIST: usize = 64 * 1024;

const LIST_END: &[u8] = b"]}\n";

/// A response with a list of objects.
pub async fn list(
    resource: &Arc<Resource>,
    listed: Listed,
    format: &Format,
    include: IncludeObject,
) -> Result<Response<Body>, Status> {
    if format.shape == Shape::Partial {
        return Err(not_acceptable(format!(
            "you requested PartialObjectMetadata, but the requested object is a list ({})",
            type_of(resource, "List")
        )));
    }
    let mut metadata = list_metadata(&listed);
    if resource.custom.is_some() && format.shape == Shape::Whole {
        // Kubernetes holds lists of custom resources as maps, which always print this field.
        metadata["continue"] = listed.continue_token.as_str().into();
    }
    if format.is_plain()
        && let Some(length) = joined_length(resource, &listed.entries)
    {
        return Ok(joined_list(resource, listed, &metadata, length));
    }
    let items = Items { resource: resource.clone(), format: *format, include };
    if listed.entries.is_empty() || (format.encoding, format.shape) == (Encoding::Protobuf, Shape::Table) {
        // Tables are not served as protobuf lists: no client asks for them, so they are encoded at once.
        let rows = listed.entries.iter().map(|entry| items.value(entry)).collect::<Result<Vec<Value>, _>>()?;
        return Ok(value(&items.document(metadata, Some(rows)), 200, format));
    }
    if format.encoding == Encoding::Protobuf {
        return protobuf_list::response(items, listed.entries, &metadata).await;
    }
    let is_small = listed.entries.iter().map(|entry| entry.value_len()).sum::<usize>() <= SMALL_LIST;
    let chunks = ListChunks::new(items, listed.entries, metadata);
    let body = if is_small {
        let mut whole = Vec::new();
        for chunk in chunks {
            whole.extend_from_slice(&chunk?);
        }
        Body::full(whole)
    } else {
        Body::Produced(Produced::start(chunks, None).await?)
    };
    Ok(with_type(200, format.media_type(), body))
}

fn list_metadata(listed: &Listed) -> Value {
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".to_owned(), listed.revision.to_string().into());
    if !listed.continue_token.is_empty() {
        metadata.insert("continue".to_owned(), listed.continue_token.as_str().into());
    }
    if let Some(remaining) = listed.remaining {
        metadata.insert("remainingItemCount".to_owned(), remaining.into());
    }
    Value::Object(metadata)
}

/// The length of the items if their stored bytes can be served, with the commas between them.
fn joined_length(resource: &Resource, entries: &[Arc<Entry>]) -> Option<usize> {
    let lengths: Option<usize> = entries.iter().map(|entry| stored::item_length(resource, entry)).sum();
    Some(lengths? + entries.len().saturating_sub(1))
}

/// Joins stored bytes without parsing them.
fn joined_list(resource: &Arc<Resource>, listed: Listed, metadata: &Value, length: usize) -> Response<Body> {
    let kind = &resource.kind;
    let head = format!(
        "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{metadata},\"items\":[",
        json!(kind.list_kind),
        json!(kind.api_version())
    );
    let length = head.len() + length + LIST_END.len();
    let chunks =
        JoinedChunks { resource: resource.clone(), entries: listed.entries.into_iter(), next: Some(head), first: true };
    with_type(200, Format::JSON.media_type(), Body::lazy(chunks, length))
}

struct JoinedChunks {
    resource: Arc<Resource>,
    entries: std::vec::IntoIter<Arc<Entry>>,
    /// The bytes before the next items; `None` after the end.
    next: Option<String>,
    first: bool,
}

impl Iterator for JoinedChunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let head = self.next.take()?;
        let mut chunk = Vec::with_capacity(head.len() + upcoming(&self.entries) + LIST_END.len());
        chunk.extend_from_slice(head.as_bytes());
        for entry in self.entries.by_ref() {
            if !std::mem::take(&mut self.first) {
                chunk.push(b',');
            }
            // Cannot fail: entries of known length need no parsing.
            let _ = stored::append_item(&mut chunk, &self.resource, &entry);
            if chunk.len() >= JOINED_CHUNK_SIZE {
                self.next = Some(String::new());
                return Some(chunk.into());
            }
        }
        chunk.extend_from_slice(LIST_END);
        Some(chunk.into())
    }
}

/// About how many bytes the next chunk will have: few for most lists.
fn upcoming(entries: &std::vec::IntoIter<Arc<Entry>>) -> usize {
    const REVISION: usize = 48;
    let mut bytes = 0;
    for entry in entries.as_slice() {
        bytes += entry.value_len() + REVISION;
        if bytes >= JOINED_CHUNK_SIZE {
            break;
        }
    }
    bytes
}

/// Converts entries to the items of a list in one representation.
pub(super) struct Items {
    pub resource: Arc<Resource>,
    pub format: Format,
    pub include: IncludeObject,
}

impl Items {
    /// An entry as an item.
    pub fn value(&self, entry: &Entry) -> Result<Value, Status> {
        let resource = &self.resource;
        let mut object = stored::parse_served(resource, entry)?;
        Ok(match self.format.shape {
            Shape::Partial | Shape::PartialList => partial(resource, &object, self.format.meta_version),
            Shape::Table => Tables::new(resource, self.format.meta_version, self.include).row_of(object),
            Shape::Whole => {
                if let Some(fields) = object.as_object_mut().filter(|_| !resource.kind.custom) {
                    fields.remove("kind");
                    fields.remove("apiVersion");
                }
                object
            }
        })
    }

    /// Kind and version of the list.
    pub fn list_kind(&self) -> (String, String) {
        let meta = || format!("meta.k8s.io/{}", self.format.meta_version);
        match self.format.shape {
            Shape::Whole => (self.resource.kind.list_kind.clone(), self.resource.kind.api_version()),
            Shape::Partial | Shape::PartialList => ("PartialObjectMetadataList".to_owned(), meta()),
            Shape::Table => ("Table".to_owned(), meta()),
        }
    }

    /// The list, if `items` are given; otherwise everything but its items.
    fn document(&self, metadata: Value, items: Option<Vec<Value>>) -> Value {
        let (kind, api_version) = self.list_kind();
        let mut document = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
        if self.format.shape == Shape::Table {
            document["columnDefinitions"] = self.resource.columns().clone();
        }
        if let Some(items) = items {
            // An empty list of partial objects is printed as a nil slice of Go.
            let is_null = items.is_empty() && self.format.shape == Shape::PartialList;
            document[self.items_field()] = if is_null { Value::Null } else { items.into() };
        }
        document
    }

    fn items_field(&self) -> &'static str {
        if self.format.shape == Shape::Table { "rows" } else { "items" }
    }

    /// Appends an item as it stands in the list.
    fn append(&self, out: &mut Vec<u8>, entry: &Entry, is_first: bool) -> Result<(), Status> {
        if self.format.encoding == Encoding::Yaml {
            out.extend_from_slice(yaml::write_item(self.value(entry)?).as_bytes());
            return Ok(());
        }
        if !is_first {
            out.push(b',');
        }
        if self.format.pretty {
            let item = serde_json::to_string_pretty(&self.value(entry)?).map_err(Status::internal)?;
            // Texts contain no line ends in JSON: each one is followed by indentation.
            out.extend_from_slice(b"\n    ");
            out.extend_from_slice(item.replace('\n', "\n    ").as_bytes());
            return Ok(());
        }
        let trimmed = self.format.trim().filter(|trim| {
            trim.metadata_only.is_some()
                && serves_stored_metadata(&self.resource)
                && trim::append(out, &self.resource, entry, entry.revision, *trim)
        });
        match trimmed {
            Some(_) => Ok(()),
            None if self.format.shape == Shape::Whole => stored::append_item(out, &self.resource, entry),
            None => serde_json::to_writer(&mut *out, &self.value(entry)?).map_err(Status::internal),
        }
    }

    /// The bytes before the first item and after the last one.
    fn frame(&self, metadata: Value) -> (Vec<u8>, Vec<u8>) {
        let document = self.document(metadata, None);
        let field = self.items_field();
        if self.format.encoding == Encoding::Yaml {
            let fields = document.as_object().into_iter().flatten();
            let (before, after): (Map<String, Value>, Map<String, Value>) = fields
                .map(|(key, value)| (key.clone(), value.clone()))
                .partition(|(key, _)| yaml::comes_before(key, field));
            let after = if after.is_empty() { String::new() } else { yaml::write(&Value::Object(after)) };
            return (format!("{}{field}:\n", yaml::write(&Value::Object(before))).into(), after.into());
        }
        let order = ["kind", "apiVersion", "metadata", "columnDefinitions"];
        let fields = order.into_iter().filter_map(|name| Some((name, document.get(name)?)));
        if self.format.pretty {
            let fields = fields.map(|(name, value)| {
                let value = serde_json::to_string_pretty(value).unwrap_or_default().replace('\n', "\n  ");
                format!("  \"{name}\": {value},\n")
            });
            return (format!("{{\n{}  \"{field}\": [", fields.collect::<String>()).into(), b"\n  ]\n}\n".to_vec());
        }
        let fields = fields.map(|(name, value)| format!("\"{name}\":{value},"));
        (format!("{{{}\"{field}\":[", fields.collect::<String>()).into(), LIST_END.to_vec())
    }
}

/// The chunks of a list that is not empty.
struct ListChunks {
    items: Items,
    entries: std::vec::IntoIter<Arc<Entry>>,
    head: Option<Vec<u8>>,
    /// `None` after the end.
    tail: Option<Vec<u8>>,
}

impl ListChunks {
    fn new(items: Items, entries: Vec<Arc<Entry>>, metadata: Value) -> ListChunks {
        let (head, tail) = items.frame(metadata);
        ListChunks { items, entries: entries.into_iter(), head: Some(head), tail: Some(tail) }
    }
}

impl Iterator for ListChunks {
    type Item = Result<Bytes, Status>;

    fn next(&mut self) -> Option<Result<Bytes, Status>> {
        let tail = self.tail.take()?;
        let mut is_first = self.head.is_some();
        let mut chunk = self.head.take().unwrap_or_default();
        for entry in self.entries.by_ref() {
            if let Err(status) = self.items.append(&mut chunk, &entry, std::mem::take(&mut is_first)) {
                return Some(Err(status));
            }
            if chunk.len() >= ENCODED_CHUNK_SIZE {
                self.tail = Some(tail);
                return Some(Ok(chunk.into()));
            }
        }
        chunk.extend_from_slice(&tail);
        Some(Ok(chunk.into()))
    }
}

#[cfg(test)]
mod tests;
