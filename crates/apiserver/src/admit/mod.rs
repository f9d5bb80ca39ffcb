//! Admission: what the cluster's policy changes in a write, or refuses, after the writer was found to be allowed to.
//!
//! Each plugin is a file of its own. All `admit` steps run in order and may change the object; then all `validate`
//! steps run and may only refuse.

use async_trait::async_trait;
use knarr_api::status::Status;
use serde_json::Value;

use crate::objects::Objects;
use crate::request::User;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

/// A write on its way to the store.
pub struct Write<'a> {
    pub operation: Operation,
    pub group: &'a str,
    pub version: &'a str,
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
    /// Texts for Warning headers.
    pub warnings: &'a mut Vec<String>,
}

#[async_trait]
pub trait Plugin: Send + Sync {
    fn name(&self) -> &'static str;
    fn handles(&self, write: &Write<'_>) -> bool;
    async fn admit(&self, _write: &mut Write<'_>, _objects: &dyn Objects) -> Result<(), Status> {
        Ok(())
    }
    async fn validate(&self, _write: &mut Write<'_>, _objects: &dyn Objects) -> Result<(), Status> {
        Ok(())
    }
}
