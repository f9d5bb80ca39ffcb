//! What the store indexes besides keys: pods by their node, so that the pods of a node and the watches that a change of them
//! concerns are found without looking at others; and nodes by everything but their heartbeats, so that heartbeats wake no
//! watch that omits them.

use std::hash::{DefaultHasher, Hash, Hasher};

use knarr_api::value::Write;
use knarr_store::TopicIndex;
use serde_json::Value;

use super::Selection;
use super::projection::Projection;
use crate::kinds::Resource;

/// The index of pods by the node that they are bound to.
pub const PODS_BY_NODE: TopicIndex = TopicIndex { group: "/registry/pods/", topic_of: node_of };

/// The index of nodes by a fingerprint of what is more than a heartbeat.
pub const NODES_BY_STATE: TopicIndex = TopicIndex { group: "/registry/minions/", topic_of: state_of };

const FIELD: &str = "spec.nodeName";
const NODE_NAME: Projection = Projection::Fields(&[("spec", Projection::Fields(&[("nodeName", Projection::All)]))]);

/// The node of a stored pod, empty if it has none; `None` if the bytes cannot be read, as when they are encrypted.
fn node_of(stored: &[u8]) -> Option<String> {
    let pod = NODE_NAME.read(stored).ok()?;
    Some(pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned())
}

/// A fingerprint of a stored node without the times of its heartbeats; `None` if the bytes cannot be read.
fn state_of(stored: &[u8]) -> Option<String> {
    let mut node: Value = serde_json::from_slice(stored).ok()?;
    node.remove(&["metadata", "managedFields"]);
    if let Some(Value::Array(conditions)) = node.pointer_mut("/status/conditions") {
        for condition in conditions {
            condition.remove(&["lastHeartbeatTime"]);
        }
    }
    let mut hasher = DefaultHasher::new();
    node.to_string().hash(&mut hasher);
    Some(format!("{:016x}", hasher.finish()))
}

/// The topic that holds everything a selection of a resource can match, if there is one.
pub fn of<'s>(resource: &Resource, selection: &'s Selection) -> Option<&'s str> {
    let is_pod = resource.kind.plural == "pods" && resource.kind.group.is_empty();
    if is_pod { selection.fields.exact(FIELD).filter(|node| !node.is_empty()) } else { None }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use knarr_api::catalogue::Catalogue;

    use super::*;
    use crate::kinds::{Kinds, no_descriptions};

    #[test]
    fn heartbeats_do_not_change_the_state_of_a_node() {
        let node = r#"{"kind":"Node","metadata":{"name":"n","managedFields":[1]},"spec":{},"status":{"conditions":[
            {"type":"Ready","status":"True","lastHeartbeatTime":"1"}]}}"#;
        for (other, same) in [
            (node.replace("\"1\"", "\"2\""), true),
            (node.replace("[1]", "[1,2]"), true),
            (node.replace("True", "False"), false),
            (node.replace("\"spec\":{}", "\"spec\":{\"unschedulable\":true}"), false),
            (node.replace("\"n\"", "\"n\",\"labels\":{\"a\":\"b\"}"), false),
        ] {
            assert_eq!(state_of(node.as_bytes()) == state_of(other.as_bytes()), same, "{other}");
        }
        assert_eq!(state_of(b"k8s:enc:"), None);
    }

    #[test]
    fn groups_are_those_of_the_stored_kinds() {
        let kinds = Kinds::new(Catalogue::built_in(), &HashMap::new(), no_descriptions());
        for (plural, index) in [("pods", PODS_BY_NODE), ("nodes", NODES_BY_STATE)] {
            assert_eq!(kinds.resource("", "v1", plural).unwrap().range(""), index.group);
        }
    }

    #[test]
    fn the_node_of_a_stored_pod() {
        for (stored, node) in [
            (r#"{"kind":"Pod","metadata":{"labels":{"nodeName":"x"}},"spec":{"nodeName":"n"}}"#, Some("n")),
            (
                r#"{"kind":"Pod","metadata":{"labels":{"nodeName":"x"}},"spec":{"containers":[{"nodeName":"x"}]}}"#,
                Some(""),
            ),
            (r#"{"kind":"Pod"}"#, Some("")),
            ("k8s:enc:aescbc:v1:key:\u{1}", None),
            ("", None),
        ] {
            assert_eq!(node_of(stored.as_bytes()).as_deref(), node, "{stored}");
        }
    }
}
