//! The token subresource: issues tokens of service accounts.

use http::Response;
use knarr_api::catalogue::GroupVersionKind;
use knarr_api::field::{Errors, Path};
use knarr_api::status::{GroupResource, Status};
use knarr_api::time;
use knarr_api::value::{Read, Write as _};
use serde_json::{Value, json};

use super::{admit, decode_created};
use crate::authenticate::{BoundObject, TokenRequest};
use crate::authorized_request::AuthorizedRequest;
use crate::decode::Expected;
use crate::persist::managed_fields;
use crate::persist::strategy::Phase;
use crate::resource_request::ResourceRequest;
use crate::response::{self, Body};
use crate::route::accept::Format;
use crate::state::Security;
use crate::stored;

const REQUEST: GroupResource<'static> = GroupResource { group: "authentication.k8s.io", name: "TokenRequest" };
const MIN_SECONDS: i64 = 10 * 60;
const MAX_SECONDS: i64 = 1 << 32;
const DEFAULT_SECONDS: i64 = 60 * 60;

/// Handles a TokenRequest.
pub async fn serve(
    security: &Security,
    call: &ResourceRequest<'_>,
    request: &AuthorizedRequest<'_>,
    format: &Format,
) -> Result<Response<Body>, Status> {
    let (mut requested, options) = decode_created(call, request).await?;
    let kind = GroupVersionKind::new("authentication.k8s.io/v1", "TokenRequest");
    managed_fields::record_as(call, &Expected::built_in(kind.clone())?, &mut requested, &options);
    let name = &call.target.name;
    for (field, own, what) in [("name", name, "name"), ("namespace", &call.target.namespace, "namespace")] {
        let given = requested.text(&["metadata", field]);
        if !given.is_empty() && given != own {
            let mut errors = Errors::new();
            let metadata = Path::root("metadata");
            let why = format!("must match the service account {what} if specified");
            errors.invalid(&metadata.child(field), given, why);
            return Err(Status::invalid(REQUEST, name, &errors));
        }
    }
    let account = stored::parse(&*crate::persist::get(call).await?)?;
    let uid = account.text(&["metadata", "uid"]);
    let given = requested.text(&["metadata", "uid"]);
    if !given.is_empty() && given != uid {
        let why =
            format!("the UID in the token request ({given}) does not match the UID of the service account ({uid})");
        return Err(Status::conflict(REQUEST, name, &why));
    }
    let tokens = &security.service_accounts;
    if requested.items(&["spec", "audiences"]).is_empty() {
        requested.set(&["spec", "audiences"], json!(tokens.api_audiences()));
    }
    requested.set_default(&["spec", "expirationSeconds"], DEFAULT_SECONDS);
    requested.set(&["metadata", "name"], name.as_str());
    requested.set(&["metadata", "namespace"], call.target.namespace.as_str());
    requested.set(&["metadata", "uid"], uid);
    requested.set(&["metadata", "creationTimestamp"], time::seconds(call.now));
    check(&requested)?;
    admit(call, &kind, Phase::Validate, &mut requested, options.dry_run).await?;
    let (bound, node) = bound(call, &requested)?;
    let audiences =
        requested.items(&["spec", "audiences"]).iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let seconds = requested.integer(&["spec", "expirationSeconds"]).unwrap_or(DEFAULT_SECONDS);
    let token_request = TokenRequest {
        namespace: &call.target.namespace,
        account: &account,
        audiences,
        seconds,
        bound: bound.as_ref().map(|(kind, object)| BoundObject { kind, object, node: node.as_ref() }),
    };
    let (token, expires) = tokens
        .issue(&token_request, call.now)
        .map_err(|error| Status::internal(format!("failed to generate token: {error}")))?;
    requested.set_default(&["spec", "boundObjectRef"], Value::Null);
    requested.set(&["status"], json!({"token": token, "expirationTimestamp": time::seconds(expires)}));
    Ok(response::value(&requested, 201, format))
}

fn check(requested: &Value) -> Result<(), Status> {
    let mut errors = Errors::new();
    let spec = Path::root("spec");
    let seconds = requested.integer(&["spec", "expirationSeconds"]).unwrap_or(DEFAULT_SECONDS);
    if seconds < MIN_SECONDS {
        errors.invalid(&spec.child("expirationSeconds"), seconds, "may not specify a duration less than 10 minutes");
    }
    if seconds > MAX_SECONDS {
        let why = "may not specify a duration larger than 2^32 seconds";
        errors.invalid(&spec.child("expirationSeconds"), seconds, why);
    }
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid(REQUEST, "", &errors)) }
}

/// The object a token is bound to, and the node of a bound pod.
type BoundTo = (Option<(&'static str, Value)>, Option<Value>);

fn bound(call: &ResourceRequest<'_>, requested: &Value) -> Result<BoundTo, Status> {
    let reference = requested.at(&["spec", "boundObjectRef"]);
    if reference.is_null() {
        return Ok((None, None));
    }
    let name = reference.text(&["name"]);
    let (kind, plural, namespace) = match (reference.text(&["apiVersion"]), reference.text(&["kind"])) {
        ("v1" | "", "Pod") => ("pod", "pods", call.target.namespace.as_str()),
        ("v1" | "", "Secret") => ("secret", "secrets", call.target.namespace.as_str()),
        ("v1" | "", "Node") => ("node", "nodes", ""),
        (version, kind) => {
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            let text = format!("cannot bind token to object of type {group}/{version}, Kind={kind}");
            return Err(Status::bad_request(text));
        }
    };
    let object = call
        .backend
        .objects
        .get("", plural, namespace, name)
        .ok_or_else(|| Status::not_found(GroupResource { group: "", name: plural }, name))?;
    let account = &call.target.name;
    let mut node = None;
    if kind == "pod" {
        if object.text(&["spec", "serviceAccountName"]) != account {
            return Err(Status::bad_request(format!(
                "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
            )));
        }
        let node_name = object.text(&["spec", "nodeName"]);
        if !node_name.is_empty() {
            let found = call.backend.objects.get("", "nodes", "", node_name).map(|node| (*node).clone());
            node = Some(found.unwrap_or_else(|| json!({"metadata": {"name": node_name}})));
        }
    }
    let given = reference.text(&["uid"]);
    if !given.is_empty() && given != object.text(&["metadata", "uid"]) {
        let why = format!(
            "the UID in the bound object reference ({given}) does not match the UID in record. The object might have been \
             deleted and then recreated"
        );
        return Err(Status::conflict(GroupResource { group: "", name: reference.text(&["kind"]) }, name, &why));
    }
    Ok((Some((kind, (*object).clone())), node))
}
