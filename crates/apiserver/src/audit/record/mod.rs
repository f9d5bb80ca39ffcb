//! The audit events of one request, collected while the server handles it.

mod request_body;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, Response};
use jiff::Timestamp;
use knarr_api::{decode, protobuf};
use serde_json::{Map, Value, json};

use super::policy::{Level, RequestAuditConfig};
use super::{Audit, NotStored};
use crate::authenticate::Impersonated;
use crate::kinds::Kinds;
use crate::request::{AuditAnnotations, Target, User};
use crate::response::Body;

/// What is known of a request so far. Stays empty if auditing is off.
pub struct Record {
    audit: Option<Arc<Audit>>,
    config: RequestAuditConfig,
    id: String,
    event: Map<String, Value>,
    annotations: BTreeMap<String, String>,
    /// Events of stages that are not written yet.
    pending: VecDeque<Value>,
    /// Whether the last stage was reached.
    is_complete: bool,
    /// Whether the response is a stream.
    is_long: bool,
    /// Whether authentication failed.
    unauthenticated: bool,
}

impl Record {
    pub fn start(audit: Option<Arc<Audit>>, parts: &Parts, target: &Target, now: Timestamp) -> Record {
        let given = parts.headers.get("audit-id").and_then(|id| id.to_str().ok()).filter(|id| !id.is_empty());
        let id = given.map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned);
        let config = RequestAuditConfig { level: Level::None, omitted: Vec::new(), omits_managed: false };
        let is_audited = audit.is_some();
        let mut record = Record {
            audit,
            config,
            id,
            event: Map::new(),
            annotations: BTreeMap::new(),
            pending: VecDeque::new(),
            is_complete: false,
            is_long: target.verb == "watch",
            unauthenticated: false,
        };
        if is_audited {
            record.describe(parts, target, now);
        }
        record
    }

    /// The audit ID, which the response carries too.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Writes the events of the stages so far. After an error nothing more is recorded.
    pub async fn write(&mut self) -> Result<(), NotStored> {
        let Some(audit) = self.audit.clone() else { return Ok(()) };
        let mut outcome = Ok(());
        // Each is pending until it is written: the client may go away meanwhile.
        while let Some(event) = self.pending.front() {
            outcome = audit.write(event).await.and(outcome);
            self.pending.pop_front();
        }
        if outcome.is_err() {
            self.audit = None;
        }
        outcome
    }

    fn describe(&mut self, parts: &Parts, target: &Target, now: Timestamp) {
        let uri = parts.uri.path_and_query().map_or("", |path| path.as_str());
        self.set("requestURI", uri);
        self.set("verb", target.verb.as_str());
        self.set("user", json!({}));
        let addresses = source_addresses(parts);
        if !addresses.is_empty() {
            self.set("sourceIPs", json!(addresses));
        }
        if let Some(agent) = parts.headers.get(USER_AGENT) {
            self.set("userAgent", String::from_utf8_lossy(agent.as_bytes()).into_owned());
        }
        if target.is_resource() {
            self.set("objectRef", object_reference(target));
        }
        self.set("requestReceivedTimestamp", micro_time(now));
    }

    fn set(&mut self, field: &str, value: impl Into<Value>) {
        self.event.insert(field.to_owned(), value.into());
    }

    /// Sets the authenticated user, if there is one, and evaluates the policy for it.
    pub fn identified(&mut self, sender: Option<&User>, target: &Target, now: Timestamp) {
        let Some(audit) = self.audit.clone() else { return };
        match sender {
            Some(sender) => self.set("user", sender.info()),
            None => self.unauthenticated = true,
        }
        self.config = audit.policy.evaluate(sender, target);
        self.stage("RequestReceived", now);
    }

    /// Sets the user on whose behalf the request is made, for the stages from here on.
    pub fn impersonated(&mut self, impersonated: &Impersonated) {
        if self.audit.is_none() {
            return;
        }
        self.set("impersonatedUser", impersonated.user.info());
        if !impersonated.constraint.is_empty() {
            self.set("authenticationMetadata", json!({"impersonationConstraint": impersonated.constraint}));
        }
    }

    pub fn allowed(&mut self, reason: &str) {
        self.decided("allow", reason);
    }

    pub fn forbidden(&mut self, reason: &str) {
        self.decided("forbid", reason);
    }

    fn decided(&mut self, decision: &str, reason: &str) {
        if self.audit.is_some() {
            self.annotations.insert("authorization.k8s.io/decision".to_owned(), decision.to_owned());
            self.annotations.insert("authorization.k8s.io/reason".to_owned(), reason.to_owned());
        }
    }

    /// Records the body of the request. Objects are recorded with their defaults set.
    pub fn received(&mut self, headers: &HeaderMap, body: &Bytes, target: &Target, kinds: &Kinds) {
        if self.config.level < Level::Metadata {
            return;
        }
        let Some(object) = request_body::read(headers, body, target, kinds) else { return };
        if matches!(&*target.verb, "create" | "update") {
            self.name(&object);
        }
        if self.config.level >= Level::Request {
            let object = self.without_omitted_fields(object);
            self.set("requestObject", object);
        }
    }

    /// Takes the name of a created object from the body.
    fn name(&mut self, object: &Value) {
        let name = object["metadata"]["name"].as_str().filter(|name| !name.is_empty());
        let reference = self.event.get_mut("objectRef").filter(|reference| reference.get("name").is_none());
        if let (Some(name), Some(reference)) = (name, reference) {
            reference["name"] = name.into();
        }
    }

    /// Records the response. The end of a stream is recorded together with its start, since no more is known then.
    pub fn responded(&mut self, response: &mut Response<Body>, now: Timestamp) {
        self.is_complete = true;
        let long = self.is_long;
        if self.audit.is_none() || self.config.level == Level::None {
            return;
        }
        if let Some(panicked) = response.extensions().get::<Panicked>() {
            let message = format!("APIServer panic'd: {}", panicked.0);
            self.set(
                "responseStatus",
                json!({"metadata": {}, "status": "Failure", "message": message, "reason": "InternalError", "code": 500}),
            );
            self.stage("Panic", now);
            return;
        }
        if let Some(annotations) = response.extensions().get::<AuditAnnotations>() {
            for annotation in &annotations.0 {
                if !annotation.of_request || self.config.level >= Level::Request {
                    self.annotations.entry(annotation.key.clone()).or_insert_with(|| annotation.value.clone());
                }
            }
        }
        let mut status = json!({"metadata": {}, "code": response.status().as_u16()});
        // Bodies are encoded here only if the policy records responses.
        let is_encoded = response.body().is_encoded();
        let read = !long && (is_encoded || self.config.level >= Level::RequestResponse);
        let body = if read { response.body_mut().gather() } else { None };
        let object = body.and_then(|body| read_object(response.headers(), &body));
        if let Some(object) = object {
            if object["kind"] == "Status" {
                for field in ["status", "message", "reason", "details"] {
                    if let Some(value) = object.get(field) {
                        status[field] = value.clone();
                    }
                }
            }
            // As in Kubernetes, only of resources: other responses are no objects, and codes of browser sessions are secret.
            if self.config.level >= Level::RequestResponse && self.event.contains_key("objectRef") {
                let object = self.without_omitted_fields(object);
                self.set("responseObject", object);
            }
        }
        self.set("responseStatus", status);
        if long || self.unauthenticated {
            self.stage("ResponseStarted", now);
        }
        // Requests that fail authentication have no complete stage.
        if !self.unauthenticated {
            self.stage("ResponseComplete", now);
        }
    }

    fn without_omitted_fields(&self, mut object: Value) -> Value {
        if self.config.omits_managed {
            let items = object.get_mut("items").and_then(Value::as_array_mut);
            for item in items.into_iter().flatten() {
                remove_managed_fields(item);
            }
            remove_managed_fields(&mut object);
        }
        object
    }

    fn stage(&mut self, stage: &str, now: Timestamp) {
        if self.audit.is_none()
            || self.config.level == Level::None
            || self.config.omitted.iter().any(|omitted| omitted == stage)
        {
            return;
        }
        let mut event = Map::new();
        event.insert("kind".to_owned(), "Event".into());
        event.insert("apiVersion".to_owned(), "audit.k8s.io/v1".into());
        event.insert("level".to_owned(), self.config.level.name().into());
        event.insert("auditID".to_owned(), self.id.as_str().into());
        event.insert("stage".to_owned(), stage.into());
        event.extend(self.event.iter().map(|(field, value)| (field.clone(), value.clone())));
        event.insert("stageTimestamp".to_owned(), micro_time(now).into());
        if !self.annotations.is_empty() && stage != "RequestReceived" {
            event.insert("annotations".to_owned(), json!(self.annotations));
        }
        self.pending.push_back(Value::Object(event));
    }
}

