//! Maintains the status of disruption budgets: how many of their pods are healthy, and how many may be evicted now.

mod plan;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, PodCondition, ReplicationController};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_client::selector::{self, Selector};
use knarr_client::{Change, EventRecorder, Informer, WorkQueue, owner, pod, run_workers, time};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::json;

use crate::Context;
use crate::common::Key;
use crate::common::discovery::{Kind, KnownKinds};
use crate::common::key::{name, namespace, uid};
use crate::common::messages;
use crate::common::reconcile::{Reconcile, run_controller};
use crate::common::requests::replace_status;
use crate::error::{Error, Result, ignore_not_found};

use plan::Scale;

const BATCH_DELAY: Duration = Duration::from_millis(20);
/// A pod marked as disrupted that is still running after this time is not.
const STALE_AFTER: SignedDuration = SignedDuration::from_mins(2);

pub async fn run(context: Context) {
    let informers = &context.informers;
    let controller = Arc::new(Controller {
        budgets: informers.of(),
        pods: informers.of(),
        deployments: informers.of(),
        replica_sets: informers.of(),
        replication_controllers: informers.of(),
        stateful_sets: informers.of(),
        queue: WorkQueue::new(),
        stale: WorkQueue::new(),
        recorder: context.recorder("controllermanager"),
        kinds: KnownKinds::default(),
        context: context.clone(),
    });
    controller.watch();
    controller.budgets.synced().await;
    controller.pods.synced().await;
    controller.deployments.synced().await;
    controller.replica_sets.synced().await;
    controller.replication_controllers.synced().await;
    controller.stateful_sets.synced().await;
    let budgets = run_controller(&controller, &controller.queue, 5);
    let stale = {
        let controller = controller.clone();
        run_workers(controller.stale.clone(), 2, move |key| {
            let controller = controller.clone();
            async move { controller.clear_stale(key).await }
        })
    };
    tokio::join!(budgets, stale);
}

struct Controller {
    context: Context,
    budgets: Arc<Informer<PodDisruptionBudget>>,
    pods: Arc<Informer<Pod>>,
    deployments: Arc<Informer<Deployment>>,
    replica_sets: Arc<Informer<ReplicaSet>>,
    replication_controllers: Arc<Informer<ReplicationController>>,
    stateful_sets: Arc<Informer<StatefulSet>>,
    queue: Arc<WorkQueue<Key>>,
    /// Pods marked as disrupted whose mark may become stale.
    stale: Arc<WorkQueue<Key>>,
    recorder: EventRecorder,
    kinds: KnownKinds,
}

impl Reconcile<Key> for Controller {
    async fn reconcile(self: &Arc<Self>, key: Key) -> Result<()> {
        let Some(budget) = self.budgets.get(&key.namespace, &key.name) else { return Ok(()) };
        let outcome = self.update(&key, &budget).await;
        if let Err(Error::Later(reason)) = &outcome {
            // Without a known state nothing may be disrupted.
            let failed = plan::failed(&budget, reason, self.context.clock.now());
            if budget.status.as_ref() != Some(&failed) {
                let changed = PodDisruptionBudget { status: Some(failed), ..(*budget).clone() };
                ignore_not_found(replace_status(&self.context.client, &changed).await)?;
            }
        }
        outcome
    }
}

impl Controller {
    fn watch(self: &Arc<Self>) {
        let queue = self.queue.clone();
        self.budgets.on_change(move |change| queue.add(Key::of(&**change.latest())));
        let weak = Arc::downgrade(self);
        self.pods.on_change(move |change| {
            if let Some(controller) = weak.upgrade() {
                controller.pod_changed(change);
            }
        });
    }

