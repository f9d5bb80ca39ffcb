//! Builds a status patch that leaves fields of other components unchanged.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::{Map, Value, json};

use crate::pod;

pub fn differs(old: &PodStatus, new: &PodStatus) -> bool {
    old != new
}

/// A strategic merge patch: conditions are merged by type, address lists replaced, and removed fields set to null. The
/// uid makes it fail on another pod of the same name.
pub fn patch(pod: &Pod, old: &PodStatus, new: &PodStatus) -> Result<Value, serde_json::Error> {
    let (old, new) = (object(old)?, object(new)?);
    let mut status = Map::new();
    for (key, value) in &new {
        if old.get(key) == Some(value) {
            continue;
        }
        let value = match key.as_str() {
            "conditions" => changed_conditions(old.get(key), value),
            "podIPs" | "hostIPs" => replaced(value),
            _ => value.clone(),
        };
        status.insert(key.clone(), value);
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        status.insert(key.clone(), Value::Null);
    }
    Ok(json!({ "metadata": { "uid": pod::uid(pod) }, "status": status }))
}

fn object(status: &PodStatus) -> Result<Map<String, Value>, serde_json::Error> {
    match serde_json::to_value(status)? {
        Value::Object(map) => Ok(map),
        _ => Ok(Map::new()),
    }
}

/// Only changed conditions, so that a concurrent write of another component is not overwritten.
fn changed_conditions(old: Option<&Value>, new: &Value) -> Value {
    let known: &[Value] = old.and_then(Value::as_array).map_or(&[], Vec::as_slice);
    let own =
        |condition: &&Value| condition["type"].as_str().is_some_and(|kind| super::conditions::OWN.contains(&kind));
    let changed = new.as_array().into_iter().flatten().filter(own).filter(|condition| !known.contains(condition));
    let gone = known.iter().filter(own).filter(|condition| {
        let same_kind = |other: &Value| other["type"] == condition["type"];
        !new.as_array().is_some_and(|list| list.iter().any(same_kind))
    });
    let removed = gone.map(|condition| json!({ "$patch": "delete", "type": condition["type"] }));
    let list = changed
        .map(|condition| {
            let mut condition = condition.clone();
            // A field that went away must be named to be removed.
            if let Some(map) = condition.as_object_mut() {
                for field in ["reason", "message"] {
                    map.entry(field).or_insert(Value::Null);
                }
            }
            condition
        })
        .chain(removed)
        .collect();
    Value::Array(list)
}

fn replaced(value: &Value) -> Value {
    let mut list = vec![json!({ "$patch": "replace" })];
    list.extend(value.as_array().into_iter().flatten().cloned());
    Value::Array(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_written() {
        let status = |value: Value| serde_json::from_value::<PodStatus>(value).expect("a status");
        let old = status(json!({ "phase": "Pending", "reason": "x", "podIP": "1",
            "conditions": [{ "type": "Initialized", "status": "True" }, { "type": "Ready", "status": "False", "reason": "r" }] }));
        let new = status(json!({ "phase": "Running", "podIP": "1", "podIPs": [{ "ip": "1" }],
            "conditions": [{ "type": "Initialized", "status": "True" }, { "type": "Ready", "status": "True" }] }));
        let pod =
            Pod { metadata: serde_json::from_value(json!({ "uid": "u" })).expect("metadata"), ..Default::default() };
        assert_eq!(
            patch(&pod, &old, &new).expect("a patch"),
            json!({ "metadata": { "uid": "u" }, "status": { "phase": "Running", "reason": null,
                "podIPs": [{ "$patch": "replace" }, { "ip": "1" }],
                "conditions": [{ "type": "Ready", "status": "True", "reason": null, "message": null }] } })
        );
    }
}
