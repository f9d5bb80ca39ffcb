//! Decoding of the metadata in custom resources, which has a type of its own.

use super::place::Place;
use crate::decode::{self, DecodeError, StrictProblem};
use crate::json_schema::JsonSchemaProps;
use crate::schema::{NodeRef, builtin};
use serde_json::{Map, Value};

/// Normalizes an object's metadata. Removes unknown fields and adds their paths to `unknown`.
///
/// Malformed fields are an error, or removed if `drop_malformed` is set (for stored objects).
pub(super) fn coerce_metadata(
    object: &mut Map<String, Value>,
    path: &str,
    drop_malformed: bool,
    unknown: &mut Vec<String>,
) -> Result<(), DecodeError> {
    let (Some(metadata), Some(node)) = (object.get_mut("metadata"), object_meta()) else { return Ok(()) };
    let mut value = match decode::value(metadata, node) {
        Ok(decoded) => {
            unknown.extend(decoded.problems.iter().filter_map(|problem| match problem {
                StrictProblem::Unknown(name) | StrictProblem::Duplicate(name) => Some(format!("{path}metadata.{name}")),
                StrictProblem::Yaml(_) => None,
            }));
            decoded.value
        }
        Err(error) if !drop_malformed => return Err(error),
        Err(_) => match metadata {
            Value::Object(fields) => readable_fields(fields, node),
            _ => return Ok(()),
        },
    };
    decode::normalize(&mut value, node);
    *metadata = value;
    Ok(())
}

/// Does the same for the resources embedded in an object.
pub(super) fn coerce_embedded(
    value: &mut Value,
    props: &JsonSchemaProps,
    place: &Place<'_>,
    drop_malformed: bool,
    unknown: &mut Vec<String>,
) -> Result<(), String> {
    match value {
        Value::Object(fields) => {
            if props.embedded {
                let path = place.prefix();
                for name in ["apiVersion", "kind"] {
                    match fields.get(name) {
                        Some(Value::String(_)) | None => {}
                        Some(_) if drop_malformed => drop(fields.remove(name)),
                        Some(other) => {
                            let other = if let Value::String(text) = other { text.clone() } else { other.to_string() };
                            return Err(format!("{path}{name}: Invalid value: {other}: must be a string"));
                        }
                    }
                }
                if let Err(error) = coerce_metadata(fields, &path, drop_malformed, unknown) {
                    let shown = fields.get("metadata").cloned().unwrap_or_default();
                    return Err(format!("{path}metadata: Invalid value: {shown}: {error}"));
                }
            }
            for (name, value) in fields.iter_mut() {
                if let Some(child) = props.child(name) {
                    coerce_embedded(value, child, &Place::Field(place, name), drop_malformed, unknown)?;
                }
            }
        }
        Value::Array(items) => {
            let Some(element) = props.items.as_deref() else { return Ok(()) };
            for (at, item) in items.iter_mut().enumerate() {
                coerce_embedded(item, element, &Place::Index(place, at), drop_malformed, unknown)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn readable_fields(fields: &Map<String, Value>, node: NodeRef<'_>) -> Value {
    let mut readable = Map::new();
    for (name, value) in fields {
        let mut single = Map::new();
        single.insert(name.clone(), value.clone());
        if let Ok(decoded) = decode::value(&Value::Object(single), node)
            && let Value::Object(read) = decoded.value
        {
            readable.extend(read);
        }
    }
    Value::Object(readable)
}

fn object_meta() -> Option<NodeRef<'static>> {
    builtin().node_named("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")
}
