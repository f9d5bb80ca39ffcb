//! Runs one pod of a template on every matching node.
//!
//! [`placement`] selects nodes, [`plan`] decides what to create and delete, [`rolling`] how a new template is rolled out.

mod placement;
mod plan;
mod revision;
mod rolling;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::jiff::Timestamp;
use knarr_client::selector::{self, Selector};
use knarr_client::{Change, Informer, WorkQueue, owner, pod};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Context;
use crate::common::adoption::{claim_all, is_alive};
use crate::common::key::{name, namespace, uid};
use crate::common::pods::{
    BY_CONTROLLER, BY_NODE, ORPHANS, PodControl, creation, each, index_by_controller, index_by_node, retryable,
    slow_start,
};
use crate::common::reconcile::{Reconcile, run_controller};
use crate::common::requests::replace_status;
use crate::common::{Expectations, Key, history, journey};
use crate::error::{Error, Result, ignore_not_found, is_not_found, message};

use plan::{Observed, Plan};

const MANY_NODES: usize = 200;
const BATCH_DELAY: Duration = Duration::from_millis(100);
/// A new node changes several times: batches its changes.
const NODE_CHANGES: Duration = Duration::from_millis(20);

pub async fn run(context: Context) {
    let sets = context.informers.of::<DaemonSet>();
    let pods = context.informers.of::<Pod>();
    let nodes = context.informers.of::<Node>();
    let revisions = context.informers.of::<ControllerRevision>();
    index_by_controller(&pods);
    index_by_node(&pods);
    history::index(&revisions);
    let control = PodControl { client: context.client.clone(), recorder: context.recorder("daemonset-controller") };
    let controller = Arc::new(Controller {
        context,
        sets,
        pods,
        nodes,
        revisions,
        queue: WorkQueue::new(),
        expectations: Expectations::default(),
        failures: Failures::default(),
        control,
    });
    controller.watch();
    controller.sets.synced().await;
    controller.pods.synced().await;
    controller.nodes.synced().await;
    controller.revisions.synced().await;
    let workers = controller.context.settings.concurrent_syncs.of("concurrent-daemonset-syncs");
    run_controller(&controller, &controller.queue, workers).await;
}

struct Controller {
    context: Context,
    sets: Arc<Informer<DaemonSet>>,
    pods: Arc<Informer<Pod>>,
    nodes: Arc<Informer<Node>>,
    revisions: Arc<Informer<ControllerRevision>>,
    queue: Arc<WorkQueue<Key>>,
    expectations: Expectations,
    failures: Failures,
    control: PodControl,
}

/// Failed pods are replaced after 1 s, then after twice as long each time, up to 15 minutes.
#[derive(Default)]
struct Failures(Mutex<HashMap<(String, String), (Duration, Instant)>>);

impl Failures {
    const MAX_DELAY: Duration = Duration::from_secs(15 * 60);

    /// How long the node's pod must still wait; `None` when it may be replaced now, which is then recorded.
    fn wait(&self, set: &str, node: &str) -> Option<Duration> {
        const MIN_DELAY: Duration = Duration::from_secs(1);
        let (mut all, now) = (self.0.lock(), Instant::now());
        let key = (set.to_owned(), node.to_owned());
        let next = match all.get(&key) {
            None => MIN_DELAY,
            Some((delay, since)) => {
                let elapsed = now.duration_since(*since);
                if elapsed < *delay {
                    return Some(*delay - elapsed);
                }
                // After twice the maximum delay without a failure the backoff starts over.
                if elapsed > Self::MAX_DELAY * 2 { MIN_DELAY } else { (*delay * 2).min(Self::MAX_DELAY) }
            }
        };
        all.insert(key, (next, now));
        None
    }

    fn forget(&self, set: &str) {
        self.0.lock().retain(|(known, _), _| known != set);
    }
}

