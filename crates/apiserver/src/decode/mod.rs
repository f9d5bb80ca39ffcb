//! Decodes request bodies into objects, with defaults and strict field validation.

pub mod list_items;
#[cfg(test)]
mod malformed_tests;

use bytes::Bytes;
use http::HeaderMap;
use knarr_api::catalogue::GroupVersionKind;
use knarr_api::custom::CustomSchema;
use knarr_api::decode::{self, DecodeError, Decoded, StrictProblem, TypeMeta};
use knarr_api::field::{Errors, Path};
use knarr_api::protobuf;
use knarr_api::schema::{NodeRef, builtin};
use knarr_api::status::{GroupResource, Status};
use knarr_api::value::Read;
use serde_json::Value;

use crate::kinds::Resource;
use crate::resource_request::ResourceRequest;
use crate::route::accept::{self, Encoding};
use crate::route::options::FieldValidation;

/// The kind that a body must contain.
pub struct Expected<'a> {
    pub kind: GroupVersionKind,
    pub node: NodeRef<'a>,
    pub custom: Option<&'a CustomSchema>,
}

impl<'a> Expected<'a> {
    /// The kind of a resource.
    pub fn of(resource: &'a Resource) -> Result<Expected<'a>, Status> {
        let node = resource.schema().ok_or_else(|| Status::internal("the kind has no schema"))?;
        Ok(Expected {
            kind: resource.kind.group_version_kind(),
            node,
            custom: resource.custom.as_ref().map(|custom| &custom.schema),
        })
    }

    /// Another built-in kind than that of the resource, such as Scale.
    pub fn built_in(kind: GroupVersionKind) -> Result<Expected<'static>, Status> {
        let node = builtin()
            .kind(&kind.group, &kind.version, &kind.kind)
            .ok_or_else(|| Status::internal(format!("no schema for {kind}")))?;
        Ok(Expected { kind, node, custom: None })
    }

    /// Decodes a parsed object.
    pub fn decode_value(&self, value: &Value) -> Result<Decoded, DecodeError> {
        match self.custom {
            Some(schema) => schema.decode_value(value.clone()),
            None => decode::value(value, self.node),
        }
    }

    /// Checks the kind and apiVersion of a parsed object; both may be missing. The error is the reason of the refusal.
    pub fn check_type(&self, value: &Value) -> Result<(), String> {
        let matches = |field: &str, own: &str| match &value[field] {
            Value::Null => true,
            Value::String(text) => text.is_empty() || text == own,
            _ => false,
        };
        if value.is_object() && matches("kind", &self.kind.kind) && matches("apiVersion", &self.kind.api_version()) {
            return Ok(());
        }
        let meta = decode::type_meta(value.to_string().as_bytes())
            .map_err(|error| format!("couldn't get version/kind; json parse error: {error}"))?;
        check_version_text(&meta)?;
        let given = with_defaults(self, &meta);
        match builtin().kind(&given.group, &given.version, &given.kind) {
            _ if given == self.kind => Ok(()),
            Some(node) if self.custom.is_none() => match decode::value(value, node) {
                Ok(_) => Err(no_conversion(&given, &self.kind)),
                Err(error) => Err(error.to_string()),
            },
            _ => Err(unregistered(&given)),
        }
    }

    /// The refusal of a custom resource with another kind or apiVersion.
    pub fn not_this_kind(&self, object: &Value) -> Option<Status> {
        let (kind, api_version) = (object.text(&["kind"]), object.text(&["apiVersion"]));
        let own = self.kind.api_version();
        let mut errors = Errors::new();
        if kind != self.kind.kind {
            errors.invalid(&Path::root("kind"), kind, format!("must be {}", self.kind.kind));
        } else if api_version != own {
            errors.invalid(&Path::root("apiVersion"), api_version, format!("must be {own}"));
        } else {
            return None;
        }
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        Some(Status::invalid(GroupResource { group, name: kind }, object.text(&["metadata", "name"]), &errors))
    }

    fn decode_json(&self, body: &[u8]) -> Result<Decoded, DecodeError> {
        match self.custom {
            Some(schema) => schema.decode_json(body),
            None => decode::json(body, self.node),
        }
    }

    fn decode_yaml(&self, body: &[u8]) -> Result<Decoded, DecodeError> {
        match self.custom {
            Some(schema) => schema.decode_yaml(body),
            None => decode::yaml(body, self.node),
        }
    }
}

/// Decodes an object of the resource in the served version and sets its defaults.
pub fn object(call: &ResourceRequest<'_>, body: &Bytes, validation: FieldValidation) -> Result<Value, Status> {
    let expected = Expected::of(call.resource)?;
    let mut object = body_as(call, &expected, body, validation)?;
    set_defaults(call.resource, &mut object)?;
    Ok(object)
}

