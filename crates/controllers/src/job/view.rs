//! A job and its pods in one view: what runs, what has newly finished, which indexes are done.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job, JobSpec, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use knarr_client::pod;

use super::back_off::finished_at;
use super::indexes::Indexes;
use super::policy::{self, Failure};
use crate::common::key::uid;

pub(super) const TRACKING: &str = "batch.kubernetes.io/job-tracking";
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";
pub(super) const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
pub(super) const INDEX_IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

pub(super) struct View<'a> {
    pub job: &'a Job,
    pub spec: &'a JobSpec,
    pub pods: Vec<Arc<Pod>>,
    pub active: Vec<Arc<Pod>>,
    pub ready: i32,
    pub terminating: i32,
    pub uncounted: UncountedTerminatedPods,
    /// Uids of pods whose finalizer is being removed, whatever the cache says.
    pub released: HashSet<String>,
    pub new_succeeded: Vec<Arc<Pod>>,
    pub new_failed: Vec<Arc<Pod>>,
    pub succeeded: i32,
    pub failed: i32,
    /// Indexes in the status, and with those newly finished.
    pub former_indexes: Indexes,
    pub succeeded_indexes: Indexes,
    pub failed_indexes: Option<Indexes>,
    /// The failed pod of each index that waits for replacement.
    pub awaiting_replacement: BTreeMap<u32, Arc<Pod>>,
}

impl<'a> View<'a> {
    pub fn new(job: &'a Job, spec: &'a JobSpec, pods: Vec<Arc<Pod>>, released: HashSet<String>) -> Self {
        let status = job.status.clone().unwrap_or_default();
        let active: Vec<Arc<Pod>> = pods.iter().filter(|pod| pod::is_active(pod)).cloned().collect();
        let mut view = Self {
            job,
            spec,
            ready: active.iter().filter(|pod| pod::is_ready(pod)).count() as i32,
            terminating: pods.iter().filter(|pod| pod::is_terminating(pod) && !pod::is_terminal(pod)).count() as i32,
            active,
            pods,
            uncounted: status.uncounted_terminated_pods.clone().unwrap_or_default(),
            released,
            new_succeeded: Vec::new(),
            new_failed: Vec::new(),
            succeeded: 0,
            failed: 0,
            former_indexes: Indexes::default(),
            succeeded_indexes: Indexes::default(),
            failed_indexes: None,
            awaiting_replacement: BTreeMap::new(),
        };
        let counted = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
        let (uncounted_ok, uncounted_bad) = (counted(&view.uncounted.succeeded), counted(&view.uncounted.failed));
        view.new_succeeded = view.tracked(&uncounted_ok, |pod| pod::phase(pod) == "Succeeded");
        view.new_failed = view.tracked(&uncounted_bad, |pod| policy::is_failed(spec, pod));
        let failures = view.new_failed.iter().filter(|pod| view.failure(pod) != Failure::Ignore).count();
        view.succeeded = status.succeeded.unwrap_or(0) + (view.new_succeeded.len() + uncounted_ok.len()) as i32;
        view.failed = status.failed.unwrap_or(0) + (failures + uncounted_bad.len()) as i32;
        if view.is_indexed() {
            view.read_indexes();
        }
        view
    }

    pub fn is_indexed(&self) -> bool {
        self.spec.completion_mode.as_deref() == Some("Indexed")
    }