impl Reconcile<Key> for Controller {
    async fn reconcile(self: &Arc<Self>, key: Key) -> Result<()> {
        let _step = journey::sync_span("daemonset", "daemonsets", &key);
        let Some(set) = self.sets.get(&key.namespace, &key.name) else {
            self.expectations.forget(&key);
            return Ok(());
        };
        let Some(spec) = &set.spec else { return Ok(()) };
        if spec.selector == LabelSelector::default() {
            let message = "This daemon set is selecting all pods. A non-empty selector is required.";
            self.control.recorder.warning(&*set, "SelectingAll", message);
            return Ok(());
        }
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let selector = selector_of(&set);
        let client = &self.context.client;
        let alive = || is_alive(client, &*set);
        let mut candidates = self.revisions.by_index(BY_CONTROLLER, uid(&*set));
        candidates.extend(self.revisions.by_index(ORPHANS, &key.namespace));
        let revisions = claim_all(client, &*set, &selector, candidates, &[], alive).await?;
        let (current, old) = revision::current(client, &set, spec, revisions).await?;
        let hash = current.metadata.labels.as_ref().and_then(|labels| labels.get(history::REVISION_HASH)).cloned();
        let hash = hash.unwrap_or_default();

        let may_act = self.expectations.are_satisfied(&key);
        let mut candidates = self.pods.by_index(BY_CONTROLLER, uid(&*set));
        candidates.extend(self.pods.by_index(ORPHANS, &key.namespace));
        let pods = claim_all(client, &*set, &selector, candidates, &[], alive).await?;
        let by_node = placement::by_node(pods.clone());
        let nodes = self.nodes.list();
        let now = self.context.clock.now();
        let observed = Observed { set: &set, spec, nodes: &nodes, by_node: &by_node, hash: &hash };
        let mut outcome = Ok(());
        if may_act {
            let plan = plan::plan(&observed, now, |node| self.failures.wait(uid(&*set), node));
            outcome = self.carry_out(&key, &set, &hash, plan).await;
            if outcome.is_ok() {
                revision::clean_up(client, spec, old, &pods).await?;
            }
        }
        self.write_status(&key, &observed, &by_node, may_act, now).await?;
        outcome
    }
}

impl Controller {
    fn watch(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.sets.on_change(move |change| {
            let Some(controller) = weak.upgrade() else { return };
            let key = Key::of(&**change.latest());
            if matches!(change, Change::Deleted(_)) {
                controller.expectations.forget(&key);
                controller.failures.forget(uid(&**change.latest()));
            }
            controller.queue.add(key);
        });
        let weak = Arc::downgrade(self);
        self.pods.on_change(move |change| {
            if let Some(controller) = weak.upgrade() {
                controller.pod_changed(change);
            }
        });
        let weak = Arc::downgrade(self);
        self.nodes.on_change(move |change| {
            if let Some(controller) = weak.upgrade() {
                controller.node_changed(change);
            }
        });
        let weak = Arc::downgrade(self);
        self.revisions.on_change(move |change| {
            let Some(controller) = weak.upgrade() else { return };
            let reference = owner::controller_of(&change.latest().metadata).filter(|owner| owner.kind == "DaemonSet");
            // A new revision comes from this controller, or from a user who changes the set too.
            if let Some(reference) = reference.filter(|_| !matches!(change, Change::Added(_))) {
                controller.queue.add(Key::new(namespace(&**change.latest()), reference.name.clone()));
            }
        });
    }

