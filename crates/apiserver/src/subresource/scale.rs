//! The scale subresource: desired and observed replicas, in the same form for all kinds.

use bytes::Bytes;
use http::Response;
use knarr_api::catalogue::{GroupVersionKind, Verb};
use knarr_api::field::{Errors, Path};
use knarr_api::selector::{LabelSelector, Operator};
use knarr_api::status::{GroupResource, Status};
use knarr_api::value::{Read, Write as _};
use serde_json::{Map, Value, json};

use crate::authorized_request::AuthorizedRequest;
use crate::custom::ScaleFields;
use crate::decode::{self, Expected};
use crate::persist::patch::{Patch, PatchKind};
use crate::persist::update::update;
use crate::persist::{self, managed_fields};
use crate::resource_request::ResourceRequest;
use crate::response::{self, Body, IncludeObject};
use crate::route::accept::{Format, Shape};
use crate::route::options::{WriteKind, WriteOptions};
use crate::stored;

fn fields_of(call: &ResourceRequest<'_>) -> Result<ScaleFields, Status> {
    if let Some(custom) = &call.resource.custom {
        return custom.scale().ok_or_else(Status::no_such_resource);
    }
    let path = |parts: &[&str]| parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>();
    Ok(ScaleFields {
        replicas: path(&["spec", "replicas"]),
        status_replicas: path(&["status", "replicas"]),
        selector: Some(path(&["spec", "selector"])),
    })
}

/// Handles a request for a scale.
pub async fn serve(
    call: &ResourceRequest<'_>,
    request: &AuthorizedRequest<'_>,
    verb: Verb,
    format: &Format,
) -> Result<Response<Body>, Status> {
    let paths = fields_of(call)?;
    let scaled = match verb {
        Verb::Get => stored::parse(&*persist::get(call).await?)?,
        Verb::Update => {
            let options = WriteOptions::parse(call.query, call.headers, WriteKind::Update)?;
            let expected = expected()?;
            let mut scale = decode::body_as(call, &expected, &request.body, options.field_validation)?;
            persist::strategy::match_namespace(call, &mut scale)?;
            persist::patch::check_name(call, &scale)?;
            write(call, &options, &paths, &mut |_| Ok(scale.clone())).await?
        }
        Verb::Patch => {
            let kind = PatchKind::of(call)?;
            let apply = kind == PatchKind::Apply;
            let options = WriteOptions::parse(call.query, call.headers, WriteKind::Patch { apply })?;
            let expected = expected()?;
            if apply {
                apply_scale(call, &options, &paths, &expected, &request.body).await?
            } else {
                write(call, &options, &paths, &mut |current| {
                    let scale = scale_of(current, &paths, call)?;
                    Patch::read(kind, &request.body, &options)?.on(call, &expected, &options, &scale)
                })
                .await?
            }
        }
        _ => return Err(Status::method_not_allowed()),
    };
    render(call, scale_of(&scaled, &paths, call)?, format)
}

/// A response with a scale in the negotiated representation.
fn render(call: &ResourceRequest<'_>, scale: Value, format: &Format) -> Result<Response<Body>, Status> {
    let shaped = match format.shape {
        Shape::Whole => scale,
        Shape::Partial => response::partial(call.resource, &scale, format.meta_version),
        Shape::PartialList => {
            let why =
                "you requested PartialObjectMetadataList, but the requested object is not a list (*autoscaling.Scale)";
            return Err(Status::new(406, "NotAcceptable", why));
        }
        Shape::Table => {
            let include = IncludeObject::of(format, call.query)?;
            let describe = (call.backend.kinds.load().descriptions)();
            let rules = knarr_rules::rules_of("autoscaling", "Scale");
            let tables = response::Tables::new(call.resource, format.meta_version, include);
            let mut table = tables.of_rules(rules, &*describe, scale);
            if call.resource.custom.is_some() {
                // The columns of custom resources have other formats.
                table["columnDefinitions"][0]["format"] = "name".into();
                table["columnDefinitions"][3]["type"] = "date".into();
            }
            table
        }
    };
    Ok(response::value(&shaped, 200, format))
}

/// The scales of objects, which admission sees for a write to a scale.
pub fn as_scales(call: &ResourceRequest<'_>, objects: &[Value]) -> Option<Vec<Value>> {
    let paths = fields_of(call).ok()?;
    let scale = |object: &Value| if object.is_null() { Ok(Value::Null) } else { scale_of(object, &paths, call) };
    objects.iter().map(scale).collect::<Result<_, Status>>().ok()
}

/// Sets the replicas of an object to those of a scale that admission changed.
pub fn set_replicas(call: &ResourceRequest<'_>, object: &mut Value, scale: &Value) {
    if let Ok(paths) = fields_of(call) {
        let path: Vec<&str> = paths.replicas.iter().map(String::as_str).collect();
        object.set(&path, scale.integer(&["spec", "replicas"]).unwrap_or(0));
    }
}

fn expected() -> Result<Expected<'static>, Status> {
    Expected::built_in(GroupVersionKind::new("autoscaling/v1", "Scale"))
}

