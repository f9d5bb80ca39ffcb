//! Carries a decision out: creates and deletes pods, and updates the status.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::{JobCondition, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use knarr_client::{pod, time};

use super::plan::{self, Step, decide};
use super::view::View;
use super::{Controller, pods};
use crate::common::Key;
use crate::common::key::uid;
use crate::common::pods::{creation, each, retryable, slow_start};
use crate::common::requests::unless_zero;
use crate::error::{Error, Result, ignore_not_found, is_not_found};

/// Counts of the status that change with the actions.
struct Running {
    active: i32,
    ready: i32,
    terminating: i32,
}

impl Controller {
    /// Decides, acts and updates the status.
    /// `action` becomes what was done, as metrics name it.
    pub(super) async fn advance(
        &self,
        key: &Key,
        view: &View<'_>,
        may_act: bool,
        action: &mut &'static str,
    ) -> Result<()> {
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
        if may_act && view.job.metadata.deletion_timestamp.is_none() {
            *action = match &decision.step {
                Step::Finish(_) => *action,
                Step::Remove(_) => "pods_deleted",
                Step::Create(_) => "pods_created",
                Step::Nothing => "tracking",
            };
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
        // A job that fails is not complete as well, though its failure may have to wait for the next sync.
        let finished = finished.or_else(|| {
            let done = !was_over
                && plan::is_complete(view, running.active)
                && plan::condition(view.job, plan::FAILURE_TARGET).is_none();
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
                Ok(()) => ignore_not_found_with(self.control.delete(view.job, &pod).await, || {
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
}

fn ignore_not_found_with(result: kube::Result<()>, gone: impl FnOnce()) -> kube::Result<()> {
    match result {
        Err(error) if is_not_found(&error) => {
            gone();
            Ok(())
        }
        result => result,
    }
}
