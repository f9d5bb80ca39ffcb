//! What the pods of each node request, and their limits: the sums that the map of the cluster shows beside the usage.

use std::collections::BTreeMap;
use std::sync::Arc;

use knarr_api::quantity::Quantity;
use knarr_api::status::Status;
use knarr_api::value::Read;
use knarr_rules::common::resources::{Amounts as _, ResourceList, Side, of_pod};
use serde_json::{Value, json};

use super::listed::{self, PAGE_SIZE};
use super::own_client::{Client, Turns};
use crate::request::User;
use crate::route::query::Query;
use crate::state::ApiServer;

/// Sums are computed one at a time: each holds a page of pods in memory.
static TURNS: Turns = Turns::new();

const RESOURCES: [&str; 2] = ["cpu", "memory"];

/// The sums by node, of the pods that the user may list.
#[derive(Default)]
struct Sums {
    nodes: BTreeMap<String, Node>,
}

#[derive(Default)]
struct Node {
    requests: ResourceList,
    limits: ResourceList,
    /// Pods that have no limit for a resource.
    unlimited: BTreeMap<&'static str, usize>,
}

impl Sums {
    fn add(&mut self, pod: &Value) {
        let node = pod.text(&["spec", "nodeName"]);
        if node.is_empty() || matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed") {
            return;
        }
        let sums = self.nodes.entry(node.to_owned()).or_default();
        let limits = of_pod(pod, Side::Limits);
        for resource in RESOURCES.into_iter().filter(|resource| !limits.contains_key(*resource)) {
            *sums.unlimited.entry(resource).or_default() += 1;
        }
        sums.requests.add(&of_pod(pod, Side::Requests));
        sums.limits.add(&limits);
    }

    fn to_json(&self) -> Value {
        let amounts = |list: &ResourceList| {
            let of = |resource: &&str| (resource.to_string(), json!(list.get(*resource).map(Quantity::to_string)));
            Value::Object(RESOURCES.iter().map(of).collect())
        };
        let nodes = self.nodes.iter().map(|(name, node)| {
            let sums = json!({
                "requests": amounts(&node.requests), "limits": amounts(&node.limits), "unlimited": node.unlimited,
            });
            (name.clone(), sums)
        });
        json!({"nodes": nodes.collect::<serde_json::Map<_, _>>()})
    }
}

/// The sums of all pods, or of those in the namespace that the query names.
pub async fn find(server: &Arc<ApiServer>, user: &User, query: &Query) -> Result<Value, Status> {
    let _turn = TURNS.next().await?;
    let client = Client::new(server, user);
    let namespace = query.text("namespace");
    let path = match namespace {
        "" => "/api/v1/pods".to_owned(),
        namespace if namespace.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') => {
            format!("/api/v1/namespaces/{namespace}/pods")
        }
        _ => return Err(Status::bad_request("not the name of a namespace")),
    };
    let mut sums = Sums::default();
    let mut next = String::new();
    loop {
        let body = client.get(&format!("{path}?limit={PAGE_SIZE}&continue={next}")).await?;
        // Parsing megabytes takes a while, during which this thread serves others.
        let added = tokio::task::spawn_blocking(move || {
            let next = listed::for_each(&body, |pod| sums.add(&pod))?;
            Ok::<_, serde_json::Error>((sums, next))
        });
        (sums, next) = added.await.map_err(Status::internal)?.map_err(Status::internal)?;
        if next.is_empty() {
            return Ok(sums.to_json());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_count_what_runs_and_say_what_has_no_limit() {
        let pod = |phase: &str, node: &str, resources: Value| json!({"spec": {"nodeName": node, "containers": [{"resources": resources}]}, "status": {"phase": phase}});
        let mut sums = Sums::default();
        for pod in [
            pod("Running", "a", json!({"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1"}})),
            pod("Pending", "a", json!({"requests": {"cpu": "250m"}})),
            pod("Succeeded", "a", json!({"requests": {"cpu": "9"}})),
            pod("Pending", "", json!({"requests": {"cpu": "9"}})),
        ] {
            sums.add(&pod);
        }
        let expected = json!({"nodes": {"a": {
            "requests": {"cpu": "750m", "memory": "1Gi"},
            "limits": {"cpu": "1", "memory": null},
            "unlimited": {"cpu": 1, "memory": 2},
        }}});
        assert_eq!(sums.to_json(), expected);
    }
}
