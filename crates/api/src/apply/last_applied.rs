//! kubectl's last-applied annotation, with which server-side apply takes over from client-side apply.

use super::compare::compare;
use super::field_set::field_set;
use super::set::Set;
use super::typing::Type;
use crate::decode;
use serde_json::{Value, json};

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The maximum size of all annotations together.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// The fields that kubectl applied client-side and that did not change since: applying them is no conflict.
pub(super) fn still_as_applied(live: &Value, api_version: &str, kind: Type<'_>) -> Option<Set> {
    let text = annotation(live)?;
    let applied = decode::untyped_json(text.as_bytes()).ok()?.value;
    if applied.get("apiVersion").and_then(Value::as_str) != Some(api_version) {
        return None;
    }
    let comparison = compare(&applied, live, kind).ok()?;
    let set = field_set(&applied, kind);
    Some(set.difference(&comparison.modified).difference(&comparison.added).difference(&comparison.removed))
}

/// Updates the annotation if there is one, so that client-side apply can continue.
pub(super) fn record(object: &mut Value, configuration: &Value) {
    if annotation(object).is_none() {
        return;
    }
    let mut recorded = configuration.clone();
    if let Some(Value::Object(annotations)) = recorded.pointer_mut("/metadata/annotations") {
        annotations.remove(ANNOTATION);
        if annotations.is_empty()
            && let Some(Value::Object(metadata)) = recorded.get_mut("metadata")
        {
            metadata.remove("annotations");
        }
    }
    let Some(Value::Object(annotations)) = object.pointer_mut("/metadata/annotations") else { return };
    annotations.insert(ANNOTATION.to_owned(), json!(format!("{recorded}\n")));
    let size: usize = annotations.iter().map(|(name, text)| name.len() + text.as_str().map_or(0, str::len)).sum();
    if size > MAX_ANNOTATIONS {
        annotations.remove(ANNOTATION);
    }
}

fn annotation(object: &Value) -> Option<&str> {
    let text = object.get("metadata")?.get("annotations")?.get(ANNOTATION)?.as_str()?;
    (!text.is_empty()).then_some(text)
}
