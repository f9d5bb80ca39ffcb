//! The generic registry: get, list, create, update, patch and delete for objects of all kinds.
//!
//! The rules of a kind come from `knarr-rules`, policy from `admit`, field ownership and patches from `knarr-api`. This
//! module defines the order in which they run and resolves conflicts of concurrent writers.

pub mod continue_token;
pub mod create;
pub mod delete;
pub mod foreign;
mod former_definition;
pub mod generated_name;
pub mod list;
pub mod managed_fields;
pub mod patch;
pub mod raw_json;
pub mod storage_events;
pub mod store_reader;
pub mod strategy;
pub mod time_slice;
pub mod trim;
pub mod update;

use std::sync::Arc;
use std::time::Duration;

use knarr_api::status::Status;
use knarr_store::{Entry, Error, Range};
use serde_json::Value;

use crate::kinds::Resource;
use crate::resource_request::{Backend, ResourceRequest};
use crate::{convert, stored};

/// The object after a write.
#[derive(Clone, Debug)]
pub enum Outcome {
    Stored(Arc<Entry>),
    /// In the stored version: the result of a dry run, or an object that is deleted by now.
    Unstored(Value),
}

impl Outcome {
    /// The object in its stored version, with its resource version.
    pub fn value(&self) -> Result<Value, Status> {
        match self {
            Outcome::Stored(entry) => stored::parse(entry),
            Outcome::Unstored(object) => Ok(object.clone()),
        }
    }

    /// The outcome in the served version, where a webhook is needed to convert it.
    pub async fn converted(self, backend: &Backend, resource: &Resource) -> Result<Outcome, Status> {
        if !convert::needs_webhook(resource) {
            return Ok(self);
        }
        convert::one(backend, resource, self.value()?, &resource.kind.api_version()).await.map(Outcome::Unstored)
    }
}

/// Reads one object.
pub async fn get(call: &ResourceRequest<'_>) -> Result<Arc<Entry>, Status> {
    let store = &*call.backend.store;
    match crate::route::options::parse_revision_late(call.query.text("resourceVersion"))? {
        None => drop(store.sync().await.map_err(store_error)?),
        Some(0) => {}
        Some(revision) => wait_for_revision(call.backend, revision).await?,
    }
    let key = call.key();
    store.prepare_read(&Range::key(&key)).await;
    let entry = store.peek(&key).ok_or_else(|| call.not_found())?;
    convert::entry(call.backend, call.resource, entry).await
}

/// Waits until this server has a revision that a client saw, maybe at another server.
pub async fn wait_for_revision(backend: &Backend, revision: u64) -> Result<(), Status> {
    const REVISION_TIMEOUT: Duration = Duration::from_secs(3);
    match backend.store.reach(revision, REVISION_TIMEOUT).await {
        Ok(()) => Ok(()),
        Err(Error::Future { requested, newest }) => Err(too_large(requested, newest)),
        Err(error) => Err(store_error(error)),
    }
}

/// The refusal of a revision that the store has not reached.
pub fn too_large(requested: u64, newest: u64) -> Status {
    let text = format!("Timeout: Too large resource version: {requested}, current: {newest}");
    Status::timeout(text).with_cause("ResourceVersionTooLarge", "Too large resource version", "").retry_after(1)
}

/// The Status of an error of the store.
pub fn store_error(error: Error) -> Status {
    match error {
        Error::Compacted { requested, oldest } => {
            Status::expired(format!("too old resource version: {requested} ({oldest})"))
        }
        Error::Future { requested, newest } => too_large(requested, newest),
        error @ Error::TooLarge { .. } => {
            Status::new(413, "RequestEntityTooLarge", format!("Request entity too large: {error}"))
        }
        // As Kubernetes forwards the error of etcd.
        error @ Error::SpaceExceeded => Status::new(500, "", error.to_string()),
        Error::Unavailable(why) => {
            tracing::error!(%why, "the store cannot write");
            Status::unavailable(format!("the store cannot write: {why}"))
        }
        other => {
            tracing::error!(error = %other, "the store failed");
            Status::internal(other)
        }
    }
}