/// A request whose client goes away is not handled any further, but may have been carried out: it is recorded, with what
/// Kubernetes reports then.
impl Drop for Record {
    fn drop(&mut self) {
        let Some(audit) = self.audit.take().filter(|_| self.config.level != Level::None) else { return };
        self.audit = Some(audit.clone());
        if !self.is_complete {
            let status =
                json!({"metadata": {}, "status": "Success", "message": "Connection closed early", "code": 200});
            self.set("responseStatus", status);
            let now = Timestamp::now();
            if self.is_long {
                self.stage("ResponseStarted", now);
            }
            self.stage("ResponseComplete", now);
        }
        let events = std::mem::take(&mut self.pending);
        if !events.is_empty() && tokio::runtime::Handle::try_current().is_ok() {
            audit.write_later(events);
        }
    }
}

/// Marks the response to a request whose handling panicked, with the panic's message.
#[derive(Clone, Debug)]
pub struct Panicked(pub String);

fn remove_managed_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}

fn source_addresses(parts: &Parts) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let forwarded = parts.headers.get("x-forwarded-for").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let real = parts.headers.get("x-real-ip").and_then(|value| value.to_str().ok());
    let peer = parts.extensions.get::<SocketAddr>().map(|peer| peer.ip().to_string());
    let addresses = forwarded.split(',').chain(real).map(|text| text.trim().to_owned());
    for address in addresses.filter(|text| text.parse::<std::net::IpAddr>().is_ok()).chain(peer) {
        if !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

fn object_reference(target: &Target) -> Value {
    let mut reference = Map::new();
    for (field, value) in [
        ("resource", &target.resource),
        ("namespace", &target.namespace),
        ("name", &target.name),
        ("apiGroup", &target.group),
        ("apiVersion", &target.version),
        ("subresource", &target.subresource),
    ] {
        if !value.is_empty() {
            reference.insert(field.to_owned(), value.as_str().into());
        }
    }
    Value::Object(reference)
}

fn read_object(headers: &HeaderMap, body: &[u8]) -> Option<Value> {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if media_type.contains("protobuf") {
        return protobuf::decode(body, None).ok();
    }
    if media_type.contains("yaml") {
        return decode::untyped_yaml(body).ok().map(|decoded| decoded.value);
    }
    serde_json::from_slice(body).ok()
}

fn micro_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests;
