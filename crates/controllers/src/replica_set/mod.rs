//! Maintains the desired number of pods: for ReplicaSets, and for ReplicationControllers by the same rules.
//!
//! The number of pods and the status come from [`mod@plan`]; this module watches pods and owners and carries plans out.

mod plan;
mod replicated;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use knarr_client::{Change, Informer, WorkQueue, owner, pod, selector::Selector};
use kube::Api;
use parking_lot::Mutex;

use crate::Context;
use crate::common::adoption::{claim_all, is_alive};
use crate::common::key::{name, namespace, uid};
use crate::common::pods::{
    BY_CONTROLLER, ORPHANS, PodControl, creation, each, index_by_controller, retryable, slow_start, to_delete,
};
use crate::common::reconcile::{Reconcile, run_controller};
use crate::common::requests::replace_status;
use crate::common::{Expectations, Key, journey};
use crate::error::{Error, Result, is_not_found, message};

use plan::{Failure, Step, new_pod, plan, status};
use replicated::Replicated;

/// From this many pods on, their changes are batched, so that work grows with time and not with events.
const MANY_PODS: usize = 200;
const BATCH_DELAY: Duration = Duration::from_millis(50);
/// A sync costs time for each pod; the batch delay grows with their number, so that syncs stay a small part of it.
const BATCH_DELAY_PER_POD: Duration = Duration::from_micros(20);
const PROVEN_BATCH: usize = 64;

pub async fn run(context: Context) {
    Controller::<ReplicaSet>::run(context).await;
}

pub async fn run_replication_controllers(context: Context) {
    Controller::<ReplicationController>::run(context).await;
}

struct Controller<K: Replicated> {
    context: Context,
    owners: Arc<Informer<K>>,
    pods: Arc<Informer<Pod>>,
    queue: Arc<WorkQueue<Key>>,
    expectations: Expectations,
    /// Owners whose last creations all succeeded: the next ones skip the slow start.
    proven: Mutex<HashSet<Key>>,
    control: PodControl,
}

impl<K: Replicated> Reconcile<Key> for Controller<K> {
    async fn reconcile(self: &Arc<Self>, key: Key) -> Result<()> {
        let _step = journey::sync_span(K::PLURAL.trim_end_matches('s'), K::PLURAL, &key);
        let Some(owner) = self.owners.get(&key.namespace, &key.name) else {
            self.expectations.forget(&key);
            self.proven.lock().remove(&key);
            return Ok(());
        };
        let may_act = self.expectations.are_satisfied(&key);
        let selector = owner.selector();
        let (active, terminating) = self.pods_of(&*owner, &selector).await?;
        let now = self.context.clock.now();
        let failure = if may_act && owner.meta().deletion_timestamp.is_none() {
            self.carry_out(&key, &owner, &active, plan(owner.replicas(), active.len())).await
        } else {
            None
        };
        let failed = failure.as_ref().map(|error| Failure { message: error.to_string() });
        let new_status = status(&*owner, &active, terminating, failed, now);
        let recheck = plan::next_availability(&*owner, &active, &new_status, now);
        if new_status != owner.status() {
            self.write_status(&owner, new_status).await?;
        }
        if let Some(at) = recheck {
            self.queue.add_after(key, at);
        }
        failure.map_or(Ok(()), Err)
    }
}

impl<K: Replicated> Controller<K> {
    async fn run(context: Context) {
        let owners = context.informers.of::<K>();
        let pods = context.informers.of::<Pod>();
        index_by_controller(&pods);
        let control = PodControl { client: context.client.clone(), recorder: context.recorder(K::COMPONENT) };
        let workers = K::syncs(&context.settings.concurrent_syncs);
        let controller = Arc::new(Self {
            context,
            owners,
            pods,
            queue: WorkQueue::new(),
            expectations: Expectations::default(),
            proven: Mutex::default(),
            control,
        });
        let queue = controller.queue.clone();
        let weak = Arc::downgrade(&controller);
        controller.owners.on_change(move |change| {
            if let Some(controller) = weak.upgrade() {
                controller.owner_changed(change);
            }
        });
        let weak = Arc::downgrade(&controller);
        controller.pods.on_change(move |change| {
            if let Some(controller) = weak.upgrade() {
                controller.pod_changed(change);
            }
        });
        controller.owners.synced().await;
        controller.pods.synced().await;
        run_controller(&controller, &queue, workers).await;
    }

