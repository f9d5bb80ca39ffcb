//! Rolls out pods of a template through ReplicaSets, one per revision of the template.
//!
//! [`mod@plan`] decides in one step what happens to all ReplicaSets and what the status says; [`rolling`], [`scale`],
//! [`revision`] and [`status`] hold the decisions. This module watches the objects and carries plans out.

mod plan;
mod revision;
mod rolling;
mod scale;
mod status;

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_client::selector::{self, Selector};
use knarr_client::{Change, EventRecorder, Informer, WorkQueue, owner, pod};
use kube::Api;
use kube::api::PostParams;

use crate::Context;
use crate::common::adoption::{claim_all, is_alive};
use crate::common::key::{name, namespace, uid};
use crate::common::pods::{BY_CONTROLLER, ORPHANS, index_by_controller};
use crate::common::reconcile::{Reconcile, run_controller};
use crate::common::requests::{delete, replace, replace_status};
use crate::common::{Key, journey};
use crate::error::{Error, Result, is_already_there, message, namespace_terminating};

use plan::{Observed, Plan, Rollback, plan};

pub async fn run(context: Context) {
    let deployments = context.informers.of::<Deployment>();
    let replica_sets = context.informers.of::<ReplicaSet>();
    let pods = context.informers.of::<Pod>();
    index_by_controller(&pods);
    replica_sets
        .add_index(BY_CONTROLLER, |set| owner::controller_uid(&set.metadata).map(str::to_owned).into_iter().collect());
    replica_sets.add_index(ORPHANS, |set| {
        let orphan = owner::controller_of(&set.metadata).is_none();
        orphan.then(|| namespace(set).to_owned()).into_iter().collect()
    });
    let queue: Arc<WorkQueue<Key>> = WorkQueue::new();
    let recorder = context.recorder("deployment-controller");
    let workers = context.settings.concurrent_syncs.of("concurrent-deployment-syncs");
    let controller = Arc::new(Controller { context, deployments, replica_sets, pods, queue: queue.clone(), recorder });
    controller.watch();
    controller.deployments.synced().await;
    controller.replica_sets.synced().await;
    controller.pods.synced().await;
    run_controller(&controller, &queue, workers).await;
}

struct Controller {
    context: Context,
    deployments: Arc<Informer<Deployment>>,
    replica_sets: Arc<Informer<ReplicaSet>>,
    pods: Arc<Informer<Pod>>,
    queue: Arc<WorkQueue<Key>>,
    recorder: EventRecorder,
}

impl Reconcile<Key> for Controller {
    async fn reconcile(self: &Arc<Self>, key: Key) -> Result<()> {
        let _step = journey::sync_span("deployment", "deployments", &key);
        let Some(deployment) = self.deployments.get(&key.namespace, &key.name) else { return Ok(()) };
        if selects_everything(&deployment) {
            return self.refuse(&deployment).await;
        }
        let mut candidates = self.replica_sets.by_index(BY_CONTROLLER, uid(&*deployment));
        candidates.extend(self.replica_sets.by_index(ORPHANS, &key.namespace));
        let client = &self.context.client;
        let selector = selector_of(&deployment);
        let sets =
            claim_all(client, &*deployment, &selector, candidates, &[], || is_alive(client, &*deployment)).await?;
        let running = if plan::recreates(&deployment) { self.sets_with_pods(&sets) } else { HashSet::new() };
        let plan = plan(Observed { deployment: &deployment, sets: &sets, running: &running }, self.context.clock.now());
        self.carry_out(&key, &deployment, plan).await
    }
}

impl Controller {
    fn watch(self: &Arc<Self>) {
        let queue = self.queue.clone();
        self.deployments.on_change(move |change| queue.add(Key::of(&**change.latest())));
        let weak = Arc::downgrade(self);
        self.replica_sets.on_change(move |change| {
            if let Some(controller) = weak.upgrade() {
                controller.replica_set_changed(change);
            }
        });
        let weak = Arc::downgrade(self);
        self.pods.on_change(move |change| {
            if let (Change::Deleted(pod), Some(controller)) = (change, weak.upgrade()) {
                controller.pod_deleted(pod);
            }
        });
    }

    fn replica_set_changed(&self, change: &Change<ReplicaSet>) {
        let set = change.latest();
        let current = self.deployment_of(set);
        if let Some(former) = change.previous().and_then(|old| self.deployment_of(old)) {
            self.queue.add(Key::of(&*former));
        }
        if let Some(deployment) = current {
            return self.queue.add(Key::of(&*deployment));
        }
        if matches!(change, Change::Deleted(_)) || owner::controller_of(&set.metadata).is_some() {
            return;
        }
        for deployment in self.deployments.in_namespace(namespace(&**set)) {
            let selector = selector_of(&deployment);
            if !selector.is_everything() && selector.matches(set.metadata.labels.as_ref()) {
                self.queue.add(Key::of(&*deployment));
            }
        }
    }