    fn pod_changed(&self, change: &Change<Pod>) {
        let pod = change.latest();
        let marked = pod::condition(pod, "DisruptionTarget").is_some_and(|condition| condition.status == "True");
        if marked && !pod::is_terminating(pod) && !matches!(change, Change::Deleted(_)) {
            self.stale.add(Key::of(&**pod));
        }
        let relevant = change.previous().is_none_or(|old| {
            old.metadata.labels != pod.metadata.labels
                || old.metadata.deletion_timestamp != pod.metadata.deletion_timestamp
                || pod::is_ready(old) != pod::is_ready(pod)
                || pod::phase(old) != pod::phase(pod)
                || old.metadata.owner_references != pod.metadata.owner_references
        });
        if !relevant {
            return;
        }
        let mut protecting = Vec::new();
        for budget in self.budgets.in_namespace(namespace(&**pod)) {
            let selector = selector_of(&budget);
            let before = change.previous().is_some_and(|old| selector.matches(old.metadata.labels.as_ref()));
            let protects = selector.matches(pod.metadata.labels.as_ref());
            if before || protects {
                self.queue.add_after(Key::of(&*budget), BATCH_DELAY);
            }
            protecting.extend(protects.then(|| name(&*budget).to_owned()));
        }
        if let [first, _, ..] = protecting.as_slice() {
            let (namespace, pod_name) = (namespace(&**pod), name(&**pod));
            let message = format!(
                "Pod \"{namespace}\"/\"{pod_name}\" matches multiple PodDisruptionBudgets.  Chose \"{first}\" arbitrarily."
            );
            self.recorder.warning(&**pod, "MultiplePodDisruptionBudgets", message);
        }
    }

    async fn update(&self, key: &Key, budget: &PodDisruptionBudget) -> Result<()> {
        let selector = selector_of(budget);
        let mut pods = self.pods.in_namespace(&key.namespace);
        pods.retain(|pod| selector.matches(pod.metadata.labels.as_ref()) && !pod::is_terminal(pod));
        if pods.is_empty() {
            self.recorder.normal(budget, "NoPods", "No matching pods found");
        }
        let scale =
            if plan::needs_scale(budget) { self.scale_of(&key.namespace, &pods).await } else { Ok(Scale::default()) };
        let scale = scale.inspect_err(|error| {
            let text = format!("Failed to calculate the number of expected pods: {error}");
            self.recorder.warning(budget, "CalculateExpectedPodCountFailed", text);
        })?;
        if !scale.unmanaged.is_empty() {
            let selector_text = messages::selector(budget.spec.as_ref().and_then(|spec| spec.selector.as_ref()));
            let text = format!(
                "Pods selected by this PodDisruptionBudget (selector: {selector_text}) were found to be unmanaged. As a result, the \
                 status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these \
                 pods please set \".spec.minAvailable\" field of the PDB to an integer value."
            );
            self.recorder.warning(budget, "UnmanagedPods", text);
        }
        let now = self.context.clock.now();
        let (status, recheck) = plan::status(budget, &pods, scale.expected, now);
        if budget.status.as_ref() != Some(&status) {
            let changed = PodDisruptionBudget { status: Some(status), ..budget.clone() };
            ignore_not_found(replace_status(&self.context.client, &changed).await)?;
        }
        if let Some(at) = recheck {
            self.queue.add_after(key.clone(), time::until(now, at));
        }
        Ok(())
    }

    /// How many pods their controllers desire in total.
    async fn scale_of(&self, namespace: &str, pods: &[Arc<Pod>]) -> Result<Scale> {
        let mut scales: HashMap<String, i32> = HashMap::new();
        let mut unmanaged = Vec::new();
        for pod in pods {
            let Some(reference) = owner::controller_of(&pod.metadata) else {
                unmanaged.push(name(&**pod).to_owned());
                continue;
            };
            if scales.contains_key(&reference.uid) {
                continue;
            }
            let Some((owner, count)) = self.desired_by(namespace, reference).await? else {
                return Err(Error::Later(format!("found no controllers for pod \"{}\"", name(&**pod))));
            };
            scales.insert(owner, count);
        }
        Ok(Scale { expected: scales.values().sum(), unmanaged })
    }

