//! Encodes changes of the store as watch events.

use std::sync::Arc;

use knarr_api::status::Status;
use knarr_api::{decode, protobuf};
use knarr_store::{Entry, Event};
use serde_json::{Value, json};

use crate::kinds::Resource;
use crate::persist::trim;
use crate::response::{IncludeObject, Tables, partial, serves_stored_metadata};
use crate::route::accept::{Encoding, Format, Shape};
use crate::selection::Selection;
use crate::stored;

/// Encodes watch events in one representation.
#[derive(Clone)]
pub struct Events {
    pub resource: Arc<Resource>,
    pub selection: Selection,
    format: Format,
    include: IncludeObject,
    /// Only the first event of a watch of tables has columns.
    columns_sent: bool,
}

impl Events {
    pub fn new(resource: Arc<Resource>, selection: Selection, format: Format, include: IncludeObject) -> Events {
        Events { resource, selection, format, include, columns_sent: false }
    }

    /// Appends the event of a change, if it concerns the selection. An object that starts to match is ADDED, one that stops to
    /// match is DELETED.
    pub fn append(&mut self, out: &mut Vec<u8>, event: &Event) -> Result<(), Status> {
        // What was there before a change only says whether the object is new to the client.
        stored::check_readable(event.current.as_ref().or(event.previous.as_ref()))?;
        let matches = |entry: &Option<Arc<Entry>>| {
            entry.as_ref().filter(|entry| self.selection.matches(&self.resource, entry)).cloned()
        };
        match (matches(&event.previous), matches(&event.current)) {
            (None, Some(current)) => self.append_entry(out, "ADDED", &current, current.revision),
            (Some(_), Some(current)) => self.append_entry(out, "MODIFIED", &current, current.revision),
            (Some(previous), None) => self.append_entry(out, "DELETED", &previous, event.revision),
            (None, None) => Ok(()),
        }
    }

    /// Whether changes of nothing but heartbeats are left out.
    pub fn omits_heartbeats(&self) -> bool {
        self.format.omits_heartbeats && self.resource.is("", "nodes")
    }

    /// Whether objects have to be parsed before they are sent.
    pub fn is_costly(&self) -> bool {
        !(self.format.is_plain() || self.format.trim().is_some())
            || !self.selection.is_everything()
            || !self.resource.is_stored_version()
    }

    /// Appends an object that existed when the watch started, if it is selected.
    pub fn append_initial(&mut self, out: &mut Vec<u8>, entry: &Entry) -> Result<(), Status> {
        if !self.selection.matches(&self.resource, entry) {
            return Ok(());
        }
        self.append_entry(out, "ADDED", entry, entry.revision)
    }

    fn append_entry(&mut self, out: &mut Vec<u8>, kind: &str, entry: &Entry, revision: u64) -> Result<(), Status> {
        if self.append_trimmed(out, kind, entry, revision) {
            return Ok(());
        }
        if self.format.is_plain() {
            out.reserve(entry.value_len() + 96);
            append_opening(out, kind);
            stored::append_object_at(out, &self.resource, entry, revision)?;
            out.extend_from_slice(b"}\n");
            return Ok(());
        }
        let mut object = stored::parse_served(&self.resource, entry)?;
        stored::set_revision(&mut object, revision);
        self.append_value(out, kind, object);
        Ok(())
    }

    /// Appends a trimmed object, if the format asks for it and its bytes allow it.
    fn append_trimmed(&self, out: &mut Vec<u8>, kind: &str, entry: &Entry, revision: u64) -> bool {
        let Some(trim) =
            self.format.trim().filter(|trim| trim.metadata_only.is_none() || serves_stored_metadata(&self.resource))
        else {
            return false;
        };
        let before = out.len();
        append_opening(out, kind);
        if !trim::append(out, &self.resource, entry, revision, trim) {
            out.truncate(before);
            return false;
        }
        out.extend_from_slice(b"}\n");
        true
    }

    fn append_value(&mut self, out: &mut Vec<u8>, kind: &str, object: Value) {
        let shaped = match self.format.shape {
            Shape::Whole => object,
            Shape::Partial | Shape::PartialList => partial(&self.resource, &object, self.format.meta_version),
            Shape::Table => {
                let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                let mut tables = Tables::new(&self.resource, self.format.meta_version, self.include);
                tables.with_columns = !std::mem::replace(&mut self.columns_sent, true);
                tables.of(metadata, [object])
            }
        };
        append_frame(out, kind, &shaped, self.format.encoding);
    }

    /// Appends a bookmark: everything up to a revision has been sent.
    pub fn append_bookmark(&mut self, out: &mut Vec<u8>, revision: u64, end_of_initial: bool) {
        let mut object = match self.resource.schema().filter(|_| self.resource.custom.is_none()) {
            Some(node) => decode::zero(node),
            None => json!({}),
        };
        object["kind"] = self.resource.kind.kind.as_str().into();
        object["apiVersion"] = self.resource.kind.api_version().into();
        object["metadata"] = json!({"resourceVersion": revision.to_string()});
        if end_of_initial {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        self.append_value(out, "BOOKMARK", object);
    }

    /// Appends the error that ends a watch.
    pub fn append_error(&self, out: &mut Vec<u8>, status: &Status) {
        append_frame(out, "ERROR", &status.to_value(), self.format.encoding);
    }
}

fn append_frame(out: &mut Vec<u8>, kind: &str, object: &Value, encoding: Encoding) {
    if encoding == Encoding::Protobuf {
        match protobuf::encode(object) {
            Ok(bytes) => out.extend_from_slice(&protobuf::watch_frame(kind, &bytes)),
            Err(error) => tracing::error!(%error, "cannot encode an object of a watch as protobuf"),
        }
        return;
    }
    append_opening(out, kind);
    let _ = serde_json::to_writer(&mut *out, object);
    out.extend_from_slice(b"}\n");
}

fn append_opening(out: &mut Vec<u8>, kind: &str) {
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
}
