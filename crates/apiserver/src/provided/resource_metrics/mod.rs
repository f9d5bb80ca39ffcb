//! The API `metrics.k8s.io`: current usage of nodes and pods, for `kubectl top` and autoscalers.
//!
//! In: the pages of kubelets at `/metrics/resource`. Out: NodeMetrics and PodMetrics. The pages are scraped only while
//! there are requests: the first request scrapes each of them twice, and then they are scraped periodically until no
//! request came for a while.

mod collect;
mod page;

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use knarr_api::quantity::Quantity;
use knarr_api::status::{GroupResource, Status};
use knarr_api::time;
use knarr_api::value::Read;
use serde_json::{Value, json};

use super::{ProvidedKind, Provider, ProvidingServer};
use crate::bootstrap::{self, DesiredObject};
use collect::{Collector, Usage};

/// The API group.
pub const GROUP: &str = "metrics.k8s.io";
const VERSION: &str = "v1beta1";

/// Both kinds of the group; they share the scraped pages.
pub fn kinds() -> Vec<ProvidedKind> {
    let collector = Arc::new(Collector::default());
    vec![
        ProvidedKind {
            definition: definition("nodes", "NodeMetrics", "Cluster", node_fields()),
            provider: Arc::new(NodeMetrics(collector.clone())),
        },
        ProvidedKind {
            definition: definition("pods", "PodMetrics", "Namespaced", pod_fields()),
            provider: Arc::new(PodMetrics(collector)),
        },
    ]
}

/// The user that scrapes kubelets.
const COLLECTOR: &str = "knarr:resource-metrics";

/// Lets everyone who may view a namespace read the metrics of its pods, and the collector scrape kubelets.
pub fn policy() -> Vec<DesiredObject> {
    let rbac = "rbac.authorization.k8s.io";
    let collector = [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": COLLECTOR},
            "rules": [{"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get"]}],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": COLLECTOR},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": COLLECTOR},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": COLLECTOR}],
        }),
    ];
    collector.into_iter().chain([reader_role()]).filter_map(bootstrap::policy_object).collect()
}

fn reader_role() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {
            "name": "system:aggregated-metrics-reader",
            "labels": {
                "rbac.authorization.k8s.io/aggregate-to-admin": "true",
                "rbac.authorization.k8s.io/aggregate-to-edit": "true",
                "rbac.authorization.k8s.io/aggregate-to-view": "true",
            },
        },
        "rules": [{"apiGroups": [GROUP], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]}],
    })
}

fn definition(plural: &str, kind: &str, scope: &str, fields: Value) -> Value {
    let mut properties = json!({
        "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
        "timestamp": {"type": "string", "format": "date-time"},
        "window": {"type": "string"},
    });
    if let (Some(all), Value::Object(own)) = (properties.as_object_mut(), fields) {
        all.extend(own);
    }
    let quantity =
        |name: &str| json!({"name": name, "type": "string", "format": "quantity", "jsonPath": format!(".{name}")});
    json!({
        "spec": {
            "group": GROUP, "scope": scope,
            "names": {"plural": plural, "singular": "", "kind": kind, "listKind": format!("{kind}List")},
            "versions": [{
                "name": VERSION, "served": true, "storage": false,
                "schema": {"openAPIV3Schema": {
                    "type": "object", "required": ["timestamp", "window"], "properties": properties,
                }},
                "additionalPrinterColumns": [
                    quantity("cpu"), quantity("memory"),
                    {"name": "Window", "type": "string", "format": "duration", "jsonPath": ".window"},
                ],
            }],
        },
    })
}