    fn owner_changed(&self, change: &Change<K>) {
        let key = Key::of(&**change.latest());
        if matches!(change, Change::Deleted(_)) {
            self.expectations.forget(&key);
        }
        self.queue.add(key);
    }

    fn pod_changed(&self, change: &Change<Pod>) {
        let pod = change.latest();
        let Some(key) = self.owner_key(pod) else {
            return self.orphan_changed(change);
        };
        match change {
            // A pod first observed while terminating was not created by this process' last request.
            Change::Added(pod) if pod::is_terminating(pod) => self.expectations.deleted(&key, uid(&**pod)),
            Change::Added(_) => self.expectations.created(&key),
            Change::Updated { old, new } => {
                if pod::is_terminating(new) && !pod::is_terminating(old) {
                    self.expectations.deleted(&key, uid(&**new));
                }
                if let Some(former) = self.owner_key(old)
                    && former != key
                {
                    self.queue.add(former);
                }
            }
            Change::Deleted(pod) => self.expectations.deleted(&key, uid(&**pod)),
        }
        self.enqueue(key);
    }

    fn orphan_changed(&self, change: &Change<Pod>) {
        if let Some(former) = change.previous().and_then(|old| self.owner_key(old)) {
            self.queue.add(former);
        }
        let pod = change.latest();
        if matches!(change, Change::Deleted(_)) || owner::controller_of(&pod.metadata).is_some() {
            return;
        }
        let same_labels = change.previous().is_some_and(|old| {
            old.metadata.labels == pod.metadata.labels && old.metadata.owner_references == pod.metadata.owner_references
        });
        if same_labels {
            return;
        }
        for owner in self.owners.in_namespace(namespace(&**pod)) {
            let selector = owner.selector();
            if !selector.is_everything() && selector.matches(pod.metadata.labels.as_ref()) {
                self.queue.add(Key::of(&*owner));
            }
        }
    }

    /// The key of the pod's controller, if the uid matches too.
    fn owner_key(&self, pod: &Pod) -> Option<Key> {
        let reference = owner::controller_of(&pod.metadata)?;
        if reference.kind != K::kind(&()) || reference.api_version != K::api_version(&()) {
            return None;
        }
        let owner = self.owners.get(namespace(pod), &reference.name)?;
        (uid(&*owner) == reference.uid).then(|| Key::of(&*owner))
    }

    fn enqueue(&self, key: Key) {
        // A set being scaled to zero has as many pods as its status says, whatever its spec says.
        let owner = self.owners.get(&key.namespace, &key.name);
        let replicas = owner.map_or(0, |owner| owner.replicas().max(owner.status().replicas));
        if replicas as usize >= MANY_PODS && self.expectations.are_satisfied(&key) {
            self.queue.add_after(key, batch_delay(replicas));
        } else if replicas as usize >= MANY_PODS {
            // Only the status can change while creations are pending.
            self.queue.add_after(key, batch_delay(replicas) * 4);
        } else {
            self.queue.add(key);
        }
    }

