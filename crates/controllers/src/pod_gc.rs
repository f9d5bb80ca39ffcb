//! Deletes pods that no other component will: surplus finished ones, those of deleted nodes, those deleted before scheduling.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_client::{node, pod};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::Instant;

use crate::Context;
use crate::common::disruption::mark_disrupted;
use crate::common::key::{name, namespace, uid};
use crate::common::pods::{BY_NODE, each, index_by_node};
use crate::error::{Error, Result, ignore_not_found, is_conflict};

const PERIOD: Duration = Duration::from_secs(20);
/// A node must be missing this long, so that a late list deletes nothing.
const QUARANTINE: Duration = Duration::from_secs(40);
/// Index of the pods that have finished or are terminating, under one key: few of all pods, which it would take long to read.
const ENDING: &str = "ending";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

pub async fn run(context: Context) {
    let pods = context.informers.of::<Pod>();
    let nodes = context.informers.of::<Node>();
    pods.synced().await;
    nodes.synced().await;
    index_by_node(&pods);
    pods.add_index(ENDING, |pod| if is_ending(pod) { vec![String::new()] } else { Vec::new() });
    let mut missing: HashMap<String, Instant> = HashMap::new();
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = Instant::now();
        let known = nodes.list();
        let by_name: HashMap<&str, &Node> = known.iter().map(|node| (name(&**node), &**node)).collect();
        let mut kinds = Kinds::default();
        pods.by_index(ENDING, "").iter().for_each(|pod| kinds.classify(pod, &by_name));
        let unknown = pods.index_keys(BY_NODE).into_iter().filter(|node| !by_name.contains_key(node.as_str()));
        kinds.orphaned = unknown.map(|node| (node.clone(), pods.by_index(BY_NODE, &node))).collect();
        missing.retain(|node, _| kinds.orphaned.contains_key(node));
        for node in kinds.orphaned.keys() {
            missing.entry(node.clone()).or_insert(now);
        }
        let gone = missing.iter().filter(|(_, since)| now.duration_since(**since) >= QUARANTINE);
        let gone: Vec<String> = gone.map(|(node, _)| node.clone()).collect();
        let surplus = surplus(kinds.finished, context.settings.terminated_pod_threshold);
        if let Err(error) = clean_up(&context, surplus, kinds.stuck, kinds.orphaned, gone).await {
            tracing::debug!(%error, "cannot delete some pods; retrying in the next interval");
        }
    }
}

fn is_ending(pod: &Pod) -> bool {
    pod::is_terminal(pod) || pod::is_terminating(pod)
}

#[derive(Default)]
struct Kinds {
    finished: Vec<Arc<Pod>>,
    /// Deleted, and no kubelet will ever confirm it.
    stuck: Vec<Arc<Pod>>,
    /// By the name of the missing node.
    orphaned: HashMap<String, Vec<Arc<Pod>>>,
}

impl Kinds {
    /// Adds a pod that is ending.
    fn classify(&mut self, pod: &Arc<Pod>, nodes: &HashMap<&str, &Node>) {
        if pod::is_terminal(pod) {
            self.finished.push(pod.clone());
        }
        let Some(node) = pod::node_name(pod) else {
            if pod::is_terminating(pod) {
                self.stuck.push(pod.clone());
            }
            return;
        };
        if pod::is_terminating(pod) && nodes.get(node).is_some_and(|node| is_out_of_service(node)) {
            self.stuck.push(pod.clone());
        }
    }
}

fn is_out_of_service(node: &Node) -> bool {
    let tainted =
        node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).any(|taint| taint.key == OUT_OF_SERVICE);
    tainted && !node::is_ready(node)
}

/// The oldest finished pods beyond the threshold, evicted ones before others.
fn surplus(mut finished: Vec<Arc<Pod>>, threshold: usize) -> Vec<Arc<Pod>> {
    if threshold == 0 || finished.len() <= threshold {
        return Vec::new();
    }
    let evicted = |pod: &Pod| pod.status.as_ref().and_then(|status| status.reason.as_deref()) == Some("Evicted");
    finished.sort_by_key(|pod| (!evicted(pod), pod.metadata.creation_timestamp.clone(), pod.metadata.name.clone()));
    finished.truncate(finished.len() - threshold);
    finished
}

