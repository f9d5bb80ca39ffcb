//! Encodes objects and lists in the negotiated representation.

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
use crate::persist::{Outcome, convert, stored};
use crate::route::accept::{Encoding, Format, Shape};
use crate::state::ApiServer;

/// Lists are sent in chunks of about this size, so that the first is sent while the next is encoded.
const CHUNK_SIZE: usize = 256 * 1024;

/// A response with one object of a resource.
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

/// A response with the object after a write, converted to the served version.
pub async fn written(
    server: &ApiServer,
    resource: &Resource,
    outcome: Outcome,
    code: u16,
    format: &Format,
    include: IncludeObject,
) -> Result<Response<Body>, Status> {
    let outcome = convert::outcome(server, resource, outcome).await?;
    object(resource, &outcome, code, format, include)
}

fn not_acceptable(text: String) -> Status {
    Status::new(406, "NotAcceptable", text)
}

/// The name of the type of objects in messages.
fn type_of(resource: &Resource, suffix: &str) -> String {
    match resource.kind.group.as_str() {
        _ if resource.custom.is_some() => format!("*unstructured.Unstructured{suffix}"),
        "" | "events.k8s.io" => format!("*core.{}{suffix}", resource.kind.kind),
        group => format!("*{}.{}{suffix}", group.split('.').next().unwrap_or(group), resource.kind.kind),
    }
}

/// The encoded bytes of an object.
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
            tracing::error!(%error, kind = %value["kind"], "cannot encode an object as protobuf");
            let status = Status::internal(error).to_value();
            protobuf::encode(&status).unwrap_or_default()
        }),
    }
}

/// Encodes kind and apiVersion first, as readers expect.
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

/// A response with any object that names its kind.
pub fn value(value: &Value, code: u16, format: &Format) -> Response<Body> {
    with_type(code, format.media_type(), Body::full(served_bytes(value, format)))
}

/// A response with a list of objects.
pub fn list(
    resource: &Arc<Resource>,
    listed: Listed,
    format: &Format,
    include: IncludeObject,
) -> Result<Response<Body>, Status> {
    let mut metadata = list_metadata(&listed);
    if resource.custom.is_some() && format.shape == Shape::Whole {
        // Kubernetes holds lists of custom resources as maps, which always print this field.
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
                // An empty list is printed as a nil slice of Go.
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

/// Joins stored bytes without parsing them. Entries stored in the served version are joined chunk by chunk, while the list
/// is sent.
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
        whole.extend_from_slice(LIST_END);
        return Ok(with_type(200, Format::JSON.media_type(), Body::full(whole)));
    };
    let remaining = head.len() + items + listed.entries.len().saturating_sub(1) + LIST_END.len();
    let chunks =
        ListChunks { resource: resource.clone(), entries: listed.entries.into_iter(), next: Some(head), first: true };
    Ok(with_type(200, Format::JSON.media_type(), Body::Lazy { chunks: Box::new(chunks), remaining }))
}

const LIST_END: &[u8] = b"]}\n";

/// A list that is encoded while it is sent.
struct ListChunks {
    resource: Arc<Resource>,
    entries: std::vec::IntoIter<Arc<Entry>>,
    /// The bytes before the next items; `None` after the end.
    next: Option<String>,
    first: bool,
}

impl Iterator for ListChunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let head = self.next.take()?;
        let mut chunk = Vec::with_capacity(CHUNK_SIZE + 8 * 1024);
        chunk.extend_from_slice(head.as_bytes());
        for entry in self.entries.by_ref() {
            if !std::mem::take(&mut self.first) {
                chunk.push(b',');
            }
            // Cannot fail: entries of known length need no parsing.
            let _ = stored::append_item(&mut chunk, &self.resource, &entry);
            if chunk.len() >= CHUNK_SIZE {
                self.next = Some(String::new());
                return Some(chunk.into());
            }
        }
        chunk.extend_from_slice(LIST_END);
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
