//! Admission policies: CEL expressions that change or refuse writes where a binding applies them.

mod binding;
mod definition;
mod mutating;
mod mutation;
mod parameters;
mod validating;

pub use mutating::MutatingPolicies;
pub use validating::ValidatingPolicies;

use knarr_api::status::{GroupResource, Status};
use serde_json::Value;

use super::Write;
use super::dynamic::activation::namespace_object;
use crate::object_reader::ObjectReader;

/// The namespace of a write for expressions; null for cluster-scoped objects.
fn namespace_of(write: &Write<'_>, objects: &dyn ObjectReader) -> Result<Value, Status> {
    if write.namespace.is_empty() || write.kind == "Namespace" && write.group.is_empty() {
        return Ok(Value::Null);
    }
    let missing = || Status::not_found(GroupResource { group: "", name: "namespaces" }, write.namespace);
    let namespace = objects.read("", "namespaces", "", write.namespace)?.ok_or_else(missing)?;
    Ok(namespace_object(Some(&namespace)))
}
