//! Deletes pods from nodes with `NoExecute` taints they do not tolerate, or tolerate only for a while.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use knarr_client::events::{EventType, reference};
use knarr_client::{Change, EventRecorder, Informer, WorkQueue, pod};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Context;
use crate::common::Key;
use crate::common::disruption::mark_disrupted;
use crate::common::key::{name, uid};
use crate::common::pods::{BY_NODE, index_by_node};
use crate::common::reconcile::{Reconcile, run_controller};
use crate::common::requests::delete;
use crate::error::Result;
use knarr_client::node_fit::tolerates;

pub async fn run(context: Context) {
    let pods = context.informers.of::<Pod>();
    let nodes = context.informers.of::<Node>();
    index_by_node(&pods);
    let queue: Arc<WorkQueue<Key>> = WorkQueue::new();
    let on_pod = queue.clone();
    pods.on_change(move |change| {
        let moved = change.previous().is_none_or(|old| {
            let tolerations = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.tolerations.clone());
            pod::node_name(old) != pod::node_name(change.latest()) || tolerations(old) != tolerations(change.latest())
        });
        if moved || matches!(change, Change::Deleted(_)) {
            on_pod.add(Key::of(&**change.latest()));
        }
    });
    let (on_node, on_it) = (queue.clone(), pods.clone());
    nodes.on_change(move |change| {
        let before = change.previous().map(|old| evicting(old)).unwrap_or_default();
        if before != evicting(change.latest()) {
            for pod in on_it.by_index(BY_NODE, name(&**change.latest())) {
                on_node.add(Key::of(&*pod));
            }
        }
    });
    pods.synced().await;
    nodes.synced().await;
    let recorder = context.recorder("taint-eviction-controller");
    let controller =
        Arc::new(Controller { context, pods, nodes, queue: queue.clone(), since: Mutex::default(), recorder });
    run_controller(&controller, &queue, 8).await;
}

struct Controller {
    context: Context,
    pods: Arc<Informer<Pod>>,
    nodes: Arc<Informer<Node>>,
    queue: Arc<WorkQueue<Key>>,
    /// When the countdown of each pod started, by the monotonic clock: a step of the wall clock changes no toleration.
    since: Mutex<HashMap<Key, (String, Instant)>>,
    recorder: EventRecorder,
}

impl Reconcile<Key> for Controller {
    async fn reconcile(self: &Arc<Self>, key: Key) -> Result<()> {
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else {
            self.since.lock().remove(&key);
            return Ok(());
        };
        let taints = pod::node_name(&pod).and_then(|node| self.nodes.get("", node)).map(|node| evicting(&node));
        let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.clone()).unwrap_or_default();
        let now = Instant::now();
        match stay(&taints.unwrap_or_default(), &tolerations) {
            Stay::Forever => {
                let counted = self.since.lock().remove(&key).is_some_and(|(counted, _)| counted == uid(&*pod));
                if counted {
                    self.record_event(&pod, format!("Cancelling deletion of Pod {key}"));
                }
                Ok(())
            }
            Stay::For(length) => {
                let start = {
                    let mut since = self.since.lock();
                    let entry = since.entry(key.clone()).or_insert_with(|| (uid(&*pod).to_owned(), now));
                    if entry.0 != uid(&*pod) {
                        *entry = (uid(&*pod).to_owned(), now);
                    }
                    entry.1
                };
                let left = length.saturating_sub(now.duration_since(start));
                if !left.is_zero() {
                    self.queue.add_after(key, left);
                    return Ok(());
                }
                self.evict(&pod).await?;
                self.since.lock().remove(&key);
                Ok(())
            }
        }
    }
}

impl Controller {
    async fn evict(&self, pod: &Pod) -> Result<()> {
        if pod::is_terminating(pod) {
            return Ok(());
        }
        let key = Key::of(pod);
        self.record_event(pod, format!("Marking for deletion Pod {key}"));
        let client = &self.context.client;
        let message = "Taint manager: deleting due to NoExecute taint";
        mark_disrupted(client, pod, "DeletionByTaintManager", message, None, self.context.clock.now()).await?;
        delete(client, pod, None).await
    }

    fn record_event(&self, pod: &Pod, message: String) {
        self.recorder.about(reference(pod), EventType::Normal, "TaintManagerEviction", message);
    }
}

fn evicting(node: &Node) -> Vec<Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    taints.into_iter().filter(|taint| taint.effect == "NoExecute").collect()
}

#[derive(Debug, PartialEq)]
enum Stay {
    Forever,
    For(Duration),
}

/// How long the pod tolerates the taints: the shortest of the tolerations that match, zero without one.
fn stay(taints: &[Taint], tolerations: &[Toleration]) -> Stay {
    let mut shortest: Option<i64> = None;
    for taint in taints {
        let mut applying = tolerations.iter().filter(|toleration| tolerates(toleration, taint));
        let Some(toleration) = applying.next() else { return Stay::For(Duration::ZERO) };
        if let Some(seconds) = toleration.toleration_seconds {
            shortest = Some(shortest.map_or(seconds, |known| known.min(seconds)));
        }
    }
    shortest.map_or(Stay::Forever, |seconds| Stay::For(Duration::from_secs(u64::try_from(seconds).unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn pods_stay_as_long_as_they_tolerate() {
        let taint: Taint = serde_json::from_value(json!({"key": "k", "effect": "NoExecute"})).unwrap();
        let tolerations = |value: Value| serde_json::from_value::<Vec<Toleration>>(value).unwrap();
        for (taints, tolerated, expected) in [
            (vec![], json!([]), Stay::Forever),
            (vec![taint.clone()], json!([]), Stay::For(Duration::ZERO)),
            (vec![taint.clone()], json!([{"key": "k", "operator": "Exists"}]), Stay::Forever),
            (
                vec![taint.clone()],
                json!([{"key": "k", "operator": "Exists", "tolerationSeconds": 300}]),
                Stay::For(Duration::from_secs(300)),
            ),
            (
                vec![taint],
                json!([{"key": "k", "operator": "Exists", "tolerationSeconds": -1}]),
                Stay::For(Duration::ZERO),
            ),
        ] {
            assert_eq!(stay(&taints, &tolerations(tolerated.clone())), expected, "{tolerated}");
        }
    }
}
