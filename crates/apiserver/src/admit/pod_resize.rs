//! PodResizeValidator: refuses to resize a pod beyond the allocatable resources of its node.

use async_trait::async_trait;
use knarr_api::quantity::Quantity;
use knarr_api::status::Status;
use knarr_api::value::Read;
use knarr_rules::common::resources::{Side, list, of_pod};
use serde_json::Value;

use super::{Operation, Plugin, Write};
use crate::object_reader::ObjectReader;

pub struct PodResizeValidator;

#[async_trait]
impl Plugin for PodResizeValidator {
    fn name(&self) -> &'static str {
        "PodResizeValidator"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Update && write.subresource == "resize" && write.is_part_of("", "pods")
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let name = write.object.text(&["spec", "nodeName"]);
        let generation = |pod: &Value| pod.integer(&["metadata", "generation"]);
        if name.is_empty() || write.old.is_none_or(|old| generation(old) == generation(write.object)) {
            return Ok(());
        }
        let Some(node) = objects.read("", "nodes", "", name)? else {
            return Err(write.forbidden(format!("node {name:?} not found")));
        };
        match refusal(write.object, &node) {
            Some((reason, why)) => Err(write.forbidden(why).with_cause(reason, "", "")),
            None => Ok(()),
        }
    }
}

/// Why a node cannot run a pod of this size.
fn refusal(pod: &Value, node: &Value) -> Option<(&'static str, String)> {
    let os = node.at(&["metadata", "labels"]).text(&["kubernetes.io/os"]);
    if !matches!(os, "" | "linux") {
        let name = node.text(&["metadata", "name"]);
        let why = format!("pod resize is only supported on linux nodes, node {name:?} is {os:?}");
        return Some(("UnsupportedPlatform", why));
    }
    let (requested, allocatable) = (of_pod(pod, Side::Requests), list(node.at(&["status", "allocatable"])));
    let zero = Quantity::default();
    let mut short = Vec::new();
    for (resource, rendered) in [("cpu", Quantity::milli_value as fn(&Quantity) -> i64), ("memory", Quantity::value)] {
        let (requested, allocatable) =
            (requested.get(resource).unwrap_or(&zero), allocatable.get(resource).unwrap_or(&zero));
        if requested > allocatable {
            short.push(format!(
                "{resource}, requested: {}, allocatable: {}",
                rendered(requested),
                rendered(allocatable)
            ));
        }
    }
    let why = format!("node didn't have enough allocatable resources: {}", short.join("; "));
    (!short.is_empty()).then_some(("NodeCapacity", why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nodes_refuse_what_they_cannot_carry() {
        let pod = json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "5", "memory": "1Gi"}}}]}});
        let node = |os: &str, cpu: &str| {
            json!({"metadata": {"name": "n", "labels": {"kubernetes.io/os": os}},
                "status": {"allocatable": {"cpu": cpu, "memory": "2Gi"}}})
        };
        for (node, expected) in [
            (node("linux", "5"), None),
            (
                node("linux", "2"),
                Some("node didn't have enough allocatable resources: cpu, requested: 5000, allocatable: 2000"),
            ),
            (node("windows", "9"), Some("pod resize is only supported on linux nodes, node \"n\" is \"windows\"")),
        ] {
            assert_eq!(refusal(&pod, &node).map(|(_, why)| why).as_deref(), expected);
        }
    }
}
