//! The end of a pod: why it terminates, and the last steps when nothing of it runs any more.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use tokio::time::Instant;

use super::outcome::{Outcome, StatusError};
use super::plan::Action;
use super::state::{Operation, Termination};
use super::{Worker, cleanup, restart, status};
use crate::journey_events::pod_step;
use crate::pod;
use crate::runtime::{RuntimePod, list_pod};

impl Worker {
    /// The remaining steps when nothing of the pod runs any more.
    pub(super) fn finish(&mut self) {
        if self.retry_at.is_some_and(|at| at > Instant::now()) {
            return;
        }
        self.retry_at = None;
        if !self.state.searched {
            if !self.state.is_busy(&Operation::Search) {
                self.search();
            }
            return;
        }
        if !self.state.cleaned {
            if !self.state.is_busy(&Operation::Clean) && !self.state.is_busy(&Operation::Volumes) {
                let (context, uid) = (self.context.clone(), pod::uid(&self.pod).to_string());
                let step = pod_step!("volumes-removed", &self.pod);
                let notify = self.objects.notifier();
                self.launch(Operation::Clean, async move {
                    let _step = step;
                    Outcome::Cleaned(cleanup::release(&context, &uid, Some(notify)).await)
                });
            }
            return;
        }
        if self.state.termination == Some(Termination::Removed) {
            self.remove_remains();
            return;
        }
        let deleting = self.pod.metadata.deletion_timestamp.is_some() && !pod::is_static(&self.pod);
        let is_reported = !status::differs(&self.reported, &self.status);
        if deleting && is_reported && !self.deleted && !self.state.is_busy(&Operation::Delete) {
            let (client, pod) = (self.context.client.clone(), self.pod.clone());
            self.launch(Operation::Delete, async move { Outcome::Deleted(delete(client, &pod).await) });
        }
    }

    /// Searches the runtime for unknown containers of the pod: a start whose response was lost, because the runtime or
    /// a previous process was killed, may have created some.
    fn search(&mut self) {
        let (context, uid) = (self.context.clone(), pod::uid(&self.pod).to_string());
        let known: HashSet<String> = self.runtime.ids().map(str::to_string).collect();
        self.launch(Operation::Search, async move {
            let found = list_pod(&context.runtime, &uid, |id| !known.contains(id)).await;
            Outcome::Found(found.map_err(|error| error.message()))
        });
    }

    pub(super) fn adopt_found(&mut self, found: RuntimePod) {
        self.state.searched = found.is_empty();
        for id in found.ids() {
            tracing::info!(pod = pod::title(&self.pod), id, "found an unknown container or sandbox of a pod");
            self.context.index.insert(id, self.runtime_events.clone());
        }
        found.containers.into_iter().for_each(|container| self.put_container(container));
        found.sandboxes.into_iter().for_each(|sandbox| self.runtime.put_sandbox(sandbox));
    }

    fn remove_remains(&mut self) {
        let containers: Vec<String> = self.runtime.containers.iter().map(|container| container.id.clone()).collect();
        let ids = if containers.is_empty() {
            self.runtime.sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect()
        } else {
            containers
        };
        for id in ids {
            if !self.state.is_busy(&Operation::Remove(id.clone())) {
                self.perform(Action::Remove { id }, Instant::now());
            }
        }
    }

    /// Nothing is left anywhere: the worker may stop.
    pub(super) fn is_gone(&self) -> bool {
        self.state.termination == Some(Termination::Removed)
            && self.plan.terminated
            && self.state.cleaned
            && self.runtime.is_empty()
            && self.state.operations.is_empty()
    }

    pub(super) fn forget(&self) {
        let uid = pod::uid(&self.pod);
        self.context.tokens.forget(uid);
        self.context.images.forget_pod(uid);
        let (namespace, name) = (pod::namespace(&self.pod), pod::name(&self.pod));
        self.context.metrics.forget("prober_probe_total", &[("pod_uid", uid)]);
        self.context.metrics.forget("prober_probe_duration_seconds", &[("namespace", namespace), ("pod", name)]);
        cleanup::remove_logs(&self.context, &self.pod);
    }

    pub(super) fn termination_reason(&self, now: Timestamp) -> Option<Termination> {
        if self.pod.metadata.deletion_timestamp.is_some() {
            return Some(Termination::Deleted);
        }
        if matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            return Some(Termination::Finished);
        }
        if let Some(seconds) = pod::spec(&self.pod).active_deadline_seconds
            && let Some(start) = &self.status.start_time
            && start.0.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX) <= now
        {
            let message = "Pod was active on the node longer than the specified deadline".to_string();
            self.context.events.about_pod(&self.pod, false, "DeadlineExceeded", message.clone());
            return Some(Termination::Stopped {
                reason: "DeadlineExceeded".into(),
                message,
                grace: None,
                condition: None,
            });
        }
        let phase = restart::phase(&self.pod, &self.runtime, status::was_initialized(&self.status));
        phase.is_final().then_some(Termination::Finished)
    }
}

async fn delete(client: kube::Client, pod: &Pod) -> Result<(), StatusError> {
    let pods: Api<Pod> = Api::namespaced(client, pod::namespace(pod));
    let parameters = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None }),
        ..DeleteParams::default()
    };
    pods.delete(pod::name(pod), &parameters).await?;
    Ok(())
}
