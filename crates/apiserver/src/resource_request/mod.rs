//! A request for a resource on its way through admission and persistence: what these steps know, and what they note.

mod admission;
mod backend;
mod hooks;
mod reinvocation;

pub use admission::{Admission, Write};
pub use backend::Backend;
pub use hooks::{Reservation, WriteHooks};

use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use jiff::Timestamp;
use knarr_api::decode::Emptied;
use knarr_api::status::Status;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::authorized_request::AuthorizedRequest;
use crate::kinds::Resource;
use crate::request::{Annotation, Operation, StageTimes, Target, User};
use crate::request_metrics::InFlightRequest;
use crate::route::query::Query;

/// An authorized request whose resource is known.
pub struct ResourceRequest<'a> {
    pub backend: &'a Backend,
    pub resource: &'a Arc<Resource>,
    pub target: &'a Target,
    pub user: &'a User,
    pub query: &'a Query,
    pub headers: &'a HeaderMap,
    pub now: Timestamp,
    pub stage_times: StageTimes,
    /// Its metrics.
    pub running: &'a InFlightRequest,
    /// Texts for Warning headers.
    pub warnings: Mutex<Vec<String>>,
    /// Audit annotations that admission adds to the request.
    pub annotations: Mutex<Vec<Annotation>>,
    /// The options of a delete, where its body has some.
    pub delete_options: OnceLock<Value>,
    /// Empty lists and maps of the body, which messages about it mention.
    pub emptied: Mutex<Vec<Emptied>>,
}

impl<'a> ResourceRequest<'a> {
    pub fn new(
        backend: &'a Backend,
        resource: &'a Arc<Resource>,
        request: &'a AuthorizedRequest<'_>,
    ) -> ResourceRequest<'a> {
        ResourceRequest {
            backend,
            resource,
            target: &request.routed.target,
            user: request.user,
            query: request.query,
            headers: &request.parts.headers,
            now: request.now,
            stage_times: request.stage_times,
            running: request.running,
            warnings: Mutex::new(Vec::new()),
            annotations: Mutex::new(Vec::new()),
            delete_options: Default::default(),
            emptied: Mutex::new(Vec::new()),
        }
    }
}

impl ResourceRequest<'_> {
    /// The key of the object in the store.
    pub fn key(&self) -> String {
        self.resource.key(&self.target.namespace, &self.target.name)
    }

    /// The refusal of a request for an object that does not exist.
    pub fn not_found(&self) -> Status {
        Status::not_found(self.resource.named(), &self.target.name)
    }

    /// Adds a Warning header to the response.
    pub fn warn(&self, text: impl Into<String>) {
        self.warnings.lock().push(text.into());
    }

    /// Adds an audit annotation.
    pub fn annotate(&self, key: String, value: String) {
        self.annotations.lock().push(Annotation { key, value, of_request: false });
    }

    /// Adds an annotation that reveals contents of the request.
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
            features: &self.backend.behaviour.features,
        }
    }
}
