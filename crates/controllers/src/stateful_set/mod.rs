//! Runs pods that each have a stable name, an ordinal, and their own volumes.
//!
//! [`plan`] decides, [`identity`] builds pods, [`claims`] manages their volume claims, [`revision`] their history.

mod claims;
mod identity;
mod plan;
mod revision;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use knarr_client::selector::{self, Selector};
use knarr_client::{Change, EventRecorder, Informer, WorkQueue, owner, pod, time};
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};

use crate::Context;
use crate::common::adoption::{claim_all, is_alive};
use crate::common::key::{name, namespace, uid};
use crate::common::pods::{BY_CONTROLLER, ORPHANS, index_by_controller, slow_start};
use crate::common::reconcile::{Reconcile, run_controller};
use crate::common::requests::{replace, replace_status};
use crate::common::{Key, history, journey};
use crate::error::{Error, Result, ignore_not_found, is_already_there, is_conflict, message};

use plan::{Action, Observed};

pub async fn run(context: Context) {
    let sets = context.informers.of::<StatefulSet>();
    let pods = context.informers.of::<Pod>();
    let claims = context.informers.of::<PersistentVolumeClaim>();
    let revisions = context.informers.of::<ControllerRevision>();
    index_by_controller(&pods);
    history::index(&revisions);
    let recorder = context.recorder("statefulset-controller");
    let controller = Arc::new(Controller { context, sets, pods, claims, revisions, queue: WorkQueue::new(), recorder });
    controller.watch();
    controller.sets.synced().await;
    controller.pods.synced().await;
    controller.claims.synced().await;
    controller.revisions.synced().await;
    let workers = controller.context.settings.concurrent_syncs.of("concurrent-statefulset-syncs");
    run_controller(&controller, &controller.queue, workers).await;
}

struct Controller {
    context: Context,
    sets: Arc<Informer<StatefulSet>>,
    pods: Arc<Informer<Pod>>,
    claims: Arc<Informer<PersistentVolumeClaim>>,
    revisions: Arc<Informer<ControllerRevision>>,
    queue: Arc<WorkQueue<Key>>,
    recorder: EventRecorder,
}

impl Reconcile<Key> for Controller {
    async fn reconcile(self: &Arc<Self>, key: Key) -> Result<()> {
        let _step = journey::sync_span("statefulset", "statefulsets", &key);
        let Some(set) = self.sets.get(&key.namespace, &key.name) else { return Ok(()) };
        let Some(spec) = &set.spec else { return Ok(()) };
        let selector = selector::of(&spec.selector).unwrap_or_else(|_| Selector::nothing());
        let client = &self.context.client;
        let alive = || is_alive(client, &*set);
        let mut candidates = self.revisions.by_index(BY_CONTROLLER, uid(&*set));
        candidates.extend(self.revisions.by_index(ORPHANS, &key.namespace));
        let revisions = claim_all(client, &*set, &selector, candidates, &[], alive).await?;
        let revisions = revision::find(client, &set, spec, revisions).await?;

        let mut candidates = self.pods.by_index(BY_CONTROLLER, uid(&*set));
        let orphans = self.pods.by_index(ORPHANS, &key.namespace).into_iter();
        candidates.extend(
            orphans.filter(|pod| {
                identity::parent_and_ordinal(name(&**pod)).is_some_and(|(parent, _)| parent == name(&*set))
            }),
        );
        let pods = claim_all(client, &*set, &selector, candidates, &[], alive).await?;
        let now = self.context.clock.now();
        let observed = Observed { set: &set, spec, pods: &pods, revisions: &revisions };
        let plan = plan::plan(&observed, now);
        let outcome = self.carry_out(&set, plan.actions, plan.in_order).await;
        let mut status = plan.status;
        if outcome.is_err() {
            // The expected changes may have failed.
            status = plan::status(&observed, now);
        }
        if set.status.as_ref() != Some(&status) {
            let changed = StatefulSet { status: Some(status.clone()), ..(*set).clone() };
            ignore_not_found(replace_status(client, &changed).await)?;
        }
        outcome?;
        revision::clean_up(client, spec, &revisions, &pods).await?;
        let min_ready = spec.min_ready_seconds.unwrap_or(0);
        if min_ready > 0 && status.ready_replicas != status.available_replicas.filter(|count| *count != 0) {
            let next = pods.iter().filter_map(|pod| pod::available_at(pod, min_ready, now)).min();
            let wait = next.map_or(Duration::from_secs(min_ready as u64), |at| time::until(now, at));
            self.queue.add_after(key, wait);
        }
        Ok(())
    }
}

