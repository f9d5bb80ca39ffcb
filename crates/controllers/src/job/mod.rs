//! Runs pods until enough of them have succeeded.
//!
//! [`view`] reads the state, [`plan`] decides what to do, [`tracking`] counts finished pods exactly once through a finalizer.
//! This module watches jobs and pods and carries decisions out.

mod back_off;
mod indexes;
mod plan;
mod pods;
mod policy;
mod tracking;
mod view;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use knarr_client::selector::Selector;
use knarr_client::{Change, Informer, WorkQueue, owner, pod, run_workers, time};
use kube::Api;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;

use crate::Context;
use crate::common::adoption::{claim_all, is_alive};
use crate::common::key::{name, namespace, uid};
use crate::common::pods::{
    BY_CONTROLLER, ORPHANS, PodControl, creation, each, index_by_controller, retryable, slow_start,
};
use crate::common::requests::{replace_status, unless_zero};
use crate::common::written_versions::WrittenVersions;
use crate::common::{Expectations, Key, journey};
use crate::error::{Error, Result, ignore_not_found, is_not_found};

use back_off::Records;
use plan::{Step, decide};
use view::{TRACKING, View, has_finalizer};

pub(crate) use plan::{COMPLETE, FAILED, condition as true_condition, is_finished};

/// Changes of pods come in bursts.
const BATCH_DELAY: Duration = Duration::from_millis(50);
/// What the API server rejects, it will reject again for a while.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
const CONTROLLER_NAME: &str = "kubernetes.io/job-controller";

pub async fn run(context: Context) {
    let jobs = context.informers.of::<Job>();
    let pods = context.informers.of::<Pod>();
    index_by_controller(&pods);
    let control = PodControl { client: context.client.clone(), recorder: context.recorder("job-controller") };
    let controller = Arc::new(Controller {
        context,
        jobs,
        pods,
        queue: WorkQueue::with_backoff(INITIAL_BACKOFF, MAX_BACKOFF),
        orphans: WorkQueue::new(),
        expectations: Expectations::default(),
        released: Released::default(),
        finished: Mutex::default(),
        failures: Records::default(),
        written: WrittenVersions::default(),
        control,
    });
    controller.watch();
    controller.jobs.synced().await;
    controller.pods.synced().await;
    let workers = controller.context.settings.concurrent_syncs;
    let jobs = {
        let controller = controller.clone();
        run_workers(controller.queue.clone(), workers, move |key| {
            let controller = controller.clone();
            async move { controller.reconcile(key).await }
        })
    };
    let orphans = {
        let controller = controller.clone();
        run_workers(controller.orphans.clone(), workers, move |key| {
            let controller = controller.clone();
            async move { controller.release_orphan(key).await }
        })
    };
    tokio::join!(jobs, orphans);
}

struct Controller {
    context: Context,
    jobs: Arc<Informer<Job>>,
    pods: Arc<Informer<Pod>>,
    queue: Arc<WorkQueue<Key>>,
    /// Pods with a finalizer whose job is gone.
    orphans: Arc<WorkQueue<Key>>,
    expectations: Expectations,
    released: Released,
    /// Uids of jobs written as finished whose change was not observed yet.
    finished: Mutex<HashSet<String>>,
    failures: Records,
    written: WrittenVersions,
    control: PodControl,
}

/// Pods whose finalizer was removed while the cache still shows it.
#[derive(Default)]
struct Released(Mutex<HashMap<Key, HashSet<String>>>);

impl Released {
    fn of(&self, key: &Key) -> HashSet<String> {
        self.0.lock().get(key).cloned().unwrap_or_default()
    }

    fn add(&self, key: &Key, uid: &str) {
        self.0.lock().entry(key.clone()).or_default().insert(uid.to_owned());
    }

    fn remove(&self, key: &Key, uid: &str) {
        let mut all = self.0.lock();
        if let Some(uids) = all.get_mut(key) {
            uids.remove(uid);
            if uids.is_empty() {
                all.remove(key);
            }
        }
    }

    fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

impl Controller {
    fn watch(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.jobs.on_change(move |change| {
            if let Some(controller) = weak.upgrade() {
                controller.job_changed(change);
            }
        });
        let weak = Arc::downgrade(self);
        self.pods.on_change(move |change| {
            if let Some(controller) = weak.upgrade() {
                controller.pod_changed(change);
            }
        });
    }

    fn job_changed(&self, change: &Change<Job>) {
        let job = change.latest();
        let key = Key::of(&**job);
        if matches!(change, Change::Deleted(_)) || is_finished(job) {
            self.finished.lock().remove(uid(&**job));
            for pod in self.pods.by_index(BY_CONTROLLER, uid(&**job)) {
                if has_finalizer(&pod) {
                    self.orphans.add(Key::of(&*pod));
                }
            }
        }
        self.queue.add(key);
    }

