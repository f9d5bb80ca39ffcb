//! Which jobs and orphaned pods a change of a job or pod queues.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use knarr_client::{Change, owner, pod};

use super::plan::is_finished;
use super::view::has_finalizer;
use super::{BATCH_DELAY, Controller, selector_of};
use crate::common::Key;
use crate::common::key::{namespace, uid};
use crate::common::pods::BY_CONTROLLER;
use crate::metrics;

/// Counts terminated pods that get the finalizer, or that lose it.
fn record_finalizer(change: &Change<Pod>) {
    let is_kept = |pod: &Pod| matches!(pod::phase(pod), "Succeeded" | "Failed") && has_finalizer(pod);
    let was = change.previous().is_some_and(|old| is_kept(old));
    let (was, is) = match change {
        Change::Deleted(pod) => (is_kept(pod), false),
        _ => (was, is_kept(change.latest())),
    };
    match (was, is) {
        (false, true) => metrics::JOB_FINALIZERS.add(&["add"], 1),
        (true, false) => metrics::JOB_FINALIZERS.add(&["delete"], 1),
        _ => {}
    }
}

impl Controller {
    pub(super) fn watch(self: &Arc<Self>) {
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
        record_finalizer(change);
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

    pub(super) fn job_of(&self, pod: &Pod) -> Option<Arc<Job>> {
        let reference = owner::controller_of(&pod.metadata).filter(|reference| reference.kind == "Job")?;
        self.jobs.get(namespace(pod), &reference.name).filter(|job| uid(&**job) == reference.uid)
    }
}