    /// Recreate waits until the last old pod is gone.
    fn pod_deleted(&self, pod: &Pod) {
        let Some(reference) = owner::controller_of(&pod.metadata).filter(|owner| owner.kind == "ReplicaSet") else {
            return;
        };
        let set = self.replica_sets.get(namespace(pod), &reference.name).filter(|set| uid(&**set) == reference.uid);
        if let Some(deployment) = set.and_then(|set| self.deployment_of(&set))
            && plan::recreates(&deployment)
        {
            self.queue.add(Key::of(&*deployment));
        }
    }

    fn deployment_of(&self, set: &ReplicaSet) -> Option<Arc<Deployment>> {
        let reference = owner::controller_of(&set.metadata).filter(|owner| owner.kind == "Deployment")?;
        self.deployments.get(namespace(set), &reference.name).filter(|found| uid(&**found) == reference.uid)
    }

    /// Uids of ReplicaSets that have pods which are not finished.
    fn sets_with_pods(&self, sets: &[Arc<ReplicaSet>]) -> HashSet<String> {
        let has_pods =
            |set: &ReplicaSet| self.pods.by_index(BY_CONTROLLER, uid(set)).iter().any(|pod| !pod::is_terminal(pod));
        sets.iter().filter(|set| has_pods(set)).map(|set| uid(&**set).to_owned()).collect()
    }

    async fn carry_out(&self, key: &Key, deployment: &Deployment, plan: Plan) -> Result<()> {
        if let Some(rollback) = plan.rollback {
            return self.roll_back(deployment, rollback).await;
        }
        let client = &self.context.client;
        if let Some(new) = &plan.create {
            self.create(deployment, new).await?;
        }
        for update in &plan.updates {
            replace(client, &update.set).await?;
            if update.from != update.to {
                let direction = if update.from < update.to { "up" } else { "down" };
                let set = name(&update.set);
                let message = format!("Scaled {direction} replica set {set} from {} to {}", update.from, update.to);
                self.recorder.normal(deployment, "ScalingReplicaSet", message);
            }
        }
        for set in &plan.deletions {
            delete(client, &**set, None).await?;
        }
        if let Some(changed) = plan.changed_deployment(deployment) {
            replace_status(client, &changed).await?;
        }
        if let Some(after) = plan.recheck {
            self.queue.add_after(key.clone(), after);
        }
        Ok(())
    }

    async fn create(&self, deployment: &Deployment, new: &ReplicaSet) -> Result<()> {
        let client = &self.context.client;
        let api: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace(deployment));
        let error = match api.create(&PostParams::default(), new).await {
            Ok(created) => {
                let replicas = plan::replicas_of(&created);
                if replicas > 0 {
                    let message = format!("Scaled up replica set {} from 0 to {replicas}", name(&created));
                    self.recorder.normal(deployment, "ScalingReplicaSet", message);
                }
                return Ok(());
            }
            Err(error) => error,
        };
        if is_already_there(&error) {
            let there = api.get_opt(name(new)).await?;
            let is_ours = there.is_none_or(|set| {
                owner::is_controlled_by(&set.metadata, &deployment.metadata)
                    && revision::same_template(deployment, &set)
            });
            if is_ours {
                return Err(Error::Later("the cache does not hold the new ReplicaSet yet".to_owned()));
            }
            // Another template has the same hash: the next attempt includes the collision count in the hash.
            replace_status(client, &status::with_collision(deployment)).await?;
        } else if !namespace_terminating(&error) {
            let text = format!("Failed to create new replica set \"{}\": {}", name(new), message(&error));
            if let Some(failed) = status::with_create_failure(deployment, &text, self.context.clock.now()) {
                replace_status(client, &failed).await?;
            }
            self.recorder.warning(deployment, "ReplicaSetCreateError", text);
        }
        Err(Error::Api(error))
    }

    async fn roll_back(&self, deployment: &Deployment, rollback: Rollback) -> Result<()> {
        if let Some((reason, message)) = &rollback.warning {
            self.recorder.warning(deployment, reason, message.clone());
        }
        replace(&self.context.client, &rollback.deployment).await?;
        if let Some(message) = rollback.done {
            self.recorder.normal(deployment, "DeploymentRollback", message);
        }
        Ok(())
    }

    async fn refuse(&self, deployment: &Deployment) -> Result<()> {
        let message = "This deployment is selecting all pods. A non-empty selector is required.";
        self.recorder.warning(deployment, "SelectingAll", message);
        let generation = deployment.metadata.generation;
        if deployment.status.as_ref().and_then(|status| status.observed_generation) < generation {
            let mut changed = deployment.clone();
            changed.status.get_or_insert_default().observed_generation = generation;
            replace_status(&self.context.client, &changed).await?;
        }
        Ok(())
    }
}

fn selector_of(deployment: &Deployment) -> Selector {
    deployment.spec.as_ref().and_then(|spec| selector::of(&spec.selector).ok()).unwrap_or_else(Selector::nothing)
}

fn selects_everything(deployment: &Deployment) -> bool {
    deployment.spec.as_ref().is_some_and(|spec| spec.selector == LabelSelector::default())
}
