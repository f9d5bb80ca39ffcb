//! The Kubernetes `Status`, which is the body of every failed response.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::field::Errors;

/// A failure of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The HTTP status code.
    pub code: u16,
    /// The machine-readable reason, such as `NotFound`.
    pub reason: Cow<'static, str>,
    /// The text for humans.
    pub message: String,
    /// The object that the failure is about.
    pub details: Option<Details>,
    /// The token with which an expired list can continue on the newest state.
    pub continue_token: Option<String>,
}

/// The `details` of a Status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    /// The name of the object.
    pub name: String,
    /// The API group.
    pub group: String,
    /// The resource or kind; Kubernetes is not consistent about which.
    pub kind: String,
    /// The uid of the object, or empty.
    pub uid: String,
    /// The causes, such as one for each invalid field.
    pub causes: Vec<Cause>,
    /// When to retry; zero if unknown.
    pub retry_after_seconds: u32,
}

/// One cause in the `details` of a Status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cause {
    /// The machine-readable reason.
    pub reason: String,
    /// The text for humans.
    pub message: String,
    /// The path of the field, or empty.
    pub field: String,
}

/// A resource or kind with its group, as error messages print it: `deployments.apps`, `pods`.
#[derive(Clone, Copy, Debug)]
pub struct GroupResource<'a> {
    /// The API group; empty for the core group.
    pub group: &'a str,
    /// The plural resource name, or the kind.
    pub name: &'a str,
}

impl std::fmt::Display for GroupResource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.group.is_empty() { f.write_str(self.name) } else { write!(f, "{}.{}", self.name, self.group) }
    }
}

impl Status {
    /// A failure without details.
    pub fn new(code: u16, reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Status { code, reason: reason.into(), message: message.into(), details: None, continue_token: None }
    }

    /// The same status with the object in its details.
    pub fn about(mut self, of: GroupResource<'_>, name: &str) -> Self {
        let details = Details { name: name.into(), group: of.group.into(), kind: of.name.into(), ..Details::default() };
        self.details = Some(details);
        self
    }

    /// The same status with `details: {}`, for failures where Kubernetes returns that.
    pub fn with_empty_details(mut self) -> Self {
        self.details.get_or_insert_default();
        self
    }

    /// The same status with a delay before the next attempt.
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// The same status without `retryAfterSeconds`.
    pub fn without_retry(mut self) -> Self {
        if let Some(details) = &mut self.details {
            details.retry_after_seconds = 0;
        }
        self
    }

    /// The same status with another cause.
    pub fn with_cause(mut self, reason: &str, message: impl Into<String>, field: &str) -> Self {
        let cause = Cause { reason: reason.into(), message: message.into(), field: field.into() };
        self.details.get_or_insert_default().causes.push(cause);
        self
    }

    /// The same status with a continue token.
    pub fn with_continue(mut self, token: String) -> Self {
        self.continue_token = Some(token);
        self
    }

    /// 400 BadRequest.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 401 Unauthorized.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403 Forbidden.
    pub fn forbidden(resource: GroupResource<'_>, name: &str, why: &str) -> Self {
        let message = match (resource.name.is_empty(), name.is_empty()) {
            (true, _) => format!("forbidden: {why}"),
            (false, true) => format!("{resource} is forbidden: {why}"),
            (false, false) => format!("{resource} {name:?} is forbidden: {why}"),
        };
        Self::new(403, "Forbidden", message).about(resource, name)
    }

    /// 404 NotFound, for an object.
    pub fn not_found(resource: GroupResource<'_>, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{resource} {name:?} not found")).about(resource, name)
    }