    /// The completion mode as metrics name it.
    pub fn completion_mode(&self) -> &'static str {
        if self.is_indexed() { "Indexed" } else { "NonIndexed" }
    }

    pub fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    pub fn completions(&self) -> u32 {
        u32::try_from(self.spec.completions.unwrap_or(0)).unwrap_or(0)
    }

    pub fn backs_off_per_index(&self) -> bool {
        self.spec.backoff_limit_per_index.is_some()
    }

    pub fn failure(&self, pod: &Pod) -> Failure {
        policy::of_failed(self.spec.pod_failure_policy.as_ref(), pod)
    }

    /// The pod's index, if it is below the number of completions.
    pub fn valid_index(&self, pod: &Pod) -> Option<u32> {
        index_of(pod).filter(|index| *index < self.completions())
    }

    pub fn is_tracked(&self, pod: &Pod) -> bool {
        has_finalizer(pod) && !self.released.contains(uid(pod))
    }

    fn tracked(&self, counted: &[String], desired: impl Fn(&Pod) -> bool) -> Vec<Arc<Pod>> {
        let counted: HashSet<&str> = counted.iter().map(String::as_str).collect();
        let pods = self.pods.iter().filter(|pod| self.is_tracked(pod) && !counted.contains(uid(&***pod)));
        pods.filter(|pod| !self.is_indexed() || self.valid_index(pod).is_some())
            .filter(|pod| desired(pod))
            .cloned()
            .collect()
    }

    fn read_indexes(&mut self) {
        let status = self.job.status.clone().unwrap_or_default();
        let completions = self.completions();
        let succeeded = self.finished_indexes(|pod| pod::phase(pod) == "Succeeded");
        self.former_indexes = Indexes::parse(status.completed_indexes.as_deref().unwrap_or(""), completions);
        self.succeeded_indexes = self.former_indexes.with(succeeded);
        self.succeeded = self.succeeded_indexes.count() as i32;
        if self.backs_off_per_index() {
            let before = Indexes::parse(status.failed_indexes.as_deref().unwrap_or(""), completions);
            self.failed_indexes = Some(before.with(self.finished_indexes(|pod| self.fails_index(pod))));
            self.awaiting_replacement = self.find_awaiting_replacement();
        }
    }

    fn finished_indexes(&self, desired: impl Fn(&Pod) -> bool) -> Vec<u32> {
        let pods = self.pods.iter().filter(|pod| has_finalizer(pod) && desired(pod));
        pods.filter_map(|pod| self.valid_index(pod)).collect()
    }

    fn fails_index(&self, pod: &Pod) -> bool {
        if !policy::is_failed(self.spec, pod) {
            return false;
        }
        match self.failure(pod) {
            Failure::FailIndex => true,
            Failure::Ignore => false,
            _ => annotated_count(pod, INDEX_FAILURES) >= self.spec.backoff_limit_per_index.unwrap_or(i32::MAX),
        }
    }

    fn find_awaiting_replacement(&self) -> BTreeMap<u32, Arc<Pod>> {
        let active: HashSet<u32> = self.active.iter().filter_map(|pod| index_of(pod)).collect();
        let mut awaiting: BTreeMap<u32, Arc<Pod>> = BTreeMap::new();
        for pod in self.tracked(&[], |pod| policy::is_failed(self.spec, pod)) {
            let Some(index) = self.valid_index(&pod) else { continue };
            let failed = self.failed_indexes.as_ref().is_some_and(|failed| failed.has(index));
            if self.succeeded_indexes.has(index) || failed || active.contains(&index) {
                continue;
            }
            let is_later = |known: &Arc<Pod>| {
                index_failures(known) <= index_failures(&pod) && finished_at(&pod) >= finished_at(known)
            };
            if awaiting.get(&index).is_none_or(is_later) {
                awaiting.insert(index, pod);
            }
        }
        awaiting
    }
}

pub(super) fn has_finalizer(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == TRACKING)
}

pub(super) fn index_of(pod: &Pod) -> Option<u32> {
    pod.metadata.annotations.as_ref()?.get(INDEX)?.parse().ok()
}

pub(super) fn annotated_count(pod: &Pod, key: &str) -> i32 {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(key)).and_then(|text| text.parse().ok()).filter(|count| *count >= 0).unwrap_or(0)
}

/// All failures of the pod's index before it, ignored ones included.
pub(super) fn index_failures(pod: &Pod) -> i32 {
    annotated_count(pod, INDEX_FAILURES) + annotated_count(pod, INDEX_IGNORED)
}
