//! Objects and lists in the representation the client asked for.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use knarr_api::catalogue::GroupVersionKind;
use knarr_api::protobuf;
use knarr_api::status::Status;
use knarr_store::Entry;
use serde_json::{Map, Value, json};

use super::table::{self, IncludeObject};
use super::yaml;
use super::{Body, with_type};
use crate::kinds::Resource;
use crate::persist::list::Listed;
use crate::persist::{Outcome, stored};
use crate::route::accept::{Encoding, Format, Shape};

/// Lists are sent in pieces of about this size, so that the first goes out while the next is made.
const CHUNK: usize = 256 * 1024;

/// Answers with one object of a resource.
pub fn object(
    resource: &Resource,
    outcome: &Outcome,
    code: u16,
    format: &Format,
    include: IncludeObject,
) -> Result<Response<Body>, Status> {
    if let (Outcome::Stored(entry), true) = (outcome, format.is_plain()) {
        let mut bytes = Vec::with_capacity(entry.value.len() + 48);
        stored::append_object(&mut bytes, resource, entry)?;
        bytes.push(b'\n');
        return Ok(with_type(code, format.media_type(), Body::full(bytes)));
    }
    let mut object = outcome.value()?;
    stored::to_served(resource, &mut object);
    let shaped = match format.shape {
        Shape::Whole => object,
        Shape::Partial => table::partial(resource, &object, format.meta_version),
        Shape::PartialList if resource.custom.is_some() => return Err(Status::new(500, "", "content is not a list")),
        Shape::PartialList => {
            return Err(not_acceptable(format!(
                "you requested PartialObjectMetadataList, but the requested object is not a list ({})",
                type_of(resource, "")
            )));
        }
        Shape::Table => {
            let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
            table::Tables::new(resource, format.meta_version, include).of(metadata, [object])
        }
    };
    Ok(value(&shaped, code, format))
}

fn not_acceptable(text: String) -> Status {
    Status::new(406, "NotAcceptable", text)
}

/// What messages call the type of a resource's objects.
fn type_of(resource: &Resource, suffix: &str) -> String {
    match resource.kind.group.as_str() {
        _ if resource.custom.is_some() => format!("*unstructured.Unstructured{suffix}"),
        "" | "events.k8s.io" => format!("*core.{}{suffix}", resource.kind.kind),
        group => format!("*{}.{}{suffix}", group.split('.').next().unwrap_or(group), resource.kind.kind),
    }
}

/// An object of a resource as bytes of its own, in the form a stream holds it.
pub fn served_bytes(value: &Value, format: &Format) -> Vec<u8> {
    match format.encoding {
        Encoding::Json if format.pretty => {
            let mut bytes = serde_json::to_vec_pretty(value).unwrap_or_default();
            bytes.push(b'\n');
            bytes
        }
        Encoding::Json => {
            let mut bytes = ordered(value);
            bytes.push(b'\n');
            bytes
        }
        Encoding::Yaml => yaml::write(value).into_bytes(),
        Encoding::Protobuf => protobuf::encode(value).unwrap_or_else(|error| {
            tracing::error!(%error, kind = %value["kind"], "an object has no protobuf form");
            let status = Status::internal(error).to_value();
            protobuf::encode(&status).unwrap_or_default()
        }),
    }
}

/// Kind and apiVersion first, as people expect to read them.
fn ordered(value: &Value) -> Vec<u8> {
    let Some(fields) = value.as_object().filter(|fields| fields.contains_key("kind")) else {
        return serde_json::to_vec(value).unwrap_or_default();
    };
    let mut bytes = Vec::with_capacity(512);
    let first = ["kind", "apiVersion", "metadata"].into_iter().filter_map(|key| fields.get_key_value(key));
    let rest = fields.iter().filter(|(key, _)| !matches!(key.as_str(), "kind" | "apiVersion" | "metadata"));
    for (at, (key, value)) in first.chain(rest).enumerate() {
        bytes.push(if at == 0 { b'{' } else { b',' });
        let _ = serde_json::to_writer(&mut bytes, key);
        bytes.push(b':');
        let _ = serde_json::to_writer(&mut bytes, value);
    }
    bytes.push(b'}');
    bytes
}

/// Answers with any object that says itself what it is.
pub fn value(value: &Value, code: u16, format: &Format) -> Response<Body> {
    with_type(code, format.media_type(), Body::full(served_bytes(value, format)))
}