/// Applies a scale to the object, which holds the managed fields.
async fn apply_scale(
    call: &ResourceRequest<'_>,
    options: &WriteOptions,
    paths: &ScaleFields,
    expected: &Expected<'_>,
    body: &Bytes,
) -> Result<Value, Status> {
    let updated = update(call, options, false, &mut |current| {
        let current = current.ok_or_else(|| call.not_found())?;
        let configuration = managed_fields::Configuration::read(body)?;
        configuration.check_as(call, expected)?;
        let object = configuration.apply_replicas(call, current, &paths.replicas, options)?;
        let scale = scale_of(&object, paths, call)?;
        check(call, &scale, scale.integer(&["spec", "replicas"]).unwrap_or(0))?;
        Ok(object)
    })
    .await?;
    updated.outcome.value()
}

/// Writes the replicas of a scale to the object.
async fn write(
    call: &ResourceRequest<'_>,
    options: &WriteOptions,
    paths: &ScaleFields,
    build: &mut (dyn FnMut(&Value) -> Result<Value, Status> + Send),
) -> Result<Value, Status> {
    let updated = update(call, options, false, &mut |current| {
        let current = current.ok_or_else(|| call.not_found())?;
        let scale = build(current)?;
        let replicas = scale.integer(&["spec", "replicas"]).unwrap_or(0);
        check(call, &scale, replicas)?;
        let mut object = current.clone();
        let own = current.text(&["metadata", "resourceVersion"]);
        let given = scale.text(&["metadata", "resourceVersion"]);
        if !given.is_empty() && given != own {
            return Err(Status::stale(call.resource.named(), &call.target.name));
        }
        let uid = scale.text(&["metadata", "uid"]);
        if !uid.is_empty() {
            object.set(&["metadata", "uid"], uid);
        }
        let path: Vec<&str> = paths.replicas.iter().map(String::as_str).collect();
        object.set(&path, replicas);
        managed_fields::record_scale(call, current, &mut object, &path, options)?;
        Ok(object)
    })
    .await?;
    updated.outcome.value()
}

fn check(call: &ResourceRequest<'_>, scale: &Value, replicas: i64) -> Result<(), Status> {
    if call.resource.custom.is_some() {
        // The schema of the custom resource checks its replicas.
        return Ok(());
    }
    let mut errors = Errors::new();
    if replicas < 0 {
        let path = Path::root("spec");
        errors.invalid(&path.child("replicas"), replicas, "must be greater than or equal to 0");
    }
    if errors.is_empty() {
        return Ok(());
    }
    let name = scale.text(&["metadata", "name"]);
    let name = if name.is_empty() { &call.target.name } else { name };
    Err(Status::invalid(GroupResource { group: "autoscaling", name: "Scale" }, name, &errors))
}

/// The scale of an object.
fn scale_of(object: &Value, paths: &ScaleFields, call: &ResourceRequest<'_>) -> Result<Value, Status> {
    let at = |path: &[String]| {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        object.at(&path)
    };
    let replicas = at(&paths.replicas);
    if call.resource.custom.is_some() && replicas.is_null() {
        let path = format!(".{}", paths.replicas.join("."));
        return Err(Status::internal(format!("the spec replicas field {path:?} does not exist")));
    }
    let mut spec = Map::new();
    if let Some(replicas) = replicas.as_i64().filter(|replicas| *replicas != 0) {
        spec.insert("replicas".to_owned(), replicas.into());
    }
    let mut status = json!({"replicas": at(&paths.status_replicas).as_i64().unwrap_or(0)});
    let selector = paths.selector.as_ref().map(|path| selector_text(at(path))).unwrap_or_default();
    if !selector.is_empty() {
        status["selector"] = selector.into();
    }
    let mut metadata = Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object.at(&["metadata"]).get(field) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    Ok(json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status}))
}

/// A selector as the text of a query parameter.
fn selector_text(selector: &Value) -> String {
    let parsed = match selector {
        Value::String(text) => return text.clone(),
        Value::Object(fields) if !fields.contains_key("matchLabels") && !fields.contains_key("matchExpressions") => {
            let pairs = fields.iter().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
            Ok(LabelSelector::from_labels(pairs))
        }
        Value::Object(_) => LabelSelector::from_object(selector),
        _ => return String::new(),
    };
    let Ok(parsed) = parsed else { return String::new() };
    let mut parts: Vec<(String, String)> = Vec::new();
    for requirement in parsed.requirements() {
        let mut values = requirement.values.clone();
        values.sort();
        let list = values.join(",");
        let key = &requirement.key;
        let text = match requirement.operator {
            Operator::Exists => key.clone(),
            Operator::DoesNotExist => format!("!{key}"),
            Operator::Equals | Operator::DoubleEquals => format!("{key}={list}"),
            Operator::NotEquals => format!("{key}!={list}"),
            Operator::In if values.len() == 1 => format!("{key}={list}"),
            Operator::In => format!("{key} in ({list})"),
            Operator::NotIn => format!("{key} notin ({list})"),
            Operator::GreaterThan => format!("{key}>{list}"),
            Operator::LessThan => format!("{key}<{list}"),
        };
        parts.push((key.clone(), text));
    }
    parts.sort_by(|(one, _), (other, _)| one.cmp(other));
    parts.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(",")
}
