//! Handles requests for resources: checks the path and method, and runs the operation.

use std::pin::Pin;
use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _};
use http::{Method, Response};
use knarr_api::catalogue::Verb;
use knarr_api::names;
use knarr_api::status::Status;

use crate::authorized_request::AuthorizedRequest;
use crate::decode;
use crate::kinds::Resource;
use crate::persist::{self, Outcome};
use crate::provided::{self, ProvidingServer};
use crate::resource_request::ResourceRequest;
use crate::response::HandlerResponse;
use crate::response::{self, Body, IncludeObject};
use crate::route::accept::{self, Format, Offer};
use crate::route::options::{DeleteOptions, ListOptions, WriteKind, WriteOptions};
use crate::selection::Selection;
use crate::state::ApiServer;
use crate::{subresource, watch};

/// Handles a request for a resource.
pub async fn handle(server: &Arc<ApiServer>, request: &mut AuthorizedRequest<'_>) -> Result<HandlerResponse, Status> {
    let target = &request.routed.target;
    let kinds = server.backend.kinds.load_full();
    let Some(resource) = kinds.resource(&target.group, &target.version, &target.resource) else {
        let built_in = server.backend.behaviour.built_in.version(&target.group, &target.version).is_some();
        return if built_in { Err(Status::no_such_resource()) } else { Ok(response::page_not_found().into()) };
    };
    let operation = check_path(resource, request)?;
    if !target.subresource.is_empty() {
        return subresource::serve(server, resource, request, operation).await;
    }
    let offer = Offer {
        custom: resource.custom.is_some(),
        list: matches!(operation, Verb::List | Verb::Watch),
        // Objects that are not stored have no tables.
        shapes: resource.storage().is_some() || operation != Verb::Create,
    };
    let format = accept::negotiate(&request.parts.headers, request.query, offer)?;
    if operation == Verb::Watch {
        let mut handled = watch::serve(&server.backend, resource, request, &format).await?;
        handled.warnings.extend(resource.deprecation().map(str::to_owned));
        return Ok(handled);
    }
    let call = ResourceRequest::new(&server.backend, resource, request);
    call.warnings.lock().extend(resource.deprecation().map(str::to_owned));
    let include = match IncludeObject::of(&format, request.query) {
        Ok(include) => include,
        Err(status) => return Ok(call.respond(Err(status))),
    };
    let response = if let Some(provider) = server.discovery.provided.provider(&resource.kind) {
        let own: Arc<dyn ProvidingServer> = server.clone();
        provided::serve(&own, &**provider, &call, operation, &format).await
    } else if resource.storage().is_none() {
        subresource::virtual_kind(&server.security, &call, request, operation, &format).await
    } else {
        serve(&call, request, operation, &format, include).await
    };
    Ok(call.respond(response))
}

/// The operation of the method on this path, or the refusal.
fn check_path(resource: &Resource, request: &AuthorizedRequest<'_>) -> Result<Verb, Status> {
    let target = &request.routed.target;
    let kind = &resource.kind;
    let is_namespaces = target.resource == "namespaces" && target.group.is_empty();
    let has_namespace = !target.namespace.is_empty() && !is_namespaces;
    let named = request.routed.named;
    if has_namespace && !kind.namespaced || kind.namespaced && !has_namespace && named {
        return Err(Status::no_such_resource());
    }
    if named {
        check_path_name(&target.name)?;
    }
    let (verbs, proxies) = if target.subresource.is_empty() {
        (kind.verbs, false)
    } else {
        let own = kind.subresource(&target.subresource).ok_or_else(|| match resource.custom {
            Some(_) => Status::not_found(resource.named(), &target.name),
            None => Status::no_such_resource(),
        })?;
        (own.verbs, target.subresource == "proxy")
    };
    if request.routed.beyond > 0 && !proxies {
        return Err(Status::no_such_resource());
    }
    // The operation is the verb that was authorized, whatever the method: under the old path of a watch, every method was
    // authorized as one.
    let verb = match request.parts.method {
        // The server behind the proxy handles the method.
        Method::OPTIONS if proxies => Some(Verb::Get),
        Method::GET | Method::HEAD => Verb::parse(&target.verb),
        _ => Verb::parse(&target.verb).filter(|verb| *verb != Verb::Watch),
    };
    let verb = verb.filter(|verb| verbs.contains(*verb)).ok_or_else(|| match resource.custom {
        Some(_) if !target.subresource.is_empty() => unsupported(resource, &target.verb),
        _ => Status::method_not_allowed(),
    })?;
    let on_collection = target.subresource.is_empty();
    let fits = match verb {
        Verb::Get | Verb::Update | Verb::Patch | Verb::Delete => named,
        // A custom resource may be created at the path of its name.
        Verb::Create => (!named || !on_collection || resource.custom.is_some()) && (!kind.namespaced || has_namespace),
        Verb::DeleteCollection => !named && (!kind.namespaced || has_namespace),
        Verb::List => !named,
        Verb::Watch => true,
    };
    if fits { Ok(verb) } else { Err(Status::method_not_allowed()) }
}

