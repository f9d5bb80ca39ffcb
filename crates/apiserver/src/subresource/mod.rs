//! Handles subresources, such as status, scale, binding, eviction and exec, and kinds that are never stored.

mod binding;
pub mod connect;
mod eviction;
mod review;
pub mod scale;
mod token;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::Response;
use knarr_api::catalogue::{GroupVersionKind, Verb};
use knarr_api::status::{GroupResource, Status};
use knarr_api::value::Read;
use knarr_store::{Entry, Error, Range};
use serde_json::{Value, json};

use crate::authorized_request::AuthorizedRequest;
use crate::decode::{self, Expected};
use crate::journey_events::{self, WriteEvent};
use crate::kinds::Resource;
use crate::persist::strategy::{AdmissionKind, Phase};
use crate::persist::{self, Outcome, store_error};
use crate::request::Operation;
use crate::resource_request::ResourceRequest;
use crate::response::HandlerResponse;
use crate::response::{self, Body, IncludeObject};
use crate::route::accept::{self, Format, Offer};
use crate::route::options::{WriteKind, WriteOptions};
use crate::state::{ApiServer, Security};
use crate::stored;

/// Handles a request for a subresource.
pub async fn serve(
    server: &Arc<ApiServer>,
    resource: &Arc<Resource>,
    request: &mut AuthorizedRequest<'_>,
    verb: Verb,
) -> Result<HandlerResponse, Status> {
    let subresource = request.routed.target.subresource.clone();
    if connect::is_connect(&subresource) {
        return connect::serve(server, resource, request).await;
    }
    let offer = Offer { custom: resource.custom.is_some(), list: false, shapes: true };
    let format = accept::negotiate(&request.parts.headers, request.query, offer)?;
    let call = ResourceRequest::new(&server.backend, resource, request);
    call.warnings.lock().extend(resource.deprecation().map(str::to_owned));
    let response = match subresource.as_str() {
        "scale" => scale::serve(&call, request, verb, &format).await,
        "binding" => binding::serve(&call, request, &call.target.name.clone(), &format).await,
        "eviction" => eviction::serve(&call, request, &format).await,
        "token" => token::serve(&server.security, &call, request, &format).await,
        _ => object_subresource(&call, request, verb, &format).await,
    };
    Ok(call.respond(response))
}

/// Subresources that return the object itself, of which they can write only a part, such as status.
async fn object_subresource(
    call: &ResourceRequest<'_>,
    request: &AuthorizedRequest<'_>,
    verb: Verb,
    format: &Format,
) -> Result<Response<Body>, Status> {
    let include = IncludeObject::of(format, call.query)?;
    let outcome = match verb {
        Verb::Get => Outcome::Stored(persist::get(call).await?),
        Verb::Update => persist::update::replace(call, &request.body).await?.outcome,
        Verb::Patch => persist::patch::patch(call, &request.body).await?.0.outcome,
        _ => return Err(Status::method_not_allowed()),
    };
    response::written(call.backend, call.resource, outcome, 200, format, include).await
}

/// Kinds whose objects are never stored, such as reviews.
pub async fn virtual_kind(
    security: &Security,
    call: &ResourceRequest<'_>,
    request: &AuthorizedRequest<'_>,
    verb: Verb,
    format: &Format,
) -> Result<Response<Body>, Status> {
    match (call.resource.kind.plural.as_str(), verb) {
        ("bindings", Verb::Create) => {
            let options = WriteOptions::parse(call.query, call.headers, WriteKind::Create)?;
            let object = decode::object(call, &request.body, options.field_validation)?;
            let name = object.text(&["metadata", "name"]).to_owned();
            binding::serve(call, request, &name, format).await
        }
        ("componentstatuses", Verb::List) => Ok(component_statuses(call, format).await),
        ("componentstatuses", Verb::Get) => component_status(call, format).await,
        (_, Verb::Create) => review::serve(security, call, request, format).await,
        _ => Err(Status::method_not_allowed()),
    }
}

/// Decodes the body of a created subresource, which has its own kind, and runs mutating admission.
async fn decode_created(
    call: &ResourceRequest<'_>,
    request: &AuthorizedRequest<'_>,
) -> Result<(Value, WriteOptions), Status> {
    let options = WriteOptions::parse(call.query, call.headers, WriteKind::Create)?;
    let kind = match call.resource.kind.subresource(&call.target.subresource) {
        Some(subresource) => subresource.kind.clone(),
        None => call.resource.kind.group_version_kind(),
    };
    let expected = Expected::built_in(kind.clone())?;
    let mut object = decode::body_as(call, &expected, &request.body, options.field_validation)?;
    persist::strategy::match_namespace(call, &mut object)?;
    knarr_rules::rules_of(&kind.group, &kind.kind).set_defaults(&mut object, &kind.version);
    admit(call, &kind, Phase::Mutate, &mut object, options.dry_run).await?;
    Ok((object, options))
}

