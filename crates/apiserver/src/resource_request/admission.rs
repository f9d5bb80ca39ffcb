//! A write as admission sees it.

use async_trait::async_trait;
use knarr_api::status::{GroupResource, Status};
use knarr_api::value::Read;
use serde_json::Value;

use super::ResourceRequest;
use super::reinvocation::Reinvocation;
use crate::object_reader::ObjectReader;
use crate::request::{Operation, User};

/// Changes or refuses authorized writes.
#[async_trait]
pub trait Admission: Send + Sync {
    /// The mutating phase.
    async fn admit(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status>;
    /// The validating phase.
    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status>;
    /// Appends its metrics as Prometheus text.
    fn write_metrics(&self, out: &mut String);
}

/// A write on its way to the store.
pub struct Write<'a> {
    pub operation: Operation,
    /// The group of the resource. The object of a subresource may be of another one: an eviction is, and a pod is not.
    pub group: &'a str,
    pub version: &'a str,
    pub object_group: &'a str,
    pub object_version: &'a str,
    pub kind: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    /// The new object; null on delete.
    pub object: &'a mut Value,
    /// The stored object, on update and delete.
    pub old: Option<&'a Value>,
    pub user: &'a User,
    pub dry_run: bool,
    /// Messages for Warning headers.
    pub warnings: &'a mut Vec<String>,
    /// The request that the write is part of.
    pub call: Option<&'a ResourceRequest<'a>>,
    pub reinvocation: Reinvocation,
}

impl Write<'_> {
    /// The object's name, from the request or the object; empty if it is not set yet.
    pub fn known_name(&self) -> &str {
        let own = || match (self.object.text(&["metadata", "name"]), self.old) {
            ("", Some(old)) => old.text(&["metadata", "name"]),
            (name, _) => name,
        };
        if self.name.is_empty() { own() } else { self.name }
    }

    /// Whether the write is to the resource itself, not to a subresource.
    pub fn is(&self, group: &str, resource: &str) -> bool {
        self.subresource.is_empty() && self.is_part_of(group, resource)
    }

    /// Whether the write is to the resource or one of its subresources.
    pub fn is_part_of(&self, group: &str, resource: &str) -> bool {
        self.resource == resource && self.group == group
    }

    /// Whether the write creates an object of the resource.
    pub fn creates(&self, group: &str, resource: &str) -> bool {
        self.operation == Operation::Create && self.is(group, resource)
    }

    /// The error for a refused write.
    pub fn forbidden(&self, why: impl AsRef<str>) -> Status {
        let metadata = self.object.at(&["metadata"]);
        let name = [self.name, metadata.text(&["name"]), metadata.text(&["generateName"]), "Unknown"];
        let name = name.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
        Status::forbidden(GroupResource { group: self.group, name: self.resource }, name, why.as_ref())
    }
}