    fn pod_changed(&self, change: &Change<Pod>) {
        let pod = change.latest();
        if let Some(former) = change.previous().and_then(|old| self.job_of(old)) {
            self.note_release(&Key::of(&*former), change);
            self.queue.add_after(Key::of(&*former), BATCH_DELAY);
        }
        let Some(job) = self.job_of(pod) else { return self.orphan_changed(change) };
        let key = Key::of(&*job);
        match change {
            Change::Added(pod) if pod::is_terminating(pod) => self.expectations.deleted(&key, uid(&**pod)),
            Change::Added(_) => self.expectations.created(&key),
            Change::Updated { new, .. } if pod::is_terminating(new) => self.expectations.deleted(&key, uid(&**new)),
            Change::Updated { .. } => {}
            Change::Deleted(pod) => self.expectations.deleted(&key, uid(&**pod)),
        }
        self.note_release(&key, change);
        if is_finished(&job) && has_finalizer(pod) && !matches!(change, Change::Deleted(_)) {
            self.orphans.add(Key::of(&**pod));
        }
        self.queue.add_after(key, BATCH_DELAY);
    }

    fn note_release(&self, key: &Key, change: &Change<Pod>) {
        let pod = change.latest();
        if matches!(change, Change::Deleted(_)) || !has_finalizer(pod) {
            self.released.remove(key, uid(&**pod));
        }
    }

    fn orphan_changed(&self, change: &Change<Pod>) {
        let pod = change.latest();
        let reference = owner::controller_of(&pod.metadata);
        if matches!(change, Change::Deleted(_)) || reference.is_some_and(|reference| reference.kind != "Job") {
            return;
        }
        if has_finalizer(pod) {
            self.orphans.add(Key::of(&**pod));
        }
        let same = change.previous().is_some_and(|old| old.metadata.labels == pod.metadata.labels);
        if reference.is_some() || same {
            return;
        }
        for job in self.jobs.in_namespace(namespace(&**pod)) {
            if selector_of(&job).matches(pod.metadata.labels.as_ref()) {
                self.queue.add_after(Key::of(&*job), BATCH_DELAY);
            }
        }
    }

    fn job_of(&self, pod: &Pod) -> Option<Arc<Job>> {
        let reference = owner::controller_of(&pod.metadata).filter(|reference| reference.kind == "Job")?;
        self.jobs.get(namespace(pod), &reference.name).filter(|job| uid(&**job) == reference.uid)
    }

    async fn reconcile(&self, key: Key) -> Result<()> {
        let _step = journey::sync_span("job", "jobs", &key);
        let Some(job) = self.jobs.get(&key.namespace, &key.name) else {
            self.expectations.forget(&key);
            self.released.forget(&key);
            self.failures.forget(&key);
            self.written.forget(&key);
            return Ok(());
        };
        if self.written.is_newer_than(&key, &job.metadata) {
            return Ok(());
        }
        let Some(spec) = job
            .spec
            .as_ref()
            .filter(|spec| spec.managed_by.as_deref().is_none_or(|manager| manager == CONTROLLER_NAME))
        else {
            return Ok(());
        };
        if is_finished(&job) {
            self.failures.forget(&key);
            return Ok(());
        }
        if self.finished.lock().contains(uid(&*job)) {
            return Ok(());
        }
        if !matches!(spec.completion_mode.as_deref(), None | Some("NonIndexed" | "Indexed")) {
            let message = "Skipped Job sync because completion mode is unknown";
            self.control.recorder.warning(&*job, "UnknownCompletionMode", message);
            return Ok(());
        }
        let may_act = self.expectations.are_satisfied(&key);
        let mut candidates = self.pods.by_index(BY_CONTROLLER, uid(&*job));
        candidates.extend(self.pods.by_index(ORPHANS, &key.namespace));
        let client = &self.context.client;
        let selector = selector_of(&job);
        let pods = claim_all(client, &*job, &selector, candidates, &[TRACKING], || is_alive(client, &*job)).await?;
        let view = View::new(&job, spec, pods, self.released.of(&key));
        self.advance(&key, &view, may_act).await
    }