async fn admit(
    call: &ResourceRequest<'_>,
    kind: &GroupVersionKind,
    phase: Phase,
    object: &mut Value,
    dry_run: bool,
) -> Result<(), Status> {
    let kind = AdmissionKind { group: &kind.group, version: &kind.version, kind: &kind.kind };
    call.admit_as(kind, phase, Operation::Create, object, None, dry_run).await
}

/// Changes a stored object without the checks of an update by a client.
async fn change_stored(
    call: &ResourceRequest<'_>,
    resource: &Resource,
    key: &str,
    missing: impl Fn() -> Status,
    dry_run: bool,
    mut change: impl FnMut(&mut Value) -> Result<(), Status>,
) -> Result<Value, Status> {
    change_entry(call, resource, key, missing, dry_run, |current| changed(resource, current, &mut change)).await
}

/// The changed object: its stored bytes and its value.
fn changed(
    resource: &Resource,
    current: &Entry,
    change: impl FnOnce(&mut Value) -> Result<(), Status>,
) -> Result<(Bytes, Value), Status> {
    let mut object = stored::parse(current)?;
    change(&mut object)?;
    if let Some(node) = resource.schema() {
        knarr_api::decode::normalize(&mut object, node);
    }
    Ok((stored::encode(resource, &object), object))
}

/// Changes the entry of a key. `change` returns the new bytes, and as much of the object as journey events and the response
/// need.
async fn change_entry(
    call: &ResourceRequest<'_>,
    resource: &Resource,
    key: &str,
    missing: impl Fn() -> Status,
    dry_run: bool,
    mut change: impl FnMut(&Entry) -> Result<(Bytes, Value), Status>,
) -> Result<Value, Status> {
    call.backend.store.sync().await.map_err(store_error)?;
    call.backend.store.prepare_read(&Range::key(key)).await;
    let mut current = call.backend.store.peek(key).ok_or_else(&missing)?;
    loop {
        let (value, mut object) = change(&current)?;
        if dry_run || value == current.value() {
            return Ok(object);
        }
        let storing = Instant::now();
        match call.backend.store.update(key, value, current.revision, None).await {
            Ok(entry) => {
                let (verb, revision) = (call.target.verb.as_str(), entry.revision);
                journey_events::record_write(call, &WriteEvent { verb, resource, object: &object, revision, storing });
                stored::set_revision(&mut object, entry.revision);
                return Ok(object);
            }
            Err(Error::Conflict { current: newer, .. }) => current = newer.ok_or_else(&missing)?,
            Err(error) => return Err(store_error(error)),
        }
    }
}

/// The response of subresources without an object.
fn success(code: u16, format: &Format) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code});
    response::value(&status, code, format)
}

/// ComponentStatus objects: all components are in this process or its store.
async fn component_values(call: &ResourceRequest<'_>) -> Vec<Value> {
    let healthy = call.backend.store.sync().await.is_ok();
    let component = |name: &str, ok: bool| {
        let condition = if ok {
            json!({"type": "Healthy", "status": "True", "message": "ok"})
        } else {
            json!({"type": "Healthy", "status": "False", "message": "the store does not respond"})
        };
        json!({"kind": "ComponentStatus", "apiVersion": "v1", "metadata": {"name": name}, "conditions": [condition]})
    };
    vec![component("controller-manager", true), component("etcd-0", healthy), component("scheduler", true)]
}

async fn component_statuses(call: &ResourceRequest<'_>, format: &Format) -> Response<Body> {
    let mut items = component_values(call).await;
    for item in items.iter_mut().filter_map(Value::as_object_mut) {
        item.remove("kind");
        item.remove("apiVersion");
    }
    let list = json!({"kind": "ComponentStatusList", "apiVersion": "v1", "metadata": {}, "items": items});
    shaped(call, list, format, true)
}

async fn component_status(call: &ResourceRequest<'_>, format: &Format) -> Result<Response<Body>, Status> {
    let all = component_values(call).await;
    let found = all.into_iter().find(|value| value.text(&["metadata", "name"]) == call.target.name);
    let missing = || Status::not_found(GroupResource { group: "", name: "componentstatus" }, &call.target.name);
    Ok(shaped(call, found.ok_or_else(missing)?, format, false))
}

fn shaped(call: &ResourceRequest<'_>, value: Value, format: &Format, list: bool) -> Response<Body> {
    if format.shape != accept::Shape::Table {
        return response::value(&value, 200, format);
    }
    let objects = if list { value["items"].as_array().cloned().unwrap_or_default() } else { vec![value] };
    let include = IncludeObject::of(format, call.query).unwrap_or(IncludeObject::Metadata);
    let table = response::Tables::new(call.resource, format.meta_version, include).of(json!({}), objects);
    response::value(&table, 200, format)
}
