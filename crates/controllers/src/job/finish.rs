//! Counts finished pods in the status, removes their finalizers, and finishes jobs.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use knarr_client::owner;
use kube::Api;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;

use super::back_off::Failures;
use super::plan::{COMPLETE, is_finished};
use super::view::{TRACKING, View, has_finalizer};
use super::{CONTROLLER_NAME, Controller, policy, tracking};
use crate::common::Key;
use crate::common::key::{name, namespace, uid};
use crate::common::pods::each;
use crate::common::requests::{is_gone, replace_status};
use crate::error::Result;
use crate::metrics;

/// Counts the pods by which a job's status has grown.
fn record_counts(view: &View<'_>, job: &Job) {
    let count = |job: &Job, read: fn(&JobStatus) -> Option<i32>| job.status.as_ref().and_then(read).unwrap_or(0);
    let results: [(&str, fn(&JobStatus) -> Option<i32>); 2] =
        [("succeeded", |status| status.succeeded), ("failed", |status| status.failed)];
    for (result, read) in results {
        let more = u64::try_from(count(job, read) - count(view.job, read)).unwrap_or(0);
        if more > 0 {
            metrics::JOB_PODS_FINISHED.add(&[view.completion_mode(), result], more);
        }
    }
}

impl Controller {
    /// Writes the status before and after removing finalizers, so that each finished pod is counted once.
    pub(super) async fn track_finished(
        &self,
        key: &Key,
        view: &View<'_>,
        status: JobStatus,
        finished: Option<JobCondition>,
        failures: Failures,
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
        let outcome = each(tracked.release, |pod| self.release(key, view, pod, &stripped)).await;
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
        record_counts(view, &job);
        if let (true, Some(ending)) = (finished_now, ending) {
            self.finished.lock().insert(uid(&job).to_owned());
            let result = if ending.type_ == COMPLETE { "succeeded" } else { "failed" };
            let reason = ending.reason.as_deref().unwrap_or_default();
            metrics::JOBS_FINISHED.add(&[view.completion_mode(), reason, result], 1);
            self.record_finish(&job, &ending);
        }
        Ok(outcome?)
    }

    /// Removes the finalizer of a pod that is counted, and adds its UID to `stripped`.
    async fn release(
        &self,
        key: &Key,
        view: &View<'_>,
        pod: Arc<Pod>,
        stripped: &Mutex<Vec<String>>,
    ) -> kube::Result<()> {
        self.released.add(key, uid(&*pod));
        if let Err(error) = self.strip(&pod).await {
            self.released.remove(key, uid(&*pod));
            return Err(error);
        }
        if let Some(action) = policy::matched_action(view.spec, &pod) {
            metrics::JOB_FAILURE_POLICY.add(&[action], 1);
        }
        stripped.lock().push(uid(&*pod).to_owned());
        Ok(())
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
    pub(super) async fn strip(&self, pod: &Pod) -> kube::Result<()> {
        if !has_finalizer(pod) {
            return Ok(());
        }
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace(pod));
        let patch = json!({"metadata": {"uid": uid(pod), "$deleteFromPrimitiveList/finalizers": [TRACKING]}});
        let Err(error) = api.patch(name(pod), &PatchParams::default(), &Patch::Strategic(patch)).await else {
            return Ok(());
        };
        if is_gone(&api, name(pod), uid(pod), &error).await? { Ok(()) } else { Err(error) }
    }

    pub(super) async fn release_orphan(&self, key: Key) -> Result<()> {
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