    /// Decides, acts and updates the status.
    async fn advance(&self, key: &Key, view: &View<'_>, may_act: bool) -> Result<()> {
        let now = self.context.clock.now();
        let mut status = view.job.status.clone().unwrap_or_default();
        if status.start_time.is_none() && !view.is_suspended() {
            status.start_time = Some(time::truncated(now));
        }
        let failures = self.failures.get(key).after(&view.new_succeeded, &view.new_failed);
        let decision = decide(view, status.start_time.as_ref().map(|at| at.0), failures, now);
        if let Some(after) = decision.recheck {
            self.queue.add_after(key.clone(), after);
        }
        let was_over = matches!(decision.step, Step::Finish(_));
        let leaving = view.job.metadata.deletion_timestamp.is_some();
        let mut running =
            Running { active: view.active.len() as i32, ready: view.ready, terminating: view.terminating };
        let (finished, error) = match decision.step {
            Step::Finish(condition) => self.stop(view, condition, may_act, &mut running).await,
            _ if !may_act || leaving => (None, None),
            Step::Remove(pods) => (None, self.remove(key, view, pods, &mut running).await),
            Step::Create(indexes) => (None, self.create(key, view, indexes, &mut running).await),
            Step::Nothing => (None, None),
        };
        let acted = may_act && !leaving && !was_over;
        let finished = finished.or_else(|| {
            let done =
                plan::is_complete(view, running.active) && plan::condition(view.job, plan::FAILURE_TARGET).is_none();
            let message = "Reached expected number of succeeded pods";
            done.then(|| plan::new_condition(plan::SUCCESS_CRITERIA_MET, "CompletionsReached", message, now))
        });
        if finished.is_none() && acted {
            self.set_suspended_condition(view, &mut status, now);
        }
        status.active = unless_zero(running.active);
        status.ready = Some(running.ready);
        status.terminating = Some(running.terminating);
        self.track_finished(key, view, status, finished, failures, running.terminating).await?;
        error.map_or(Ok(()), Err)
    }

    /// Deletes all running pods; the job is finished only when that succeeded and nothing else is pending.
    async fn stop(
        &self,
        view: &View<'_>,
        condition: JobCondition,
        may_act: bool,
        running: &mut Running,
    ) -> (Option<JobCondition>, Option<Error>) {
        let outcome = each(view.active.clone(), |pod| async move {
            ignore_not_found(self.control.delete(view.job, &pod).await).map(drop)
        })
        .await;
        match outcome {
            Ok(()) => {
                running.terminating += running.active;
                (running.active, running.ready) = (0, 0);
                (may_act.then_some(condition), None)
            }
            Err(error) => (None, Some(error.into())),
        }
    }

    async fn remove(&self, key: &Key, view: &View<'_>, pods: Vec<Arc<Pod>>, running: &mut Running) -> Option<Error> {
        self.expectations.expect_deletions(key, pods.iter().map(|pod| uid(&**pod).to_owned()));
        let (count, ready) = (pods.len() as i32, pods.iter().filter(|pod| pod::is_ready(pod)).count() as i32);
        let outcome = each(pods, |pod| async move {
            let outcome = match self.strip(&pod).await {
                Ok(()) => ignore_gone(self.control.delete(view.job, &pod).await, || {
                    self.expectations.deleted(key, uid(&*pod));
                }),
                Err(error) => Err(error),
            };
            if outcome.is_err() {
                self.expectations.deleted(key, uid(&*pod));
            }
            outcome
        })
        .await;
        match outcome {
            Ok(()) => {
                running.active -= count;
                running.ready -= ready;
                running.terminating += count;
                None
            }
            Err(error) => Some(error.into()),
        }
    }

    async fn create(
        &self,
        key: &Key,
        view: &View<'_>,
        indexes: Vec<Option<u32>>,
        running: &mut Running,
    ) -> Option<Error> {
        let count = indexes.len();
        self.expectations.expect_creations(key, count);
        let (succeeded, error) = slow_start(count, 1, |at| {
            let pod = pods::new_pod(view, indexes[at]);
            async move { creation(self.control.create(view.job, &pod).await) }
        })
        .await;
        for _ in succeeded..count {
            self.expectations.created(key);
        }
        running.active += succeeded as i32;
        retryable(error)
    }

    fn set_suspended_condition(&self, view: &View, status: &mut JobStatus, now: Timestamp) {
        let (condition_status, reason, message, event) = match view.is_suspended() {
            true => ("True", "JobSuspended", "Job suspended", "Suspended"),
            false => ("False", "JobResumed", "Job resumed", "Resumed"),
        };
        let conditions = status.conditions.clone().unwrap_or_default();
        let present = conditions.iter().position(|condition| condition.type_ == "Suspended");
        let same = present.is_some_and(|at| {
            conditions[at].status == condition_status && conditions[at].reason.as_deref() == Some(reason)
        });
        if same || present.is_none() && !view.is_suspended() {
            return;
        }
        let condition = JobCondition {
            status: condition_status.to_owned(),
            ..plan::new_condition("Suspended", reason, message, now)
        };
        let conditions = status.conditions.get_or_insert_default();
        match present {
            Some(at) => conditions[at] = condition,
            None => conditions.push(condition),
        }
        status.start_time = (!view.is_suspended()).then(|| time::truncated(now));
        self.control.recorder.normal(view.job, event, message);
    }