fn amounts() -> Value {
    let amount = json!({"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true});
    json!({"type": "object", "additionalProperties": amount})
}

fn node_fields() -> Value {
    json!({"usage": amounts()})
}

fn pod_fields() -> Value {
    json!({"containers": {"type": "array", "items": {
        "type": "object", "required": ["name", "usage"],
        "properties": {"name": {"type": "string"}, "usage": amounts()},
    }}})
}

/// CPU in nanocores and memory in kibibytes, as in all implementations of this API.
fn usage(used: Usage) -> Value {
    json!({"cpu": format!("{}n", used.nano_cores), "memory": format!("{}Ki", used.memory / 1024)})
}

fn seconds(window: std::time::Duration) -> String {
    let text = format!("{:.3}", window.as_secs_f64());
    format!("{}s", text.trim_end_matches('0').trim_end_matches('.'))
}

fn object(kind: &str, of: &Value, used: &Usage, own: (&str, Value)) -> Value {
    let now = time::seconds(Timestamp::now());
    let mut metadata = json!({"name": of["metadata"]["name"], "creationTimestamp": now});
    for field in ["namespace", "labels"] {
        if let Some(value) = of["metadata"].get(field) {
            metadata[field] = value.clone();
        }
    }
    let mut object = json!({
        "kind": kind, "apiVersion": format!("{GROUP}/{VERSION}"), "metadata": metadata,
        "timestamp": time::seconds(used.at), "window": seconds(used.window),
    });
    object[own.0] = own.1;
    object
}

struct NodeMetrics(Arc<Collector>);

impl NodeMetrics {
    fn metrics(&self, node: &Value) -> Option<Value> {
        let used = self.0.node(node.text(&["metadata", "name"]))?;
        Some(object("NodeMetrics", node, &used, ("usage", usage(used))))
    }
}

#[async_trait]
impl Provider for NodeMetrics {
    async fn list(&self, server: &Arc<dyn ProvidingServer>, _: &str) -> Result<Vec<Value>, Status> {
        self.0.refresh(server).await;
        let nodes = server.objects().list("", "nodes", "");
        Ok(nodes.iter().filter_map(|node| self.metrics(node)).collect())
    }

    async fn get(&self, server: &Arc<dyn ProvidingServer>, _: &str, name: &str) -> Result<Value, Status> {
        let missing = || Status::not_found(GroupResource { group: GROUP, name: "nodemetrics" }, name);
        let node = server.objects().get("", "nodes", "", name).ok_or_else(missing)?;
        self.0.refresh(server).await;
        self.metrics(&node).ok_or_else(missing)
    }

    fn cells(&self, object: &Value) -> Vec<Value> {
        ["cpu", "memory"]
            .map(|name| object["usage"][name].clone())
            .into_iter()
            .chain([object["window"].clone()])
            .collect()
    }
}

struct PodMetrics(Arc<Collector>);

impl PodMetrics {
    fn metrics(&self, pod: &Value) -> Option<Value> {
        if pod.text(&["status", "phase"]) != "Running" {
            return None;
        }
        let (namespace, name) = (pod.text(&["metadata", "namespace"]), pod.text(&["metadata", "name"]));
        let containers = self.0.pod(pod.text(&["spec", "nodeName"]), namespace, name)?;
        // The newest reading sets the timestamp.
        let newest = containers.iter().map(|(_, used)| used).max_by_key(|used| used.at).copied()?;
        let list: Vec<Value> =
            containers.iter().map(|(name, used)| json!({"name": name, "usage": usage(*used)})).collect();
        Some(object("PodMetrics", pod, &newest, ("containers", list.into())))
    }
}

#[async_trait]
impl Provider for PodMetrics {
    async fn list(&self, server: &Arc<dyn ProvidingServer>, namespace: &str) -> Result<Vec<Value>, Status> {
        self.0.refresh(server).await;
        let pods = server.objects().list("", "pods", namespace);
        Ok(pods.iter().filter_map(|pod| self.metrics(pod)).collect())
    }

    async fn get(&self, server: &Arc<dyn ProvidingServer>, namespace: &str, name: &str) -> Result<Value, Status> {
        let missing =
            || Status::not_found(GroupResource { group: GROUP, name: "podmetrics" }, &format!("{namespace}/{name}"));
        let pod = server.objects().get("", "pods", namespace, name).ok_or_else(missing)?;
        self.0.refresh(server).await;
        self.metrics(&pod).ok_or_else(missing)
    }

    /// The usage of a pod is the sum of its containers.
    fn cells(&self, object: &Value) -> Vec<Value> {
        let sum = |name: &str| {
            let amounts = object.items(&["containers"]).iter().map(|container| container.text(&["usage", name]));
            let sum = amounts.filter_map(|text| Quantity::parse(text).ok()).reduce(|mut sum, one| {
                sum.add(&one);
                sum
            });
            sum.map_or(Value::Null, |sum| sum.to_string().into())
        };
        vec![sum("cpu"), sum("memory"), object["window"].clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_shows_the_sum_of_its_containers() {
        let pods = PodMetrics(Arc::default());
        let pod = json!({"window": "15s", "containers": [
            {"name": "a", "usage": {"cpu": "100n", "memory": "8Ki"}},
            {"name": "b", "usage": {"cpu": "2n", "memory": "4Ki"}},
        ]});
        assert_eq!(pods.cells(&pod), vec![json!("102n"), json!("12Ki"), json!("15s")]);
    }

    #[test]
    fn windows_are_seconds_with_decimals() {
        let of = |milli| seconds(std::time::Duration::from_millis(milli));
        assert_eq!((of(15_000), of(15_250), of(900)), ("15s".into(), "15.25s".into(), "0.9s".into()));
    }
}