/// Refuses a name that is not one segment of a path.
fn check_path_name(name: &str) -> Result<(), Status> {
    if name.contains('/') {
        return Err(Status::no_such_resource());
    }
    match names::path_segment(name).as_slice() {
        [] => Ok(()),
        wrong => Err(Status::bad_request(format!("Name parameter invalid: {name:?}: {}", wrong.join(", ")))),
    }
}

/// The refusal of a method that a subresource of a custom resource does not support.
fn unsupported(resource: &Resource, verb: &str) -> Status {
    let of = resource.named();
    let text = format!("{verb} is not supported on resources of kind {:?}", of.to_string());
    Status::new(405, "MethodNotAllowed", text).about(of, "")
}

async fn serve(
    call: &ResourceRequest<'_>,
    request: &AuthorizedRequest<'_>,
    operation: Verb,
    format: &Format,
    include: IncludeObject,
) -> Result<Response<Body>, Status> {
    let resource = call.resource;
    match operation {
        Verb::Get => {
            let entry = persist::get(call).await?;
            response::object(resource, &Outcome::Stored(entry), 200, format, include)
        }
        Verb::List => {
            let options = ListOptions::parse(call.query, false)?;
            let selection = Selection::parse(resource, &options.label_selector, &options.field_selector)?;
            let listed = persist::list::list(call, &options, &selection).await?;
            response::list(resource, listed, format, include).await
        }
        Verb::Create => {
            let options = WriteOptions::parse(call.query, call.headers, WriteKind::Create)?;
            let object = decode::object(call, &request.body, options.field_validation)?;
            let outcome = persist::create::create(call, object, &options).await?;
            response::written(call.backend, call.resource, outcome, 201, format, include).await
        }
        Verb::Update => {
            let updated = persist::update::replace(call, &request.body).await?;
            let code = if updated.created { 201 } else { 200 };
            response::written(call.backend, call.resource, updated.outcome, code, format, include).await
        }
        Verb::Patch => {
            let (updated, _) = persist::patch::patch(call, &request.body).await?;
            let code = if updated.created { 201 } else { 200 };
            response::written(call.backend, call.resource, updated.outcome, code, format, include).await
        }
        Verb::Delete => delete(call, request, format, include).await,
        Verb::DeleteCollection => delete_collection(call, request, format, include).await,
        Verb::Watch => Err(Status::method_not_allowed()),
    }
}

/// The options of a deletion, which admission sees as the client sent them.
fn delete_options(call: &ResourceRequest<'_>, request: &AuthorizedRequest<'_>) -> Result<DeleteOptions, Status> {
    let given = decode::delete_options(call.headers, &request.body)?;
    let options = DeleteOptions::parse(call.query, &given)?;
    call.delete_options.get_or_init(|| given);
    Ok(options)
}

async fn delete(
    call: &ResourceRequest<'_>,
    request: &AuthorizedRequest<'_>,
    format: &Format,
    include: IncludeObject,
) -> Result<Response<Body>, Status> {
    let options = delete_options(call, request)?;
    let deleted = persist::delete::delete(call, &call.target.name, &options).await?;
    let code = if !deleted.gone && options.orphan_dependents == Some(false) { 202 } else { 200 };
    match deleted.response {
        persist::delete::DeleteResponse::Object(outcome) => {
            response::written(call.backend, call.resource, outcome, code, format, include).await
        }
        persist::delete::DeleteResponse::Status(status) => Ok(response::value(&status, code, format)),
    }
}

/// Deletes one object of a collection. It is no failure if it is gone already.
fn delete_named<'a>(
    call: &'a ResourceRequest<'a>,
    name: String,
    options: &'a DeleteOptions,
) -> Pin<Box<dyn Future<Output = Result<(), Status>> + Send + 'a>> {
    Box::pin(async move {
        match persist::delete::delete(call, &name, options).await {
            Err(status) if status.code != 404 => Err(status),
            _ => Ok(()),
        }
    })
}

async fn delete_collection(
    call: &ResourceRequest<'_>,
    request: &AuthorizedRequest<'_>,
    format: &Format,
    include: IncludeObject,
) -> Result<Response<Body>, Status> {
    let options = delete_options(call, request)?;
    let listing = ListOptions::parse(call.query, false)?;
    let selection = Selection::parse(call.resource, &listing.label_selector, &listing.field_selector)?;
    let listed = persist::list::list(call, &listing, &selection).await?;
    // Concurrent writes share one sync of the disk.
    let names: Vec<String> =
        listed.entries.iter().map(|entry| call.resource.split_key(&entry.key).1.to_owned()).collect();
    let deletions = futures::stream::iter(names).map(|name| delete_named(call, name, &options));
    deletions.buffer_unordered(call.backend.behaviour.requests.concurrent_deletions).try_collect::<()>().await?;
    response::list(call.resource, listed, format, include).await
}
