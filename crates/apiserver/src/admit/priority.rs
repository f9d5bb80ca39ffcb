//! Priority: sets a pod's priority from its priority class, and refuses a second default class.

use async_trait::async_trait;
use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use serde_json::Value;

use super::{Operation, Plugin, Write};
use crate::object_reader::ObjectReader;

const GROUP: &str = "scheduling.k8s.io";

pub struct Priority;

#[async_trait]
impl Plugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        match write.operation {
            Operation::Create | Operation::Update => write.is("", "pods") || write.is(GROUP, "priorityclasses"),
            Operation::Delete => write.is(GROUP, "priorityclasses"),
            Operation::Connect => false,
        }
    }

    async fn admit(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        if !write.is("", "pods") {
            return Ok(());
        }
        match write.old {
            Some(old) if write.operation == Operation::Update => {
                for field in ["priority", "preemptionPolicy"] {
                    if old.has(&["spec", field]) {
                        write.object.set_default(&["spec", field], old.at(&["spec", field]).clone());
                    }
                }
                Ok(())
            }
            _ => set_priority(write, objects),
        }
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        if write.operation == Operation::Delete {
            return match write.known_name() {
                "system-node-critical" | "system-cluster-critical" => {
                    Err(write.forbidden("this is a system priority class and cannot be deleted"))
                }
                _ => Ok(()),
            };
        }
        if !write.is(GROUP, "priorityclasses") || write.object.flag(&["globalDefault"]) != Some(true) {
            return Ok(());
        }
        let Some(other) = default_class(objects)? else { return Ok(()) };
        let other = other.text(&["metadata", "name"]);
        if write.operation == Operation::Create || other != write.object.text(&["metadata", "name"]) {
            let why = format!("PriorityClass {other} is already marked as default. Only one default can exist");
            return Err(write.forbidden(why));
        }
        Ok(())
    }
}

/// The default class; of several, the one with the lowest value.
fn default_class(objects: &dyn ObjectReader) -> Result<Option<std::sync::Arc<Value>>, Status> {
    let classes = objects.read_all(GROUP, "priorityclasses", "")?;
    let defaults = classes.into_iter().filter(|class| class.flag(&["globalDefault"]) == Some(true));
    Ok(defaults.min_by_key(|class| class.integer(&["value"])))
}

fn set_priority(write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
    let name = write.object.text(&["spec", "priorityClassName"]);
    let (priority, policy) = if name.is_empty() {
        match default_class(objects)? {
            Some(class) => {
                write.object.set(&["spec", "priorityClassName"], class.text(&["metadata", "name"]));
                (class.integer(&["value"]).unwrap_or(0), class.text(&["preemptionPolicy"]).to_owned())
            }
            None => (0, "PreemptLowerPriority".to_owned()),
        }
    } else {
        let Some(class) = objects.read(GROUP, "priorityclasses", "", name)? else {
            return Err(write.forbidden(format!("no PriorityClass with name {name} was found")));
        };
        (class.integer(&["value"]).unwrap_or(0), class.text(&["preemptionPolicy"]).to_owned())
    };
    if let Some(given) = write.object.integer(&["spec", "priority"])
        && given != priority
    {
        return Err(write.forbidden(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller \
             computed {priority} from the given PriorityClass name"
        )));
    }
    write.object.set(&["spec", "priority"], priority);
    if policy.is_empty() {
        return Ok(());
    }
    let given = write.object.text(&["spec", "preemptionPolicy"]);
    if !given.is_empty() && given != policy {
        return Err(write.forbidden(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission \
             controller computed {policy} from the given PriorityClass name"
        )));
    }
    write.object.set(&["spec", "preemptionPolicy"], policy);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::object_reader::tests::Fixed;
    use serde_json::json;

    #[tokio::test]
    async fn priority_comes_from_the_class() {
        let class = |name: &str, value: i64, default: bool| {
            json!({"metadata": {"name": name}, "value": value, "globalDefault": default,
                "preemptionPolicy": "PreemptLowerPriority"})
        };
        let objects = Fixed::new(vec![(GROUP, "priorityclasses", class("high", 7, false))]);
        let with_default = Fixed::new(vec![(GROUP, "priorityclasses", class("usual", 3, true))]);
        let pod = |spec: Value| json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
        for (objects, spec, expected) in [
            (&objects, json!({}), Ok(0)),
            (&objects, json!({"priorityClassName": "high"}), Ok(7)),
            (&objects, json!({"priorityClassName": "none"}), Err("no PriorityClass with name none was found")),
            (&objects, json!({"priority": 9}), Err("the integer value of priority (9) must not")),
            (&with_default, json!({}), Ok(3)),
        ] {
            let made = run(&Priority, Operation::Create, ("", "pods"), pod(spec.clone()), None, objects).await;
            match (made, expected) {
                (Ok(pod), Ok(priority)) => assert_eq!(pod.integer(&["spec", "priority"]), Some(priority), "{spec}"),
                (Err(message), Err(part)) => assert!(message.contains(part), "{message}"),
                (made, _) => panic!("{spec}: {made:?}"),
            }
        }
    }
}