    /// Active pods that belong to the owner after adoption and release, and how many are terminating.
    async fn pods_of(&self, owner: &K, selector: &Selector) -> Result<(Vec<Arc<Pod>>, usize)> {
        let mut candidates = self.pods.by_index(BY_CONTROLLER, uid(owner));
        candidates.extend(self.pods.by_index(ORPHANS, namespace(owner)));
        let terminating = candidates.iter().filter(|pod| {
            pod::is_terminating(pod)
                && !pod::is_terminal(pod)
                && owner::is_controlled_by(&pod.metadata, owner.meta())
                && selector.matches(pod.metadata.labels.as_ref())
        });
        let terminating = terminating.count();
        candidates.retain(|pod| pod::is_active(pod));
        let client = &self.context.client;
        let active = claim_all(client, owner, selector, candidates, &[], || is_alive(client, owner)).await?;
        Ok((active, terminating))
    }

    async fn carry_out(&self, key: &Key, owner: &Arc<K>, active: &[Arc<Pod>], step: Step) -> Option<Error> {
        match step {
            Step::Nothing => None,
            Step::Create(count) => self.create(key, owner, count).await,
            Step::Delete(count) => {
                let related = self.related_pods(owner);
                let chosen = to_delete(active, &related, count, self.context.clock.now());
                self.delete(key, owner, chosen).await
            }
        }
    }

    async fn create(&self, key: &Key, owner: &Arc<K>, count: usize) -> Option<Error> {
        let pod = new_pod(&**owner)?;
        self.expectations.expect_creations(key, count);
        let first_batch = if self.proven.lock().contains(key) { PROVEN_BATCH } else { 1 };
        let (succeeded, error) =
            slow_start(count, first_batch, |_| async { creation(self.control.create(&**owner, &pod).await) }).await;
        for _ in succeeded..count {
            self.expectations.created(key);
        }
        match error {
            Some(_) => self.proven.lock().remove(key),
            None => self.proven.lock().insert(key.clone()),
        };
        retryable(error)
    }

    async fn delete(&self, key: &Key, owner: &Arc<K>, chosen: Vec<Arc<Pod>>) -> Option<Error> {
        self.expectations.expect_deletions(key, chosen.iter().map(|pod| uid(&**pod).to_owned()));
        let outcome = each(chosen, |pod| async move {
            let Err(error) = self.control.delete(&**owner, &pod).await else { return Ok(()) };
            self.expectations.deleted(key, uid(&*pod));
            if is_not_found(&error) {
                return Ok(());
            }
            Err(Error::Later(format!("unable to delete pods: {}", message(&error))))
        })
        .await;
        outcome.err()
    }

    /// Pods of all owners with the same controller, so that a rolling update spreads the remaining ones over nodes.
    fn related_pods(&self, owner: &K) -> Vec<Arc<Pod>> {
        let parent = owner::controller_uid(owner.meta());
        let mut related = Vec::new();
        for sibling in self.owners.in_namespace(namespace(owner)) {
            let is_sibling =
                uid(&*sibling) == uid(owner) || parent.is_some() && owner::controller_uid(sibling.meta()) == parent;
            if is_sibling {
                related.extend(
                    self.pods.by_index(BY_CONTROLLER, uid(&*sibling)).into_iter().filter(|p| pod::is_active(p)),
                );
            }
        }
        related
    }

    /// Writes the status; retries once with the fresh object when the cached one is stale.
    async fn write_status(&self, owner: &K, status: plan::Status) -> Result<()> {
        let client = &self.context.client;
        let Err(first) = replace_status(client, &owner.with_status(status.clone())).await else { return Ok(()) };
        if is_not_found(&first) {
            return Ok(());
        }
        let api: Api<K> = Api::namespaced(client.clone(), namespace(owner));
        let Some(fresh) = api.get_opt(name(owner)).await? else { return Ok(()) };
        if uid(&fresh) == uid(owner) {
            replace_status(client, &fresh.with_status(status)).await?;
        }
        Ok(())
    }
}

/// The batch delay for this many pods.
fn batch_delay(replicas: i32) -> Duration {
    BATCH_DELAY.max(BATCH_DELAY_PER_POD * replicas.max(0).unsigned_abs())
}
