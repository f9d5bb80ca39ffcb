//! The one registry of all kinds: how objects are read, made, changed and removed.
//!
//! A kind's own rules come from `knarr-rules`, policy from `admit`, ownership of fields and patches from `knarr-api`;
//! what is here is the order in which they act and what happens when two writers meet.

pub mod convert;
pub mod create;
pub mod delete;
pub mod facts;
pub mod fields;
pub mod list;
pub mod name;
pub mod objects;
pub mod options;
pub mod outline;
pub mod patch;
pub mod pick;
pub mod pipeline;
pub mod splice;
pub mod stored;
pub mod token;
pub mod update;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{HeaderMap, Response};
use jiff::Timestamp;
use knarr_api::decode::Emptied;
use knarr_api::status::Status;
use knarr_store::{Entry, Error};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::admit::Operation;
use crate::answer::Body;
use crate::audit::Notes;
use crate::kinds::Resource;
use crate::request::{Target, User};
use crate::route::query::Query;
use crate::server::{Answer, Server};
use crate::trail::Passage;

/// A request for a resource, on its way through the registry.
pub struct Call<'a> {
    pub server: &'a Server,
    pub resource: &'a Arc<Resource>,
    pub target: &'a Target,
    pub user: &'a User,
    pub query: &'a Query,
    pub headers: &'a HeaderMap,
    pub now: Timestamp,
    pub passage: Passage,
    /// Texts for Warning headers.
    pub warnings: Mutex<Vec<String>>,
    /// What admission notes about the request, for those who look through its records.
    pub annotations: Mutex<Vec<Annotation>>,
    /// The options of a delete, where its body has some.
    pub delete_options: OnceLock<Value>,
    /// Empty lists and maps of the body, which messages about it show.
    pub emptied: Mutex<Vec<Emptied>>,
}

/// A note about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    pub key: String,
    pub value: String,
    /// Whether it tells what is in the request.
    pub of_request: bool,
}

impl Call<'_> {
    pub fn key(&self) -> String {
        self.resource.key(&self.target.namespace, &self.target.name)
    }

    pub fn not_found(&self) -> Status {
        Status::not_found(self.resource.named(), &self.target.name)
    }

    pub fn warn(&self, text: impl Into<String>) {
        self.warnings.lock().push(text.into());
    }

    pub fn annotate(&self, key: String, value: String) {
        self.annotations.lock().push(Annotation { key, value, of_request: false });
    }

    /// Notes something that tells what is in the request.
    pub fn annotate_request(&self, key: String, value: String) {
        self.annotations.lock().push(Annotation { key, value, of_request: true });
    }

    /// The options of the request as policies and webhooks see them.
    pub fn operation_options(&self, operation: Operation) -> Value {
        let kind = match operation {
            Operation::Create => "CreateOptions",
            Operation::Update => "UpdateOptions",
            Operation::Delete => "DeleteOptions",
            Operation::Connect => return Value::Null,
        };
        let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
        if operation == Operation::Delete {
            let given = self.delete_options.get().and_then(Value::as_object).into_iter().flatten();
            for (field, value) in given.filter(|(field, _)| !matches!(field.as_str(), "kind" | "apiVersion")) {
                options[field] = value.clone();
            }
            return options;
        }
        let dry_run: Vec<&str> = self.query.all("dryRun").collect();
        if !dry_run.is_empty() {
            options["dryRun"] = json!(dry_run);
        }
        for field in ["fieldManager", "fieldValidation"] {
            if let Some(value) = self.query.get(field).filter(|value| !value.is_empty()) {
                options[field] = value.into();
            }
        }
        options
    }

    /// The answer with the warnings that came up on the way to it; a refusal carries them too.
    pub fn answer(self, response: Result<Response<Body>, Status>) -> Answer {
        let mut response = response.unwrap_or_else(|status| crate::server::failure(self.headers, self.query, &status));
        let notes = self.annotations.into_inner();
        if !notes.is_empty() {
            response.extensions_mut().insert(Notes(notes));
        }
        Answer { response, warnings: self.warnings.into_inner() }
    }

    /// The subresource as rules and admission know it; scale acts on the object itself.
    pub fn rules_context(&self) -> knarr_rules::Context<'_> {
        knarr_rules::Context {
            version: self.resource.stored_version(),
            subresource: &self.target.subresource,
            user: &self.user.name,
            groups: &self.user.groups,
            uid: &self.user.uid,
            extra: Some(&self.user.extra),
            now: self.now,
        }
    }
}

/// An object as a write left it.
#[derive(Clone, Debug)]
pub enum Outcome {
    Stored(Arc<Entry>),
    /// In the stored version: what a dry run made, or an object that is gone by now.
    Made(Value),
}

impl Outcome {
    /// The object in its stored version, with its resource version.
    pub fn value(&self) -> Result<Value, Status> {
        match self {
            Outcome::Stored(entry) => stored::parse(entry),
            Outcome::Made(object) => Ok(object.clone()),
        }
    }
}

/// Reads one object.
pub async fn get(call: &Call<'_>) -> Result<Arc<Entry>, Status> {
    let store = &*call.server.store;
    match options::parse_revision_late(call.query.text("resourceVersion"))? {
        None => drop(store.sync().await.map_err(store_error)?),
        Some(0) => {}
        Some(revision) => reach(call.server, revision).await?,
    }
    let entry = store.peek(&call.key()).ok_or_else(|| call.not_found())?;
    convert::entry(call.server, call.resource, entry).await
}

/// Waits until this server knows a revision that a client has seen somewhere.
pub async fn reach(server: &Server, revision: u64) -> Result<(), Status> {
    const PATIENCE: Duration = Duration::from_secs(3);
    match server.store.reach(revision, PATIENCE).await {
        Ok(()) => Ok(()),
        Err(Error::Future { requested, newest }) => Err(too_large(requested, newest)),
        Err(error) => Err(store_error(error)),
    }
}

pub fn too_large(requested: u64, newest: u64) -> Status {
    let text = format!("Timeout: Too large resource version: {requested}, current: {newest}");
    Status::timeout(text).with_cause("ResourceVersionTooLarge", "Too large resource version", "").retry_after(1)
}

/// What a failing store means to a client.
pub fn store_error(error: Error) -> Status {
    match error {
        Error::Compacted { requested, oldest } => {
            Status::expired(format!("too old resource version: {requested} ({oldest})"))
        }
        Error::Future { requested, newest } => too_large(requested, newest),
        error @ Error::TooLarge { .. } => {
            Status::new(413, "RequestEntityTooLarge", format!("Request entity too large: {error}"))
        }
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