/// Answers with a list of a resource's objects.
pub fn list(
    resource: &Arc<Resource>,
    listed: Listed,
    format: &Format,
    include: IncludeObject,
) -> Result<Response<Body>, Status> {
    let mut metadata = list_metadata(&listed);
    if resource.custom.is_some() && format.shape == Shape::Whole {
        // Lists that Kubernetes keeps as plain maps print this field always.
        metadata["continue"] = listed.continue_token.as_str().into();
    }
    match (format.shape, format.encoding) {
        (Shape::Whole, Encoding::Json) if !format.pretty => plain_list(resource, listed, &metadata),
        (Shape::Whole, Encoding::Protobuf) => protobuf_list(resource, &listed, &metadata),
        (Shape::Whole, _) => {
            let mut items = Vec::with_capacity(listed.entries.len());
            for entry in &listed.entries {
                let mut item = stored::parse_served(resource, entry)?;
                if let Some(fields) = item.as_object_mut().filter(|_| !resource.kind.custom) {
                    fields.remove("kind");
                    fields.remove("apiVersion");
                }
                items.push(item);
            }
            let list = json!({
                "kind": resource.kind.list_kind, "apiVersion": resource.kind.api_version(), "metadata": metadata, "items": items,
            });
            Ok(value(&list, 200, format))
        }
        (Shape::Partial, _) => Err(not_acceptable(format!(
            "you requested PartialObjectMetadata, but the requested object is a list ({})",
            type_of(resource, "List")
        ))),
        (Shape::PartialList, _) => {
            let mut items = Vec::with_capacity(listed.entries.len());
            for entry in &listed.entries {
                items.push(table::partial(resource, &stored::parse_served(resource, entry)?, format.meta_version));
            }
            let list = json!({
                "kind": "PartialObjectMetadataList", "apiVersion": format!("meta.k8s.io/{}", format.meta_version),
                // A list of nothing is printed as Go prints a slice that was never made.
                "metadata": metadata, "items": if items.is_empty() { Value::Null } else { items.into() },
            });
            Ok(value(&list, 200, format))
        }
        (Shape::Table, _) => {
            let mut objects = Vec::with_capacity(listed.entries.len());
            for entry in &listed.entries {
                objects.push(stored::parse_served(resource, entry)?);
            }
            let table = table::Tables::new(resource, format.meta_version, include).of(metadata, objects);
            Ok(value(&table, 200, format))
        }
    }
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

/// Puts stored bytes together; nothing is parsed. What is stored in the served version is put together chunk by chunk,
/// while it goes out.
fn plain_list(resource: &Arc<Resource>, listed: Listed, metadata: &Value) -> Result<Response<Body>, Status> {
    let kind = &resource.kind;
    let head = format!(
        "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{metadata},\"items\":[",
        json!(kind.list_kind),
        json!(kind.api_version())
    );
    let lengths: Option<usize> = listed.entries.iter().map(|entry| stored::item_length(resource, entry)).sum();
    let Some(items) = lengths else {
        let mut whole = head.into_bytes();
        for (at, entry) in listed.entries.iter().enumerate() {
            if at > 0 {
                whole.push(b',');
            }
            stored::append_item(&mut whole, resource, entry)?;
        }
        whole.extend_from_slice(END);
        return Ok(with_type(200, Format::JSON.media_type(), Body::full(whole)));
    };
    let remaining = head.len() + items + listed.entries.len().saturating_sub(1) + END.len();
    let chunks =
        ListChunks { resource: resource.clone(), entries: listed.entries.into_iter(), next: Some(head), first: true };
    Ok(with_type(200, Format::JSON.media_type(), Body::Lazy { chunks: Box::new(chunks), remaining }))
}

const END: &[u8] = b"]}\n";

/// A list on its way out.
struct ListChunks {
    resource: Arc<Resource>,
    entries: std::vec::IntoIter<Arc<Entry>>,
    /// What goes before the items; none once the end was sent.
    next: Option<String>,
    first: bool,
}

impl Iterator for ListChunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let head = self.next.take()?;
        let mut chunk = Vec::with_capacity(CHUNK + 8 * 1024);
        chunk.extend_from_slice(head.as_bytes());
        for entry in self.entries.by_ref() {
            if !std::mem::take(&mut self.first) {
                chunk.push(b',');
            }
            // Entries whose length is known need no parsing, which is all that could fail.
            let _ = stored::append_item(&mut chunk, &self.resource, &entry);
            if chunk.len() >= CHUNK {
                self.next = Some(String::new());
                return Some(chunk.into());
            }
        }
        chunk.extend_from_slice(END);
        Some(chunk.into())
    }
}

fn protobuf_list(resource: &Resource, listed: &Listed, metadata: &Value) -> Result<Response<Body>, Status> {
    let kind = resource.kind.group_version_kind();
    let mut items = Vec::with_capacity(listed.entries.len());
    for entry in &listed.entries {
        let object = stored::parse_served(resource, entry)?;
        items.push(encode_message(&kind, &object)?);
    }
    let lengths = items.iter().map(Vec::len);
    let mut bytes = protobuf::list_prefix(&kind.api_version(), &resource.kind.list_kind, metadata, lengths)
        .map_err(Status::internal)?;
    for item in &items {
        bytes.extend_from_slice(&protobuf::list_item_prefix(item.len()));
        bytes.extend_from_slice(item);
    }
    bytes.extend_from_slice(protobuf::list_suffix());
    Ok(with_type(200, crate::route::accept::PROTOBUF, Body::full(bytes)))
}

fn encode_message(kind: &GroupVersionKind, object: &Value) -> Result<Vec<u8>, Status> {
    protobuf::encode_message(kind, object).map_err(Status::internal)
}