/// Sets the default values of an object, unless those of a custom resource take too much memory.
pub fn set_defaults(resource: &Resource, object: &mut Value) -> Result<(), Status> {
    match &resource.custom {
        Some(custom) if custom.set_defaults(object) => Ok(()),
        Some(_) => {
            let text = "Request entity too large: the defaults of the object are longer than any object may be";
            Err(Status::new(413, "RequestEntityTooLarge", text))
        }
        None => {
            resource.rules.set_defaults(object, &resource.kind.version);
            if let Some(node) = resource.schema() {
                decode::normalize_as_given(object, node);
            }
            Ok(())
        }
    }
}

/// Normalizes an object to the form in which it is stored, after its managed fields are recorded.
pub fn normalize(resource: &Resource, object: &mut Value) {
    if let (None, Some(node)) = (&resource.custom, resource.schema()) {
        decode::normalize(object, node);
    }
}

/// Decodes a body of an expected kind. Unknown and duplicate fields are refused, warned about or ignored.
pub fn body_as(
    call: &ResourceRequest<'_>,
    expected: &Expected<'_>,
    body: &Bytes,
    validation: FieldValidation,
) -> Result<Value, Status> {
    let encoding = accept::body_encoding(call.headers, expected.custom.is_some())?;
    let decoded = typed(encoding, expected, body)?;
    list_items::check(&decoded.value)?;
    call.emptied.lock().clone_from(&decoded.emptied);
    let mut object = decoded.value;
    check_fields(call, expected, &expected.kind, decoded.problems, validation)?;
    object["kind"] = expected.kind.kind.as_str().into();
    object["apiVersion"] = expected.kind.api_version().into();
    Ok(object)
}

/// Decodes a body of an expected kind in its encoding.
pub fn typed(encoding: Encoding, expected: &Expected<'_>, body: &Bytes) -> Result<Decoded, Status> {
    match encoding {
        Encoding::Protobuf => {
            let mut value = protobuf::decode(body, Some(&expected.kind))
                .map_err(|error| unrecognized(expected, &error.to_string(), body))?;
            let meta = TypeMeta {
                api_version: value["apiVersion"].as_str().unwrap_or_default().to_owned(),
                kind: value["kind"].as_str().unwrap_or_default().to_owned(),
            };
            check_kind(expected, &meta)?;
            decode::normalize(&mut value, expected.node);
            Ok(Decoded { value, problems: Vec::new(), emptied: Vec::new() })
        }
        Encoding::Json => {
            let meta = read_type(expected, body, body)?;
            check_kind(expected, &meta).map_err(|refusal| other_kind(expected, &meta, body).unwrap_or(refusal))?;
            check_custom_kind(expected, &meta, || decode::untyped_json(body).map(|it| it.value).unwrap_or_default())?;
            expected.decode_json(body).map_err(|error| cannot_handle(expected, &meta, &error.to_string()))
        }
        Encoding::Yaml => {
            let plain = decode::untyped_yaml(body).map_err(|error| unrecognized(expected, &error.to_string(), body))?;
            let meta = read_type(expected, plain.value.to_string().as_bytes(), body)?;
            check_kind(expected, &meta)?;
            check_custom_kind(expected, &meta, || plain.value.clone())?;
            expected.decode_yaml(body).map_err(|error| cannot_handle(expected, &meta, &error.to_string()))
        }
    }
}

/// Reads the kind and apiVersion of an object; a refusal quotes the body.
fn read_type(expected: &Expected<'_>, json: &[u8], body: &[u8]) -> Result<TypeMeta, Status> {
    let meta = decode::type_meta(json).map_err(|error| {
        unrecognized(expected, &format!("couldn't get version/kind; json parse error: {error}"), body)
    })?;
    check_version_text(&meta).map_err(|why| unrecognized(expected, &why, body))?;
    if expected.custom.is_some() && meta.kind.is_empty() {
        let why = format!("Object 'Kind' is missing in '{}'", String::from_utf8_lossy(json));
        return Err(unrecognized(expected, &why, body));
    }
    Ok(meta)
}

fn check_version_text(meta: &TypeMeta) -> Result<(), String> {
    if meta.api_version.matches('/').count() > 1 {
        return Err(format!("unexpected GroupVersion string: {}", meta.api_version));
    }
    Ok(())
}

/// Refuses an object of another kind or version.
fn check_kind(expected: &Expected<'_>, meta: &TypeMeta) -> Result<(), Status> {
    let given = with_defaults(expected, meta);
    let own = &expected.kind;
    if given == *own && (expected.custom.is_none() || !meta.api_version.is_empty()) {
        return Ok(());
    }
    if expected.custom.is_some() {
        let stated = GroupVersionKind::new(&meta.api_version, &given.kind);
        return match (stated.group == own.group, stated.version == own.version) {
            (true, true) => Ok(()),
            _ => Err(wrong_version(&stated, own)),
        };
    }
    let known = builtin().kind(&given.group, &given.version, &given.kind).is_some();
    if given.kind == own.kind && known {
        return Err(wrong_version(&given, own));
    }
    let why = if known { no_conversion(&given, own) } else { unregistered(&given) };
    Err(cannot_handle(expected, meta, &why))
}