    /// The uid of the controller that decides the number of pods, and the number.
    async fn desired_by(&self, namespace: &str, reference: &OwnerReference) -> Result<Option<(String, i32)>> {
        let group = reference.api_version.split_once('/').map_or("", |(group, _)| group);
        let desired = match (group, reference.kind.as_str()) {
            ("apps", "ReplicaSet") => {
                let set = self.replica_sets.get(namespace, &reference.name).filter(|set| uid(&**set) == reference.uid);
                let above = set.as_ref().and_then(|set| owner::controller_of(&set.metadata));
                let deployment = above.filter(|above| above.kind == "Deployment");
                let deployment = deployment.and_then(|above| {
                    let found = self.deployments.get(namespace, &above.name)?;
                    (uid(&*found) == above.uid).then_some(found)
                });
                match (deployment, set) {
                    (Some(deployment), _) => {
                        Some((uid(&*deployment).to_owned(), deployment.spec.as_ref().and_then(|spec| spec.replicas)))
                    }
                    (None, Some(set)) => {
                        Some((uid(&*set).to_owned(), set.spec.as_ref().and_then(|spec| spec.replicas)))
                    }
                    (None, None) => None,
                }
            }
            ("apps", "StatefulSet") => {
                let set = self.stateful_sets.get(namespace, &reference.name).filter(|set| uid(&**set) == reference.uid);
                set.map(|set| (uid(&*set).to_owned(), set.spec.as_ref().and_then(|spec| spec.replicas)))
            }
            ("", "ReplicationController") => {
                let found = self.replication_controllers.get(namespace, &reference.name);
                let found = found.filter(|found| uid(&**found) == reference.uid);
                found.map(|found| (uid(&*found).to_owned(), found.spec.as_ref().and_then(|spec| spec.replicas)))
            }
            _ => return self.desired_by_scale(namespace, group, reference).await,
        };
        Ok(desired.map(|(uid, replicas)| (uid, replicas.unwrap_or(1))))
    }

    /// Other controllers report their number of pods through the scale subresource.
    async fn desired_by_scale(
        &self,
        namespace: &str,
        group: &str,
        reference: &OwnerReference,
    ) -> Result<Option<(String, i32)>> {
        let is_meant = |kind: &Kind| kind.resource.group == group && kind.resource.kind == reference.kind;
        let kind = self.kinds.find(&self.context.client, is_meant).await?;
        let Some(kind) = kind else {
            let OwnerReference { kind, api_version, .. } = reference;
            return Err(Error::Later(format!("no matches for kind {kind:?} in version {api_version:?}")));
        };
        if !kind.has_scale {
            return Err(Error::Later(format!("{} does not implement the scale subresource", kind.full_name())));
        }
        let api: Api<DynamicObject> = Api::namespaced_with(self.context.client.clone(), namespace, &kind.resource);
        let scale = ignore_not_found(api.get_scale(&reference.name).await)?;
        let scale = scale.filter(|scale| scale.metadata.uid.as_ref() == Some(&reference.uid));
        Ok(scale.map(|scale| (reference.uid.clone(), scale.spec.and_then(|spec| spec.replicas).unwrap_or(0))))
    }

    async fn clear_stale(&self, key: Key) -> Result<()> {
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else { return Ok(()) };
        let condition = pod::condition(&pod, "DisruptionTarget").filter(|condition| condition.status == "True");
        let Some(condition) = condition.filter(|_| !pod::is_terminating(&pod) && !pod::is_terminal(&pod)) else {
            return Ok(());
        };
        let now = self.context.clock.now();
        let since = condition.last_transition_time.as_ref().map_or(now, |at| at.0);
        let at = since.saturating_add(STALE_AFTER).unwrap_or(Timestamp::MAX);
        if at > now {
            self.stale.add_after(key, time::until(now, at));
            return Ok(());
        }
        let cleared = PodCondition {
            type_: "DisruptionTarget".to_owned(),
            status: "False".to_owned(),
            last_transition_time: Some(time::truncated(now)),
            ..PodCondition::default()
        };
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let patch = Patch::Strategic(json!({"metadata": {"uid": uid(&*pod)}, "status": {"conditions": [cleared]}}));
        ignore_not_found(api.patch_subresource("status", &key.name, &PatchParams::default(), &patch).await)?;
        Ok(())
    }
}

fn selector_of(budget: &PodDisruptionBudget) -> Selector {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector::of_option(selector).unwrap_or_else(|_| Selector::nothing())
}
