//! Encodes objects in the negotiated representation.

use http::Response;
use knarr_api::protobuf;
use knarr_api::status::Status;
use serde_json::{Map, Value, json};

use super::table::{self, IncludeObject};
use super::yaml;
use super::{Body, with_type};
use crate::kinds::Resource;
use crate::persist::Outcome;
use crate::resource_request::Backend;
use crate::route::accept::{Encoding, Format, Shape};
use crate::stored;

/// A response with one object of a resource.
pub fn object(
    resource: &Resource,
    outcome: &Outcome,
    code: u16,
    format: &Format,
    include: IncludeObject,
) -> Result<Response<Body>, Status> {
    if let (Outcome::Stored(entry), true) = (outcome, format.is_plain()) {
        let mut bytes = Vec::with_capacity(entry.value_len() + 48);
        stored::append_object(&mut bytes, resource, entry)?;
        bytes.push(b'\n');
        return Ok(with_type(code, format.media_type(), Body::full(bytes)));
    }
    let mut object = outcome.value()?;
    stored::to_served(resource, &mut object);
    let shaped = match format.shape {
        Shape::Whole => object,
        Shape::Partial => table::partial(resource, &object, format.meta_version),
        Shape::PartialList if resource.custom.is_some() => return Err(Status::new(500, "", "content is not a list")),
        Shape::PartialList => {
            return Err(not_acceptable(format!(
                "you requested PartialObjectMetadataList, but the requested object is not a list ({})",
                type_of(resource, "")
            )));
        }
        Shape::Table => {
            let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
            table::Tables::new(resource, format.meta_version, include).of(metadata, [object])
        }
    };
    Ok(value(&shaped, code, format))
}

/// A response with the object after a write, converted to the served version.
pub async fn written(
    backend: &Backend,
    resource: &Resource,
    outcome: Outcome,
    code: u16,
    format: &Format,
    include: IncludeObject,
) -> Result<Response<Body>, Status> {
    let outcome = outcome.converted(backend, resource).await?;
    object(resource, &outcome, code, format, include)
}

pub(super) fn not_acceptable(text: String) -> Status {
    Status::new(406, "NotAcceptable", text)
}

/// The name of the type of objects in messages.
pub(super) fn type_of(resource: &Resource, suffix: &str) -> String {
    match resource.kind.group.as_str() {
        _ if resource.custom.is_some() => format!("*unstructured.Unstructured{suffix}"),
        "" | "events.k8s.io" => format!("*core.{}{suffix}", resource.kind.kind),
        group => format!("*{}.{}{suffix}", group.split('.').next().unwrap_or(group), resource.kind.kind),
    }
}

/// The encoded bytes of an object.
pub fn served_bytes(value: &Value, format: &Format) -> Vec<u8> {
    match format.encoding {
        Encoding::Json if format.pretty => {
            let mut bytes = serde_json::to_vec_pretty(value).unwrap_or_default();
            bytes.push(b'\n');
            bytes
        }
        Encoding::Json => {
            let mut bytes = ordered(value);
            bytes.push(b'\n');
            bytes
        }
        Encoding::Yaml => yaml::write(value).into_bytes(),
        Encoding::Protobuf => protobuf::encode(value).unwrap_or_else(|error| {
            tracing::error!(%error, kind = %value["kind"], "cannot encode an object as protobuf");
            let status = Status::internal(error).to_value();
            protobuf::encode(&status).unwrap_or_default()
        }),
    }
}

/// The order of the fields of a resource in discovery, which scripts match as text.
const RESOURCE: [&str; 10] = [
    "name",
    "singularName",
    "namespaced",
    "group",
    "version",
    "kind",
    "verbs",
    "shortNames",
    "categories",
    "storageVersionHash",
];

/// Encodes kind and apiVersion first, as readers expect.
fn ordered(value: &Value) -> Vec<u8> {
    let Some(fields) = value.as_object().filter(|fields| fields.contains_key("kind")) else {
        return serde_json::to_vec(value).unwrap_or_default();
    };
    let is_discovery = fields["kind"] == "APIResourceList";
    let mut bytes = Vec::with_capacity(512);
    write_object(&mut bytes, fields, &["kind", "apiVersion", "metadata"], |bytes, key, value| {
        match value.as_array().filter(|_| is_discovery && key == "resources") {
            Some(resources) => write_resources(bytes, resources),
            None => write(bytes, value),
        }
    });
    bytes
}

fn write_resources(bytes: &mut Vec<u8>, resources: &[Value]) {
    bytes.push(b'[');
    for (at, resource) in resources.iter().enumerate() {
        if at > 0 {
            bytes.push(b',');
        }
        match resource.as_object() {
            Some(fields) => write_object(bytes, fields, &RESOURCE, |bytes, _, value| write(bytes, value)),
            None => write(bytes, resource),
        }
    }
    bytes.push(b']');
}

/// Writes an object with these fields first.
fn write_object(
    bytes: &mut Vec<u8>,
    fields: &Map<String, Value>,
    order: &[&str],
    write_value: impl Fn(&mut Vec<u8>, &str, &Value),
) {
    bytes.push(b'{');
    let first = order.iter().filter_map(|key| fields.get_key_value(*key));
    let rest = fields.iter().filter(|(key, _)| !order.contains(&key.as_str()));
    for (at, (key, value)) in first.chain(rest).enumerate() {
        if at > 0 {
            bytes.push(b',');
        }
        write(bytes, key);
        bytes.push(b':');
        write_value(bytes, key, value);
    }
    bytes.push(b'}');
}

/// Writing JSON into memory does not fail.
fn write(bytes: &mut Vec<u8>, value: &(impl serde::Serialize + ?Sized)) {
    let _ = serde_json::to_writer(bytes, value);
}

/// A response with any object that names its kind.
pub fn value(value: &Value, code: u16, format: &Format) -> Response<Body> {
    with_type(code, format.media_type(), Body::full(served_bytes(value, format)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_have_the_order_of_kubernetes() {
        let resource = json!({"categories": ["all"], "kind": "Pod", "name": "pods", "namespaced": true,
            "shortNames": ["po"], "singularName": "pod", "storageVersionHash": "h", "verbs": ["get"]});
        for (value, expected) in [
            (
                json!({"metadata": {}, "kind": "Pod", "apiVersion": "v1", "a": 1}),
                r#"{"kind":"Pod","apiVersion":"v1","metadata":{},"a":1}"#,
            ),
            (json!({"b": 1, "a": 2}), r#"{"a":2,"b":1}"#),
            (
                json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": [resource]}),
                r#"{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","verbs":["get"],"shortNames":["po"],"categories":["all"],"storageVersionHash":"h"}]}"#,
            ),
            (
                json!({"kind": "Other", "resources": [{"name": 1, "kind": 2}]}),
                r#"{"kind":"Other","resources":[{"kind":2,"name":1}]}"#,
            ),
        ] {
            assert_eq!(String::from_utf8(ordered(&value)).unwrap(), expected);
        }
    }
}
