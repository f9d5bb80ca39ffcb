//! Plugins that set defaults: tolerations, the taint of a new node, the default ingress class, topology labels.

use async_trait::async_trait;
use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use serde_json::{Value, json};

use super::{Operation, Plugin, Write};
use crate::object_reader::ObjectReader;

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Gives pods without own settings tolerations to stay for a while on a node that is not ready or unreachable.
#[derive(Clone, Copy, Debug)]
pub struct DefaultTolerationSeconds {
    pub not_ready: i64,
    pub unreachable: i64,
}

impl Default for DefaultTolerationSeconds {
    fn default() -> Self {
        DefaultTolerationSeconds { not_ready: 300, unreachable: 300 }
    }
}

#[async_trait]
impl Plugin for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        matches!(write.operation, Operation::Create | Operation::Update) && write.is("", "pods")
    }

    async fn admit(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        let mut tolerations = write.object.items(&["spec", "tolerations"]).to_vec();
        let before = tolerations.len();
        for (key, seconds) in [(NOT_READY, self.not_ready), (UNREACHABLE, self.unreachable)] {
            let tolerated = tolerations.iter().any(|toleration| {
                let named = toleration.text(&["key"]);
                let effect = toleration.text(&["effect"]);
                (named.is_empty() || named == key) && (effect.is_empty() || effect == "NoExecute")
            });
            if !tolerated {
                tolerations.push(json!({
                    "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds,
                }));
            }
        }
        if tolerations.len() > before {
            write.object.set(&["spec", "tolerations"], tolerations);
        }
        Ok(())
    }
}

/// Taints new nodes so that no pods are scheduled to them until they are ready.
pub struct TaintNodesByCondition;

#[async_trait]
impl Plugin for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.creates("", "nodes")
    }

    async fn admit(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        let mut taints = write.object.items(&["spec", "taints"]).to_vec();
        let is_taint = |taint: &Value| taint.text(&["key"]) == NOT_READY && taint.text(&["effect"]) == "NoSchedule";
        if !taints.iter().any(is_taint) {
            taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
            write.object.set(&["spec", "taints"], taints);
        }
        Ok(())
    }
}

/// Sets the default class of an ingress without a class.
pub struct DefaultIngressClass;

#[async_trait]
impl Plugin for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.creates("networking.k8s.io", "ingresses")
    }

    async fn admit(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let annotated = write.object.at(&["metadata", "annotations"]).get("kubernetes.io/ingress.class").is_some();
        if write.object.has(&["spec", "ingressClassName"]) || annotated {
            return Ok(());
        }
        let classes = objects.read_all("networking.k8s.io", "ingressclasses", "")?;
        if let Some(name) = newest_default(&classes, &["ingressclass.kubernetes.io/is-default-class"]) {
            write.object.set(&["spec", "ingressClassName"], name);
        }
        Ok(())
    }
}

/// The class that one of the annotations marks as default; of several, the newest, then the first by name.
pub fn newest_default(classes: &[std::sync::Arc<Value>], annotations: &[&str]) -> Option<String> {
    let is_default =
        |class: &Value| annotations.iter().any(|key| class.at(&["metadata", "annotations"]).text(&[key]) == "true");
    let mut defaults: Vec<_> = classes.iter().filter(|class| is_default(class)).collect();
    defaults.sort_by(|one, other| {
        let made = |class: &Value| class.text(&["metadata", "creationTimestamp"]).to_owned();
        let name = |class: &Value| class.text(&["metadata", "name"]).to_owned();
        made(other).cmp(&made(one)).then(name(one).cmp(&name(other)))
    });
    defaults.first().map(|class| class.text(&["metadata", "name"]).to_owned())
}

/// Copies the zone and region labels of its node to a pod, so that the pod can read them.
pub struct PodTopologyLabels;

const TOPOLOGY: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

#[async_trait]
impl Plugin for PodTopologyLabels {
    fn name(&self) -> &'static str {
        "PodTopologyLabels"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        let binds =
            write.is_part_of("", "bindings") || (write.is_part_of("", "pods") && write.subresource == "binding");
        write.operation == Operation::Create && (binds || write.creates("", "pods"))
    }

    async fn admit(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let node = if write.is("", "pods") {
            write.object.text(&["spec", "nodeName"])
        } else {
            match write.object.text(&["target", "kind"]) {
                "" | "Node" => write.object.text(&["target", "name"]),
                _ => "",
            }
        };
        if node.is_empty() {
            return Ok(());
        }
        let Some(mut labels) = objects.read_labels("", "nodes", "", node)? else { return Ok(()) };
        for key in TOPOLOGY {
            if let Some(value) = labels.remove(key).filter(|value| value != "") {
                write.object.object(&["metadata", "labels"]).insert(key.to_owned(), value);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::object_reader::tests::Fixed;

    #[tokio::test]
    async fn tolerations_are_added_where_the_pod_has_none_of_its_own() {
        let none = Fixed::new(vec![]);
        let plugin = DefaultTolerationSeconds::default();
        for (tolerations, count) in [
            (json!([]), 2),
            (json!([{"operator": "Exists"}]), 1),
            (json!([{"key": NOT_READY, "operator": "Exists", "effect": "NoExecute"}]), 2),
            (json!([{"key": NOT_READY, "operator": "Exists", "effect": "NoSchedule"}]), 3),
        ] {
            let pod = json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": {"tolerations": tolerations}});
            let made = run(&plugin, Operation::Create, ("", "pods"), pod, None, &none).await.unwrap();
            assert_eq!(made.items(&["spec", "tolerations"]).len(), count, "{tolerations}");
        }
    }

    #[tokio::test]
    async fn the_newest_default_class_is_used() {
        let class = |name: &str, made: &str| {
            json!({"metadata": {"name": name, "creationTimestamp": made,
                "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}}})
        };
        let objects = Fixed::new(vec![
            ("networking.k8s.io", "ingressclasses", class("old", "2026-01-01T00:00:00Z")),
            ("networking.k8s.io", "ingressclasses", class("new", "2026-01-02T00:00:00Z")),
        ]);
        let ingress = json!({"kind": "Ingress", "metadata": {"name": "i"}, "spec": {}});
        let at = ("networking.k8s.io", "ingresses");
        let made = run(&DefaultIngressClass, Operation::Create, at, ingress, None, &objects).await.unwrap();
        assert_eq!(made.text(&["spec", "ingressClassName"]), "new");
    }

    #[tokio::test]
    async fn a_new_node_is_tainted_once() {
        let none = Fixed::new(vec![]);
        let node = json!({"kind": "Node", "metadata": {"name": "n"}, "spec": {}});
        let made = run(&TaintNodesByCondition, Operation::Create, ("", "nodes"), node, None, &none).await.unwrap();
        let again = run(&TaintNodesByCondition, Operation::Create, ("", "nodes"), made, None, &none).await.unwrap();
        assert_eq!(again["spec"]["taints"], json!([{"key": NOT_READY, "effect": "NoSchedule"}]));
    }
}