async fn clean_up(
    context: &Context,
    surplus: Vec<Arc<Pod>>,
    stuck: Vec<Arc<Pod>>,
    mut orphaned: HashMap<String, Vec<Arc<Pod>>>,
    gone: Vec<String>,
) -> Result<()> {
    let client = &context.client;
    let mut remove: Vec<Arc<Pod>> = surplus;
    remove.extend(stuck);
    // A pod that cannot be deleted keeps no other from being.
    let mut outcome = each(remove, |pod| async move {
        if !pod::is_terminal(&pod) {
            let api: Api<Pod> = Api::namespaced(client.clone(), namespace(&*pod));
            let status = json!({"phase": "Failed", "observedGeneration": pod.metadata.generation});
            let patch = Patch::Strategic(json!({"metadata": {"uid": uid(&*pod)}, "status": status}));
            ignore_not_found(api.patch_subresource("status", name(&*pod), &PatchParams::default(), &patch).await)?;
        }
        delete_now(client, &pod).await
    })
    .await;
    let nodes: Api<Node> = Api::all(client.clone());
    for node in gone {
        if nodes.get_opt(&node).await?.is_some() {
            continue;
        }
        let deleted = each(orphaned.remove(&node).unwrap_or_default(), |pod| async move {
            if !pod::is_terminal(&pod) {
                let (message, now) = ("PodGC: node no longer exists", context.clock.now());
                mark_disrupted(client, &pod, "DeletionByPodGC", message, Some("Failed"), now).await?;
            }
            delete_now(client, &pod).await
        })
        .await;
        outcome = outcome.and(deleted);
    }
    outcome
}

/// Deletes this pod but none that reuses its name: pods of a StatefulSet do.
async fn delete_now(client: &Client, pod: &Pod) -> Result<(), Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace(pod));
    let preconditions = Some(Preconditions { uid: Some(uid(pod).to_owned()), resource_version: None });
    let params = DeleteParams { grace_period_seconds: Some(0), preconditions, ..DeleteParams::default() };
    match ignore_not_found(api.delete(name(pod), &params).await) {
        Err(error) if is_conflict(&error) => Ok(()),
        result => Ok(result.map(drop)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, node: &str, phase: &str, extra: Value) -> Arc<Pod> {
        let mut metadata =
            json!({"name": name, "creationTimestamp": format!("2026-01-01T00:00:0{}Z", name.len() % 10)});
        for (key, value) in extra.as_object().cloned().unwrap_or_default() {
            metadata[key] = value;
        }
        let value =
            json!({"metadata": metadata, "spec": {"nodeName": node, "containers": []}, "status": {"phase": phase}});
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn pods_are_classified() {
        let leaving = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        let taints = json!([{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]);
        let down: Node =
            serde_json::from_value(json!({"metadata": {"name": "down"}, "spec": {"taints": taints}})).unwrap();
        let up = Node::default();
        let mut kinds = Kinds::default();
        for pod in [
            pod("done", "up", "Succeeded", json!({})),
            pod("lost", "gone", "Running", leaving.clone()),
            pod("never-placed", "", "Pending", leaving.clone()),
            pod("stuck", "down", "Running", leaving.clone()),
            pod("ending", "up", "Running", leaving),
        ] {
            kinds.classify(&pod, &HashMap::from([("up", &up), ("down", &down)]));
        }
        let names = |pods: &[Arc<Pod>]| pods.iter().map(|pod| name(&**pod).to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&kinds.finished), ["done"]);
        assert_eq!(names(&kinds.stuck), ["never-placed", "stuck"]);
    }

    #[test]
    fn the_oldest_finished_pods_are_deleted_first() {
        let finished = vec![
            pod("333", "n", "Failed", json!({})),
            pod("1", "n", "Failed", json!({})),
            pod("22", "n", "Failed", json!({})),
        ];
        assert!(surplus(finished.clone(), 3).is_empty());
        assert!(surplus(finished.clone(), 0).is_empty(), "no threshold, no limit");
        let removed: Vec<_> = surplus(finished, 1).iter().map(|pod| name(&**pod).to_owned()).collect();
        assert_eq!(removed, ["1", "22"]);
    }
}
