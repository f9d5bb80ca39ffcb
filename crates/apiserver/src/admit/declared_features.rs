//! NodeDeclaredFeatureValidator: refuses an update of a bound pod that needs a feature which its node does not declare.

use async_trait::async_trait;
use knarr_api::status::Status;
use knarr_api::value::Read;
use serde_json::Value;

use super::{Operation, Plugin, Write};
use crate::object_reader::ObjectReader;

pub struct NodeDeclaredFeatureValidator;

#[async_trait]
impl Plugin for NodeDeclaredFeatureValidator {
    fn name(&self) -> &'static str {
        "NodeDeclaredFeatureValidator"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        let is_spec = matches!(write.subresource, "" | "resize");
        write.operation == Operation::Update && is_spec && write.is_part_of("", "pods")
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let name = write.object.text(&["spec", "nodeName"]);
        let Some(old) = write.old.filter(|_| !name.is_empty()) else { return Ok(()) };
        let needed = needed_features(old, write.object);
        if needed.is_empty() {
            return Ok(());
        }
        let Some(node) = objects.read("", "nodes", "", name)? else {
            return Err(write.forbidden(format!("node {name:?} not found")));
        };
        let missing = undeclared(&needed, &node);
        if missing.is_empty() {
            return Ok(());
        }
        let missing = missing.join(", ");
        Err(write.forbidden(format!("pod update requires features {missing} which are not available on node {name:?}")))
    }
}

/// The features that the change of a pod needs, sorted by name.
fn needed_features(old: &Value, new: &Value) -> Vec<&'static str> {
    let resizes_pod = old.at(&["spec", "resources"]) != new.at(&["spec", "resources"]);
    let features = [
        ("InPlacePodLevelResourcesVerticalScaling", resizes_pod),
        ("InPlacePodVerticalScalingInitContainers", resizes_init_container(old, new)),
    ];
    features.into_iter().filter(|(_, is_needed)| *is_needed).map(|(feature, _)| feature).collect()
}

/// Sidecars are resized as containers are.
fn resizes_init_container(old: &Value, new: &Value) -> bool {
    let of = |pod| Value::items(pod, &["spec", "initContainers"]);
    of(old)
        .iter()
        .zip(of(new))
        .any(|(old, new)| old.text(&["restartPolicy"]) != "Always" && old.at(&["resources"]) != new.at(&["resources"]))
}

fn undeclared<'f>(needed: &[&'f str], node: &Value) -> Vec<&'f str> {
    let declared = node.items(&["status", "declaredFeatures"]);
    needed.iter().copied().filter(|feature| !declared.iter().any(|own| own == feature)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_resizes_of_pods_and_init_containers_need_features() {
        let pod = |resources: &str, restart: &str, init: &str| {
            json!({"spec": {"nodeName": "n", "resources": {"requests": {"cpu": resources}},
                "initContainers": [{"name": "i", "restartPolicy": restart, "resources": {"requests": {"cpu": init}}}]}})
        };
        let before = pod("1", "", "1");
        for (old, new, needed) in [
            (before.clone(), before.clone(), &[][..]),
            (before.clone(), pod("2", "", "1"), &["InPlacePodLevelResourcesVerticalScaling"]),
            (before.clone(), pod("1", "", "2"), &["InPlacePodVerticalScalingInitContainers"]),
            (pod("1", "Always", "1"), pod("1", "Always", "2"), &[]),
        ] {
            assert_eq!(needed_features(&old, &new), needed, "{new}");
        }
        let node = json!({"status": {"declaredFeatures": ["InPlacePodLevelResourcesVerticalScaling"]}});
        let both = ["InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers"];
        assert_eq!(undeclared(&both, &node), ["InPlacePodVerticalScalingInitContainers"]);
        assert_eq!(undeclared(&both, &json!({})), both);
    }
}
