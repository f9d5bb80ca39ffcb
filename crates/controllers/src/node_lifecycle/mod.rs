//! Node health: marks nodes that stop reporting as unknown, taints them, and marks their pods as not ready.
//!
//! [`health`] evaluates a node by how this process observes its lease and status change, [`taints`] computes its taints,
//! [`zones`] limits the rate when many nodes of a zone are unhealthy, since the fault may then be elsewhere.

mod health;
mod taints;
mod zones;

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, ObjectReference, Pod, Taint};
use k8s_openapi::jiff::Timestamp;
use knarr_client::events::EventType;
use knarr_client::{Change, EventRecorder, Informer, WorkQueue, pod, time};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use crate::Context;
use crate::common::key::{name, namespace, uid};
use crate::common::pods::{BY_NODE, each, index_by_node};
use crate::common::reconcile::{Reconcile, run_controller};
use crate::error::{Error, Result, ignore_not_found};
use crate::metrics::NODE_EVICTIONS;

use health::{Health, Now, Verdict};
use zones::Zones;

pub async fn run(context: Context) {
    let nodes = context.informers.of::<Node>();
    let pods = context.informers.of::<Pod>();
    let leases = context.informers.selected::<Lease>("metadata.namespace=kube-node-lease", "");
    index_by_node(&pods);
    let recorder = context.recorder("node-controller");
    let zones = Zones::new(&context.settings);
    let controller = Arc::new(Controller {
        context,
        nodes,
        pods,
        leases,
        queue: WorkQueue::new(),
        recorder,
        health: Mutex::default(),
        zones: Mutex::new(zones),
    });
    let queue = controller.queue.clone();
    controller.nodes.on_change(move |change| {
        if !matches!(change, Change::Deleted(_)) {
            queue.add(name(&**change.latest()).to_owned());
        }
    });
    controller.nodes.synced().await;
    controller.pods.synced().await;
    controller.leases.synced().await;
    let tending = run_controller(&controller, &controller.queue, 8);
    let monitoring = controller.clone().monitor();
    tokio::join!(tending, monitoring);
}

struct Controller {
    context: Context,
    nodes: Arc<Informer<Node>>,
    pods: Arc<Informer<Pod>>,
    leases: Arc<Informer<Lease>>,
    queue: Arc<WorkQueue<String>>,
    recorder: EventRecorder,
    health: Mutex<HashMap<String, Health>>,
    zones: Mutex<Zones>,
}

impl Reconcile<String> for Controller {
    /// Reconciles taints with the node's conditions, and deprecated labels with their successors, at once.
    async fn reconcile(self: &Arc<Self>, key: String) -> Result<()> {
        let Some(node) = self.nodes.get("", &key) else { return Ok(()) };
        if let Some(desired) = taints::for_conditions(&node, self.context.clock.now()) {
            self.write_taints(&node, desired).await?;
        }
        let labels = taints::missing_labels(&node);
        if !labels.is_empty() {
            let api: Api<Node> = Api::all(self.context.client.clone());
            let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
            ignore_not_found(api.patch(&key, &PatchParams::default(), &patch).await)?;
        }
        Ok(())
    }
}

impl Controller {
    async fn monitor(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(self.context.settings.node_health.monitor_period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let nodes = self.nodes.list();
            self.record_new_nodes(&nodes);
            let _ = each(nodes.clone(), |node| {
                let controller = self.clone();
                async move {
                    if let Err(error) = controller.check_node(&node).await {
                        tracing::debug!(node = name(&*node), %error, "cannot check a node; retrying in the next interval");
                    }
                    Ok::<(), Error>(())
                }
            })
            .await;
            self.taint_unhealthy(&nodes).await;
        }
    }

    fn record_new_nodes(&self, nodes: &[Arc<Node>]) {
        let uids: HashMap<&str, &str> = nodes.iter().map(|node| (name(&**node), uid(&**node))).collect();
        let mut health = self.health.lock();
        health.retain(|known, health| {
            let stays = uids.get(known.as_str()).is_some_and(|uid| *uid == health.uid);
            if !stays {
                let message = format!("Node {known} event: Removing Node {known} from Controller");
                self.record_event(known, &health.uid, "RemovingNode", message);
            }
            stays
        });
        for node in nodes {
            let key = name(&**node);
            if !health.contains_key(key) {
                self.record_event(
                    key,
                    uid(&**node),
                    "RegisteredNode",
                    format!("Node {key} event: Registered Node {key} in Controller"),
                );
                health.insert(key.to_owned(), Health::new(node, self.now()));
            }
        }
    }

    fn record_event(&self, node: &str, uid: &str, reason: &str, message: String) {
        let reference = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        self.recorder.about(reference, EventType::Normal, reason, message);
    }

    fn now(&self) -> Now {
        Now { wall: self.context.clock.now(), monotonic: Instant::now() }
    }