    /// 404 NotFound, for a path or kind that is not served.
    pub fn no_such_resource() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource").with_empty_details()
    }

    /// 405 MethodNotAllowed.
    pub fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
            .with_empty_details()
    }

    /// 409 AlreadyExists.
    pub fn already_exists(resource: GroupResource<'_>, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{resource} {name:?} already exists")).about(resource, name)
    }

    /// 409 Conflict.
    pub fn conflict(resource: GroupResource<'_>, name: &str, why: &str) -> Self {
        Self::new(409, "Conflict", format!("Operation cannot be fulfilled on {resource} {name:?}: {why}"))
            .about(resource, name)
    }

    /// 409 Conflict, for an update of an older resource version.
    pub fn stale(resource: GroupResource<'_>, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    /// 410 Expired.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 410 Gone.
    pub fn gone(message: impl Into<String>) -> Self {
        Self::new(410, "Gone", message)
    }

    /// 415 UnsupportedMediaType.
    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// 422 Invalid, with all field errors of an object.
    pub fn invalid(kind: GroupResource<'_>, name: &str, errors: &Errors) -> Self {
        let mut seen = HashSet::new();
        let texts: Vec<String> =
            errors.0.iter().map(ToString::to_string).filter(|text| seen.insert(text.clone())).collect();
        let list = match texts.as_slice() {
            [] => "<nil>".to_owned(),
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let mut status = Self::new(422, "Invalid", format!("{kind} {name:?} is invalid: {list}")).about(kind, name);
        for error in &errors.0 {
            status = status.with_cause(error.error_type.reason(), error.body(), &error.field);
        }
        status
    }

    /// 429 TooManyRequests.
    pub fn too_many_requests(message: impl Into<String>, retry_after: u32) -> Self {
        let status = Self::new(429, "TooManyRequests", message);
        if retry_after == 0 { status } else { status.retry_after(retry_after) }
    }

    /// 500 InternalError.
    pub fn internal(message: impl std::fmt::Display) -> Self {
        let text = format!("Internal error occurred: {message}");
        let mut status = Self::new(500, "InternalError", text).with_cause("", message.to_string(), "");
        if let Some(cause) = status.details.as_mut().and_then(|details| details.causes.first_mut()) {
            cause.reason.clear();
        }
        status
    }

    /// 503 ServiceUnavailable.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    /// 504 Timeout.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(504, "Timeout", message)
    }

    /// Reads the `Status` of another server; absent fields are empty.
    pub fn from_value(value: &Value) -> Self {
        let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
        let code = value["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or_default();
        let mut status = Self::new(code, text(value, "reason"), text(value, "message"));
        if let details @ Value::Object(_) = &value["details"] {
            let causes = details["causes"].as_array().into_iter().flatten();
            status.details = Some(Details {
                name: text(details, "name"),
                group: text(details, "group"),
                kind: text(details, "kind"),
                uid: text(details, "uid"),
                causes: causes
                    .map(|cause| Cause {
                        reason: text(cause, "reason"),
                        message: text(cause, "message"),
                        field: text(cause, "field"),
                    })
                    .collect(),
                retry_after_seconds: details["retryAfterSeconds"].as_u64().unwrap_or_default() as u32,
            });
        }
        status
    }

    /// The `Status` object.
    pub fn to_value(&self) -> Value {
        let mut object = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            object["reason"] = (*self.reason).into();
        }
        if let Some(details) = &self.details {
            object["details"] = details.to_value();
        }
        if let Some(token) = &self.continue_token {
            object["metadata"]["continue"] = token.as_str().into();
        }
        object
    }
}

impl Details {
    fn to_value(&self) -> Value {
        let mut object = Map::new();
        for (key, text) in [("name", &self.name), ("group", &self.group), ("kind", &self.kind), ("uid", &self.uid)] {
            if !text.is_empty() {
                object.insert(key.into(), text.as_str().into());
            }
        }
        if !self.causes.is_empty() {
            object.insert("causes".into(), self.causes.iter().map(Cause::to_value).collect());
        }
        if self.retry_after_seconds > 0 {
            object.insert("retryAfterSeconds".into(), self.retry_after_seconds.into());
        }
        Value::Object(object)
    }
}

impl Cause {
    fn to_value(&self) -> Value {
        let mut object = Map::new();
        for (key, text) in [("reason", &self.reason), ("message", &self.message), ("field", &self.field)] {
            if !text.is_empty() {
                object.insert(key.into(), text.as_str().into());
            }
        }
        Value::Object(object)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}