impl Controller {
    fn watch(self: &Arc<Self>) {
        let queue = self.queue.clone();
        self.sets.on_change(move |change| queue.add(Key::of(&**change.latest())));
        let weak = Arc::downgrade(self);
        self.pods.on_change(move |change| {
            if let Some(controller) = weak.upgrade() {
                controller.pod_changed(change);
            }
        });
    }

    fn pod_changed(&self, change: &Change<Pod>) {
        let pod = change.latest();
        if let Some(former) = change.previous().and_then(|old| self.owner_key(old)) {
            self.queue.add(former);
        }
        if let Some(key) = self.owner_key(pod) {
            return self.queue.add(key);
        }
        let same = change.previous().is_some_and(|old| old.metadata.labels == pod.metadata.labels);
        if same || matches!(change, Change::Deleted(_)) || owner::controller_of(&pod.metadata).is_some() {
            return;
        }
        let Some((parent, _)) = identity::parent_and_ordinal(name(&**pod)) else { return };
        if let Some(set) = self.sets.get(namespace(&**pod), parent) {
            self.queue.add(Key::of(&*set));
        }
    }

    fn owner_key(&self, pod: &Pod) -> Option<Key> {
        let reference = owner::controller_of(&pod.metadata).filter(|owner| owner.kind == "StatefulSet")?;
        let set = self.sets.get(namespace(pod), &reference.name)?;
        (uid(&*set) == reference.uid).then(|| Key::of(&*set))
    }

    async fn carry_out(&self, set: &StatefulSet, actions: Vec<Action>, in_order: bool) -> Result<()> {
        if in_order {
            for action in actions {
                self.act(set, &action).await?;
            }
            return Ok(());
        }
        let (_, error) = slow_start(actions.len(), 1, |at| self.act(set, &actions[at])).await;
        error.map_or(Ok(()), Err)
    }

    async fn act(&self, set: &StatefulSet, action: &Action) -> Result<()> {
        match action {
            Action::Create(pod) => self.create(set, pod).await,
            Action::Delete(pod) => self.delete(set, pod).await,
            Action::CreateClaims(pod) => {
                self.create_claims(set, pod).await?;
                self.own_claims(set, pod).await.map(drop)
            }
            Action::OwnClaims(pod) => self.own_claims(set, pod).await.map(drop),
            Action::Correct(pod) => self.correct(set, pod).await,
        }
    }