    async fn check_node(&self, node: &Node) -> Result<()> {
        let key = name(node);
        let settings = &self.context.settings;
        let lease = self.leases.get("kube-node-lease", key);
        let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref().map(|at| at.0));
        let now = self.now();
        let verdict = {
            let mut all = self.health.lock();
            let Some(health) = all.get_mut(key) else { return Ok(()) };
            health.observe(node, renewed, now);
            health.evaluate(
                node,
                settings.node_health.monitor_grace_period,
                settings.node_health.startup_grace_period,
                now,
            )
        };
        let was_ready = health::ready(node).is_some_and(|ready| ready.status == "True");
        let ready = match verdict {
            Verdict::Alive => health::ready(node).cloned(),
            Verdict::Silent(conditions) => {
                let ready = conditions.iter().find(|condition| condition.type_ == "Ready").cloned();
                self.write_conditions(node, conditions).await?;
                ready
            }
        };
        let is_ready = ready.as_ref().is_some_and(|ready| ready.status == "True");
        self.zones.lock().note(node, is_ready);
        let Some(ready) = ready else { return Ok(()) };
        if let Some(desired) = taints::for_readiness(node, &ready.status, now.wall) {
            self.write_taints(node, desired).await?;
        }
        // When the node itself reports that it is not ready, its pods are not ready either.
        let fell_silent = was_ready && !is_ready;
        if fell_silent {
            self.record_event(key, uid(node), "NodeNotReady", format!("Node {key} status is now: NodeNotReady"));
        }
        let has_to_mark =
            self.health.lock().get_mut(key).is_some_and(|health| health.has_to_mark(fell_silent, is_ready));
        if has_to_mark {
            self.mark_pods_not_ready(key, now.wall).await?;
            if let Some(health) = self.health.lock().get_mut(key) {
                health.marked();
            }
        }
        Ok(())
    }

    async fn write_conditions(&self, node: &Node, conditions: Vec<NodeCondition>) -> Result<()> {
        let present = node.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        if present == conditions {
            return Ok(());
        }
        let mut changed = node.clone();
        changed.status.get_or_insert_default().conditions = Some(conditions);
        let api: Api<Node> = Api::all(self.context.client.clone());
        api.replace_subresource("status", name(node), &PostParams::default(), &changed).await?;
        Ok(())
    }

    async fn write_taints(&self, node: &Node, taints: Vec<Taint>) -> Result<()> {
        let api: Api<Node> = Api::all(self.context.client.clone());
        let taints = (!taints.is_empty()).then_some(taints);
        let patch =
            json!({"metadata": {"resourceVersion": node.metadata.resource_version}, "spec": {"taints": taints}});
        ignore_not_found(api.patch(name(node), &PatchParams::default(), &Patch::Merge(patch)).await)?;
        Ok(())
    }

    /// Taints unreachable and not-ready nodes with NoExecute, at the rate that their zone's state allows.
    async fn taint_unhealthy(&self, nodes: &[Arc<Node>]) {
        let now = self.now();
        let waiting: Vec<(Arc<Node>, Vec<Taint>)> = nodes
            .iter()
            .filter_map(|node| {
                let status = health::ready(node)?.status.clone();
                Some((node.clone(), taints::to_evict(node, &status, now.wall)?))
            })
            .collect();
        let decisions = self.zones.lock().decide(nodes, now.monotonic);
        if decisions.all_away {
            // All nodes seem unhealthy: more likely this process is cut off. Nothing is evicted, and taints are removed.
            for node in nodes {
                if let Some(desired) = taints::without_eviction(node)
                    && let Err(error) = self.write_taints(node, desired).await
                {
                    tracing::debug!(node = name(&**node), %error, "cannot remove taints; retrying");
                }
            }
            return;
        }
        for (node, desired) in waiting {
            if !self.zones.lock().may_taint(&node, now.monotonic) {
                continue;
            }
            match self.write_taints(&node, desired).await {
                Ok(()) => NODE_EVICTIONS.add(&[&zones::label(&node)], 1),
                Err(error) => tracing::debug!(node = name(&*node), %error, "cannot taint a node; retrying"),
            }
        }
    }

    async fn mark_pods_not_ready(&self, node: &str, now: Timestamp) -> Result<()> {
        let ready = self.pods.by_index(BY_NODE, node).into_iter().filter(|pod| pod::is_ready(pod)).collect();
        each(ready, |pod: Arc<Pod>| async move {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
            let Some(mut ready) = conditions.into_iter().find(|condition| condition.type_ == "Ready") else {
                return Ok(());
            };
            ready.status = "False".to_owned();
            ready.last_transition_time = Some(time::truncated(now));
            let api: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace(&*pod));
            let patch = Patch::Strategic(json!({"metadata": {"uid": uid(&*pod)}, "status": {"conditions": [ready]}}));
            ignore_not_found(api.patch_subresource("status", name(&*pod), &PatchParams::default(), &patch).await)?;
            self.recorder.warning(&*pod, "NodeNotReady", "Node is not ready");
            Ok::<(), Error>(())
        })
        .await
    }
}