    /// Writes the status before and after removing finalizers, so that each finished pod is counted once.
    async fn track_finished(
        &self,
        key: &Key,
        view: &View<'_>,
        status: JobStatus,
        finished: Option<JobCondition>,
        failures: back_off::Failures,
        terminating: i32,
    ) -> Result<()> {
        let client = &self.context.client;
        let mut tracked = tracking::track(view, status, finished, self.context.clock.now());
        let mut job = view.job.clone();
        if job.status.as_ref() != Some(&tracked.status) {
            job.status = Some(tracked.status.clone());
            job = replace_status(client, &job).await?;
            self.written.note(key, &job.metadata);
            self.failures.set(key, failures);
        }
        let stripped = Mutex::new(Vec::new());
        let outcome = each(tracked.release, |pod| {
            let stripped = &stripped;
            async move {
                self.released.add(key, uid(&*pod));
                match self.strip(&pod).await {
                    Ok(()) => {
                        stripped.lock().push(uid(&*pod).to_owned());
                        Ok(())
                    }
                    Err(error) => {
                        self.released.remove(key, uid(&*pod));
                        Err(error)
                    }
                }
            }
        })
        .await;
        for uid in stripped.into_inner() {
            tracked.still_tracked.remove(&uid);
        }
        let mut status = job.status.clone().unwrap_or_default();
        status.uncounted_terminated_pods.get_or_insert_default();
        tracking::count_released(&mut status, &tracked.still_tracked);
        let ending = tracked.ending.filter(|_| outcome.is_ok() && !tracked.reached_limit);
        let finished_now = ending.as_ref().is_some_and(|ending| tracking::end(&mut status, ending, terminating));
        if job.status.as_ref() != Some(&status) {
            job.status = Some(status);
            let written = replace_status(client, &job).await?;
            self.written.note(key, &written.metadata);
        }
        if let (true, Some(ending)) = (finished_now, ending) {
            self.finished.lock().insert(uid(&job).to_owned());
            self.record_finish(&job, &ending);
        }
        Ok(outcome?)
    }

    fn record_finish(&self, job: &Job, ending: &JobCondition) {
        let recorder = &self.control.recorder;
        if ending.type_ != COMPLETE {
            let reason = ending.reason.as_deref().unwrap_or("");
            return recorder.warning(job, reason, ending.message.clone().unwrap_or_default());
        }
        let completions = job.spec.as_ref().and_then(|spec| spec.completions);
        let succeeded = job.status.as_ref().and_then(|status| status.succeeded).unwrap_or(0);
        if completions.is_some_and(|completions| succeeded > completions) {
            let message = "Too many succeeded pods running after completion count reached";
            recorder.warning(job, "TooManySucceededPods", message);
        }
        recorder.normal(job, "Completed", "Job completed");
    }

    /// Removes the finalizer; success when the pod is gone.
    async fn strip(&self, pod: &Pod) -> kube::Result<()> {
        if !has_finalizer(pod) {
            return Ok(());
        }
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace(pod));
        let patch = json!({"metadata": {"uid": uid(pod), "$deleteFromPrimitiveList/finalizers": [TRACKING]}});
        match api.patch(name(pod), &PatchParams::default(), &Patch::Strategic(patch)).await {
            Err(error) if is_not_found(&error) || crate::error::has_code(&error, 409) => Ok(()),
            result => result.map(drop),
        }
    }

    async fn release_orphan(&self, key: Key) -> Result<()> {
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else { return Ok(()) };
        if let Some(reference) = owner::controller_of(&pod.metadata) {
            let unfinished = self.job_of(&pod).is_some_and(|job| !is_finished(&job));
            let external = self.job_of(&pod).is_some_and(|job| {
                let manager = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
                manager.is_some_and(|manager| manager != CONTROLLER_NAME)
            });
            if reference.kind != "Job" || unfinished || external {
                return Ok(());
            }
        }
        Ok(self.strip(&pod).await?)
    }
}

/// Counts of the status that change with the actions.
struct Running {
    active: i32,
    ready: i32,
    terminating: i32,
}

fn ignore_gone(result: kube::Result<()>, gone: impl FnOnce()) -> kube::Result<()> {
    match result {
        Err(error) if is_not_found(&error) => {
            gone();
            Ok(())
        }
        result => result,
    }
}

fn selector_of(job: &Job) -> Selector {
    let selector = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    Selector::of_option(selector).unwrap_or_else(|_| Selector::nothing())
}