    async fn correct(&self, set: &StatefulSet, pod: &Pod) -> Result<()> {
        let Some(spec) = &set.spec else { return Ok(()) };
        let mut changed = false;
        if identity::corrected(set, spec, pod).is_some() {
            self.create_claims(set, pod).await?;
            // The cache holds only some fields of a pod: the update starts from the server's object.
            let api: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace(set));
            let live = api.get_opt(name(pod)).await?.filter(|live| uid(live) == uid(pod));
            if let Some(corrected) = live.and_then(|live| identity::corrected(set, spec, &live)) {
                let result = replace(&self.context.client, &corrected).await;
                if let Err(error) = result {
                    let error = Error::from(error);
                    self.record_event("update", set, name(pod), Some(&error));
                    return Err(error);
                }
                changed = true;
            }
        }
        changed |= self.own_claims(set, pod).await?;
        if changed {
            self.record_event("update", set, name(pod), None);
        }
        Ok(())
    }

    async fn create(&self, set: &StatefulSet, pod: &Pod) -> Result<()> {
        if claims::are_leaving(set, pod, |claim| self.claims.get(namespace(set), claim)) {
            // The claims are being deleted with a former pod of this name; new ones are created after them.
            return Ok(());
        }
        if let Err(error) = self.create_claims(set, pod).await {
            self.record_event("create", set, name(pod), Some(&error));
            return Err(error);
        }
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace(set));
        let result = api.create(&PostParams::default(), pod).await;
        if result.as_ref().is_err_and(is_already_there) {
            return Err(Error::Later("a pod of this name exists already".to_owned()));
        }
        let result = result.map_err(Error::from);
        self.record_event("create", set, name(pod), result.as_ref().err());
        let created = result?;
        self.own_claims(set, &created).await.map(drop)
    }

    async fn delete(&self, set: &StatefulSet, pod: &Pod) -> Result<()> {
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace(set));
        let preconditions = Preconditions { uid: Some(uid(pod).to_owned()), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let result = match ignore_not_found(api.delete(name(pod), &params).await) {
            Err(error) if is_conflict(&error) => return Err(Error::Later("another pod has the name".to_owned())),
            result => result.map_err(Error::from),
        };
        self.record_event("delete", set, name(pod), result.as_ref().err());
        result.map(drop)
    }

    async fn create_claims(&self, set: &StatefulSet, pod: &Pod) -> Result<()> {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.context.client.clone(), namespace(set));
        for claim in claims::desired(set, pod) {
            if let Some(present) = self.claims.get(namespace(set), name(&claim)) {
                if present.metadata.deletion_timestamp.is_some() {
                    return Err(Error::Later(format!("pvc {} is being deleted", name(&claim))));
                }
                continue;
            }
            match api.create(&PostParams::default(), &claim).await {
                Err(error) if is_already_there(&error) => {}
                Err(error) => {
                    let text = format!(
                        "Create Claim {} for Pod {} in StatefulSet {} failed error: {}",
                        name(&claim),
                        name(pod),
                        name(set),
                        message(&error)
                    );
                    self.recorder.warning(set, "FailedCreate", text);
                    return Err(Error::Later(format!("failed to create PVC {}: {}", name(&claim), message(&error))));
                }
                Ok(_) => {
                    let text =
                        format!("Create Claim {} Pod {} in StatefulSet {} success", name(&claim), name(pod), name(set));
                    self.recorder.normal(set, "SuccessfulCreate", text);
                }
            }
        }
        Ok(())
    }

    /// Sets the claims' owners as the retention policy requires. Returns whether any was changed.
    async fn own_claims(&self, set: &StatefulSet, pod: &Pod) -> Result<bool> {
        let mut any = false;
        for claim in claims::desired(set, pod) {
            let Some(present) = self.claims.get(namespace(set), name(&claim)) else { continue };
            if claims::has_other_controller(&present, set, pod) {
                let text = format!(
                    "PersistentVolumeClaim {} has a conflicting OwnerReference that acts as a manging controller, the \
                     retention policy is ignored for this claim",
                    name(&claim)
                );
                self.recorder.warning(set, "ConflictingController", text);
            }
            if let Some(changed) = claims::with_owners(&present, set, pod) {
                replace(&self.context.client, &changed).await?;
                any = true;
            }
        }
        Ok(any)
    }

    fn record_event(&self, verb: &str, set: &StatefulSet, pod: &str, error: Option<&Error>) {
        let title = match verb {
            "create" => "Create",
            "update" => "Update",
            _ => "Delete",
        };
        let set_name = name(set);
        match error {
            None => {
                let text = format!("{title} Pod {pod} in StatefulSet {set_name} successful");
                self.recorder.normal(set, &format!("Successful{title}"), text);
            }
            Some(error) => {
                let text = format!("{title} Pod {pod} in StatefulSet {set_name} failed error: {error}");
                self.recorder.warning(set, &format!("Failed{title}"), text);
            }
        }
    }
}
