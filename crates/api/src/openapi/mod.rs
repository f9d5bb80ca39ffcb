//! OpenAPI documents of the server's paths and types, in versions 2 and 3, as JSON and protobuf.
//!
//! Documents are large and requested rarely. Each function builds one from the catalogue and the schema table and writes it
//! piece by piece, so that no tree of it exists in memory; the caller caches it, compressed, while it is valid.

mod custom;
mod gnostic;
mod merge;
mod operation;
mod parameters;
mod paths;
mod schemas;
mod v2;
mod v3;

use serde_json::{Map, Value, json};

use crate::catalogue::Catalogue;
use operation::Operation;

pub use custom::{CustomSchema, custom_type_name};
pub use merge::{Additions, v2_part};
pub use schemas::KEY_USAGES;
pub use v2::{v2_json, v2_protobuf};
pub use v3::{v3_hash, v3_index, v3_json, v3_names, v3_protobuf};

/// The media types of the protobuf forms in responses.
pub const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// See [`V2_PROTOBUF`].
pub const V3_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";

const VERSION: &str = knarr_version::RELEASE;

/// The description of a field of a type, or of the type itself where the field is empty.
pub type Describe<'a> = &'a dyn Fn(&str, &str) -> Option<String>;

/// The input of all documents.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The served kinds.
    pub catalogue: &'a Catalogue,
    /// The schemas of the custom kinds in the catalogue.
    pub custom: &'a [CustomSchema<'a>],
    /// The descriptions of types and fields.
    pub describe: Describe<'a>,
}

/// Writes the entries of a JSON object.
fn write_entries(out: &mut Vec<u8>, entries: impl Iterator<Item = (String, Value)>) {
    for (index, (name, value)) in entries.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(Value::String(name).to_string().as_bytes());
        out.push(b':');
        out.extend_from_slice(value.to_string().as_bytes());
    }
}

fn meaning(code: &str) -> &'static str {
    match code {
        "201" => "Created",
        "202" => "Accepted",
        _ => "OK",
    }
}

fn add_marks(operation: &Operation, out: &mut Map<String, Value>) {
    if let Some(action) = operation.action {
        out.insert("x-kubernetes-action".into(), action.into());
    }
    if let Some(kind) = &operation.kind {
        let kind = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
        out.insert("x-kubernetes-group-version-kind".into(), kind);
    }
}

#[cfg(test)]
mod tests;
