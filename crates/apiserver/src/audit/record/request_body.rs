//! The body of a request as it is recorded: read as its handler reads it. Whoever hides it from the record, by its type or its
//! depth for instance, hides it from the server, too.

use bytes::Bytes;
use http::HeaderMap;
use knarr_api::{decode as plain, protobuf};
use serde_json::Value;

use crate::decode::{self, Expected, list_items, set_defaults};
use crate::kinds::{Kinds, Resource};
use crate::request::Target;
use crate::route::accept::{self, Encoding};

/// Their bodies are for others, and no objects.
const STREAMS: [&str; 4] = ["attach", "exec", "portforward", "proxy"];

/// The object, patch or options that a request sends; none if there are none, or the request is refused because of them.
pub fn read(headers: &HeaderMap, body: &Bytes, target: &Target, kinds: &Kinds) -> Option<Value> {
    let resource = kinds.resource(&target.group, &target.version, &target.resource)?;
    if body.is_empty() || STREAMS.contains(&target.subresource.as_str()) {
        return None;
    }
    match target.verb.as_str() {
        "create" | "update" => object(headers, body, resource, &target.subresource),
        "patch" if accept::media_type(headers).to_ascii_lowercase().ends_with("yaml") => untyped(Encoding::Yaml, body),
        "patch" => untyped(Encoding::Json, body),
        "delete" | "deletecollection" => decode::delete_options(headers, body).ok(),
        _ => None,
    }
}

/// With its defaults set, if it is an object of the resource.
fn object(headers: &HeaderMap, body: &Bytes, resource: &Resource, subresource: &str) -> Option<Value> {
    let own = resource.kind.group_version_kind();
    let kind = match subresource {
        "" => own.clone(),
        name => resource.kind.subresource(name)?.kind.clone(),
    };
    let expected = if kind == own { Expected::of(resource) } else { Expected::built_in(kind) }.ok()?;
    let encoding = accept::body_encoding(headers, expected.custom.is_some()).ok()?;
    let mut object = match decode::typed(encoding, &expected, body) {
        Ok(decoded) => decoded.value,
        // Some handlers accept objects of other versions.
        Err(_) if encoding == Encoding::Protobuf => protobuf::decode(body, Some(&expected.kind)).ok()?,
        Err(_) => return untyped(encoding, body),
    };
    if subresource.is_empty() && list_items::check(&object).is_ok() {
        // What was sent is recorded, whatever its defaults are.
        let _ = set_defaults(resource, &mut object);
    }
    if let Some(fields) = object.as_object_mut() {
        fields.insert("kind".to_owned(), expected.kind.kind.as_str().into());
        fields.insert("apiVersion".to_owned(), expected.kind.api_version().into());
    }
    Some(object)
}

fn untyped(encoding: Encoding, body: &Bytes) -> Option<Value> {
    let decoded = match encoding {
        Encoding::Yaml => plain::untyped_yaml(body),
        Encoding::Json | Encoding::Protobuf => plain::untyped_json(body),
    };
    decoded.ok().map(|decoded| decoded.value)
}