    /// Queues the sets that must act on a node's change. Sets whose pod may merely stay are not queued, so their status
    /// still counts the node as desired.
    fn node_changed(&self, change: &Change<Node>) {
        let node = change.latest();
        let taints = |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.clone());
        let same = change
            .previous()
            .is_some_and(|old| old.metadata.labels == node.metadata.labels && taints(old) == taints(node));
        // Pods of a deleted node are deleted in time, and their deletions queue the sets.
        if same || matches!(change, Change::Deleted(_)) {
            return;
        }
        let pods = self.pods.by_index(BY_NODE, name(&**node));
        let served: HashSet<Key> = pods.iter().filter_map(|pod| self.owner_key(pod)).collect();
        let is_new = matches!(change, Change::Added(_));
        self.sets.for_each(|set| {
            let key = Key::of(&**set);
            let (may_start, may_stay) = placement::suits(set, node);
            let is_misplaced = || set.status.as_ref().is_some_and(|status| status.number_misscheduled > 0);
            let wakes = if is_new || !served.contains(&key) { may_start } else { !may_stay || is_misplaced() };
            if wakes {
                self.queue.add_after(key, NODE_CHANGES);
            }
        });
    }

    fn pod_changed(&self, change: &Change<Pod>) {
        let pod = change.latest();
        if let Some(former) = change.previous().and_then(|old| self.owner_key(old)) {
            self.enqueue(former);
        }
        let Some(key) = self.owner_key(pod) else {
            let same = change.previous().is_some_and(|old| old.metadata.labels == pod.metadata.labels);
            if same || matches!(change, Change::Deleted(_)) || owner::controller_of(&pod.metadata).is_some() {
                return;
            }
            for set in self.sets.in_namespace(namespace(&**pod)) {
                if selector_of(&set).matches(pod.metadata.labels.as_ref()) {
                    self.enqueue(Key::of(&*set));
                }
            }
            return;
        };
        match change {
            Change::Added(pod) if pod::is_terminating(pod) => self.expectations.deleted(&key, uid(&**pod)),
            Change::Added(_) => self.expectations.created(&key),
            Change::Updated { new, .. } if pod::is_terminating(new) => self.expectations.deleted(&key, uid(&**new)),
            Change::Updated { .. } => {}
            Change::Deleted(pod) => self.expectations.deleted(&key, uid(&**pod)),
        }
        self.enqueue(key);
    }

    fn enqueue(&self, key: Key) {
        if self.nodes.len() >= MANY_NODES { self.queue.add_after(key, BATCH_DELAY) } else { self.queue.add(key) }
    }

    fn owner_key(&self, pod: &Pod) -> Option<Key> {
        let reference = owner::controller_of(&pod.metadata).filter(|owner| owner.kind == "DaemonSet")?;
        let set = self.sets.get(namespace(pod), &reference.name)?;
        (uid(&*set) == reference.uid).then(|| Key::of(&*set))
    }

    async fn carry_out(&self, key: &Key, set: &Arc<DaemonSet>, hash: &str, plan: Plan) -> Result<()> {
        for (is_warning, reason, text) in plan.events {
            if is_warning {
                self.control.recorder.warning(&**set, reason, text);
            } else {
                self.control.recorder.normal(&**set, reason, text);
            }
        }
        if let Some(after) = plan.recheck {
            self.queue.add_after(key.clone(), after);
        }
        self.expectations.expect_creations(key, plan.create.len());
        self.expectations.expect_deletions(key, plan.delete.iter().map(|pod| uid(&**pod).to_owned()));
        let nodes = &plan.create;
        let (created, create_error) = slow_start(nodes.len(), 1, |at| {
            let pod = placement::new_pod(set, &nodes[at], hash);
            async move { creation(self.control.create(&**set, &pod).await) }
        })
        .await;
        for _ in created..nodes.len() {
            self.expectations.created(key);
        }
        let deleted = each(plan.delete, |pod| async move {
            let Err(error) = self.control.delete(&**set, &pod).await else { return Ok(()) };
            self.expectations.deleted(key, uid(&*pod));
            if is_not_found(&error) {
                Ok(())
            } else {
                Err(Error::Later(format!("unable to delete pods: {}", message(&error))))
            }
        })
        .await;
        retryable(create_error).map_or(deleted, Err)
    }

    async fn write_status(
        &self,
        key: &Key,
        observed: &Observed<'_>,
        by_node: &BTreeMap<String, Vec<Arc<Pod>>>,
        observed_spec: bool,
        now: Timestamp,
    ) -> Result<()> {
        let status = plan::status(observed, by_node, observed_spec, now);
        let min_ready = observed.spec.min_ready_seconds.unwrap_or(0);
        if min_ready > 0 && status.number_ready != status.number_available.unwrap_or(0) {
            self.queue.add_after(key.clone(), Duration::from_secs(min_ready as u64));
        }
        if observed.set.status.as_ref() != Some(&status) {
            let changed = DaemonSet { status: Some(status), ..observed.set.clone() };
            ignore_not_found(replace_status(&self.context.client, &changed).await)?;
        }
        Ok(())
    }
}

fn selector_of(set: &DaemonSet) -> Selector {
    set.spec.as_ref().and_then(|spec| selector::of(&spec.selector).ok()).unwrap_or_else(Selector::nothing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failed_pods_are_replaced_with_growing_delay() {
        let failures = Failures::default();
        let second = Duration::from_secs(1);
        assert_eq!(failures.wait("s", "n"), None);
        assert_eq!(failures.wait("s", "n"), Some(second));
        tokio::time::advance(second).await;
        assert_eq!(failures.wait("s", "n"), None);
        tokio::time::advance(second).await;
        assert_eq!(failures.wait("s", "n"), Some(second));
        assert_eq!(failures.wait("s", "m"), None, "nodes wait by themselves");
        failures.forget("s");
        assert_eq!(failures.wait("s", "n"), None);
    }
}
