//! RuntimeClass: sets the overhead and scheduling constraints of a pod from its runtime class.

use async_trait::async_trait;
use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use serde_json::Value;

use super::{Plugin, Write};
use crate::object_reader::ObjectReader;

pub struct RuntimeClass;

#[async_trait]
impl Plugin for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.creates("", "pods")
    }

    async fn admit(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let name = write.object.text(&["spec", "runtimeClassName"]);
        if name.is_empty() {
            return Ok(());
        }
        let Some(class) = objects.read("node.k8s.io", "runtimeclasses", "", name)? else {
            return Err(write.forbidden(format!("pod rejected: RuntimeClass {name:?} not found")));
        };
        set_overhead(write, class.at(&["overhead", "podFixed"]))?;
        set_placement(write, class.at(&["scheduling"]))
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let overhead = write.object.at(&["spec", "overhead"]);
        let given = overhead.as_object().is_some_and(|overhead| !overhead.is_empty());
        let name = write.object.text(&["spec", "runtimeClassName"]);
        let class = objects.read("node.k8s.io", "runtimeclasses", "", name)?;
        let fixed = class.as_ref().map(|class| class.at(&["overhead", "podFixed"])).unwrap_or(&Value::Null);
        if !given {
            return Ok(());
        }
        if fixed.is_null() {
            return Err(
                write.forbidden("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
            );
        }
        if fixed != overhead {
            return Err(write.forbidden("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"));
        }
        Ok(())
    }
}

fn set_overhead(write: &mut Write<'_>, overhead: &Value) -> Result<(), Status> {
    if overhead.is_null() {
        return Ok(());
    }
    let given = write.object.at(&["spec", "overhead"]);
    if given.as_object().is_some_and(|given| !given.is_empty()) && given != overhead {
        return Err(write.forbidden("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"));
    }
    write.object.set(&["spec", "overhead"], overhead.clone());
    Ok(())
}

fn set_placement(write: &mut Write<'_>, scheduling: &Value) -> Result<(), Status> {
    for (key, value) in scheduling.fields(&["nodeSelector"]).into_iter().flatten() {
        let own = write.object.at(&["spec", "nodeSelector"]).get(key);
        if own.is_some_and(|own| own != value) {
            return Err(write.forbidden(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                value.as_str().unwrap_or_default(),
                own.and_then(Value::as_str).unwrap_or_default()
            )));
        }
        write.object.object(&["spec", "nodeSelector"]).insert(key.clone(), value.clone());
    }
    let added = scheduling.items(&["tolerations"]);
    if !added.is_empty() {
        let mut tolerations = write.object.items(&["spec", "tolerations"]).to_vec();
        for toleration in added {
            if !tolerations.contains(toleration) {
                tolerations.push(toleration.clone());
            }
        }
        write.object.set(&["spec", "tolerations"], tolerations);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Operation;
    use super::super::tests::run;
    use super::*;
    use crate::object_reader::tests::Fixed;
    use serde_json::json;

    #[tokio::test]
    async fn overhead_and_placement_come_from_the_class() {
        let class = json!({"metadata": {"name": "kata"}, "handler": "kata",
            "overhead": {"podFixed": {"cpu": "250m"}}, "scheduling": {"nodeSelector": {"vm": "yes"}}});
        let objects = Fixed::new(vec![("node.k8s.io", "runtimeclasses", class)]);
        for (spec, expected) in [
            (json!({"runtimeClassName": "kata"}), Ok(json!({"cpu": "250m"}))),
            (json!({"runtimeClassName": "none"}), Err("RuntimeClass \"none\" not found")),
            (json!({"overhead": {"cpu": "1"}}), Err("Pod Overhead set without")),
            (json!({"runtimeClassName": "kata", "overhead": {"cpu": "1"}}), Err("doesn't match")),
            (json!({"runtimeClassName": "kata", "nodeSelector": {"vm": "no"}}), Err("conflict:")),
        ] {
            let pod = json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
            match (run(&RuntimeClass, Operation::Create, ("", "pods"), pod, None, &objects).await, expected) {
                (Ok(pod), Ok(overhead)) => assert_eq!(pod["spec"]["overhead"], overhead),
                (Err(message), Err(part)) => assert!(message.contains(part), "{message}"),
                (made, _) => panic!("{made:?}"),
            }
        }
    }
}