/// An object of another kind is decoded as that kind before it is refused: errors of decoding come first.
fn other_kind(expected: &Expected<'_>, meta: &TypeMeta, body: &[u8]) -> Option<Status> {
    let given = with_defaults(expected, meta);
    let node = builtin().kind(&given.group, &given.version, &given.kind).filter(|_| expected.custom.is_none())?;
    let error = decode::json(body, node).err()?;
    Some(cannot_handle(expected, meta, &error.to_string()))
}

fn no_conversion(given: &GroupVersionKind, own: &GroupVersionKind) -> String {
    format!(
        "converting ({}.{}) to ({}.{}): unknown conversion",
        given.version,
        given.kind,
        internal_package(&own.group),
        own.kind
    )
}

fn unregistered(given: &GroupVersionKind) -> String {
    format!(
        "no kind {:?} is registered for version {:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\"",
        given.kind,
        given.api_version()
    )
}

/// Refuses a custom resource of another kind than that of its path.
fn check_custom_kind(expected: &Expected<'_>, meta: &TypeMeta, read: impl FnOnce() -> Value) -> Result<(), Status> {
    if expected.custom.is_none() || meta.kind == expected.kind.kind {
        return Ok(());
    }
    Err(expected.not_this_kind(&read()).unwrap_or_else(|| Status::internal("the kind was not read")))
}

fn with_defaults(expected: &Expected<'_>, meta: &TypeMeta) -> GroupVersionKind {
    let api_version = if meta.api_version.is_empty() { expected.kind.api_version() } else { meta.api_version.clone() };
    let kind = if meta.kind.is_empty() { &expected.kind.kind } else { &meta.kind };
    GroupVersionKind::new(&api_version, kind)
}

fn wrong_version(given: &GroupVersionKind, own: &GroupVersionKind) -> Status {
    Status::bad_request(format!(
        "the API version in the data ({}) does not match the expected API version ({})",
        given.api_version(),
        own.api_version()
    ))
}

/// The short name of a group in messages.
fn internal_package(group: &str) -> &str {
    if group.is_empty() { "core" } else { group.split('.').next().unwrap_or(group) }
}

fn cannot_handle(expected: &Expected<'_>, meta: &TypeMeta, why: &str) -> Status {
    let given = with_defaults(expected, meta);
    Status::bad_request(format!(
        "{} in version {:?} cannot be handled as a {}: {why}",
        given.kind, given.version, expected.kind.kind
    ))
}

fn unrecognized(expected: &Expected<'_>, why: &str, body: &[u8]) -> Status {
    const MAX_QUOTED: usize = 30;
    let (quoted, truncated) = (&body[..body.len().min(MAX_QUOTED)], body.len() > MAX_QUOTED);
    let mut summary = match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(quoted).into_owned(),
        Some(_) => quoted.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    if truncated {
        summary.push_str(" ...");
    }
    Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): {why} ({summary})",
        expected.kind.kind
    ))
}

/// Refuses or warns about unknown and duplicate fields, as field validation says.
pub fn check_fields(
    call: &ResourceRequest<'_>,
    expected: &Expected<'_>,
    given: &GroupVersionKind,
    problems: Vec<StrictProblem>,
    validation: FieldValidation,
) -> Result<(), Status> {
    if problems.is_empty() {
        return Ok(());
    }
    match validation {
        FieldValidation::Ignore => Ok(()),
        FieldValidation::Warn => {
            call.warnings.lock().extend(problems.iter().flat_map(StrictProblem::warnings));
            Ok(())
        }
        FieldValidation::Strict => {
            let list: Vec<String> = problems.iter().map(ToString::to_string).collect();
            let why = format!("strict decoding error: {}", list.join(", "));
            let meta = TypeMeta { api_version: given.api_version(), kind: given.kind.clone() };
            Err(cannot_handle(expected, &meta, &why))
        }
    }
}

/// Decodes the DeleteOptions of a body in any encoding; null if the body is empty.
pub fn delete_options(headers: &HeaderMap, body: &Bytes) -> Result<Value, Status> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    let kind = GroupVersionKind { group: "meta.k8s.io".into(), version: "v1".into(), kind: "DeleteOptions".into() };
    let refuse = |error: &dyn std::fmt::Display| Status::bad_request(error.to_string());
    let options = builtin().kind("", &kind.version, &kind.kind).ok_or_else(|| Status::internal("no DeleteOptions"))?;
    match accept::body_encoding(headers, false)? {
        Encoding::Protobuf => {
            // Clients send the options under the version of the resource; they are the same in all of them.
            protobuf::decode(body, Some(&kind)).map_err(|error| refuse(&error))
        }
        // By their types: a precondition or dry run that cannot be read must not be taken for none.
        Encoding::Yaml => decode::yaml(body, options).map(|decoded| decoded.value).map_err(|error| refuse(&error)),
        Encoding::Json => {
            decode::type_meta(body)
                .map_err(|error| refuse(&format!("couldn't get version/kind; json parse error: {error}")))?;
            decode::json(body, options).map(|decoded| decoded.value).map_err(|error| refuse(&error))
        }
    }
}
