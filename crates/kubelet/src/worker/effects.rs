//! Executes the plan's actions: each runs in its own task and returns its outcome as a message.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use knarr_supervisor::panic_message;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::apply_resize::apply_resize;
use super::outcome::Outcome;
use super::plan::{Action, kill_time};
use super::resize::{self, ByContainer, Granted};
use super::sandbox::{create_sandbox, mount_volumes};
use super::start::Start;
use super::state::Operation;
use super::stop::{Stop, starts_again};
use super::{Message, Worker, cleanup};
use crate::journey_events::pod_step;
use crate::pod;
use crate::runtime::Sandbox;

impl Worker {
    pub(super) fn launch<F>(&mut self, operation: Operation, work: F)
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        self.state.operations.insert(operation.clone());
        let sender = self.sender.clone();
        // Boxed, as a task would hold a large future twice: before and while it awaits it.
        let work = Box::pin(work);
        let sync = knarr_traces::current();
        knarr_supervisor::spawn(async move {
            let work = AssertUnwindSafe(async {
                knarr_supervisor::fault::point("operation");
                match sync {
                    Some(sync) => knarr_traces::within(sync, work).await,
                    None => work.await,
                }
            });
            let outcome = work.catch_unwind().await;
            let outcome = outcome.unwrap_or_else(|panic| Outcome::Panicked(panic_message(&*panic)));
            // The worker may already have stopped.
            let _ = sender.send(Message::Done(operation, Box::new(outcome)));
        });
    }

    pub(super) fn perform(&mut self, action: Action, now: Instant) {
        let context = self.context.clone();
        let pod = self.pod.clone();
        match action {
            Action::Allocate => {
                self.launch(
                    Operation::Allocate,
                    async move { Outcome::Allocated(context.resources.allocate(&pod).await) },
                );
            }
            Action::MountVolumes => {
                let objects = self.objects.clone();
                let addresses = self.runtime.current_sandbox().map(|s| s.addresses.clone()).unwrap_or_default();
                let downward = context.downward_context(&pod, addresses);
                self.state.volumes.start_mount();
                let first = self.volumes.volumes.is_empty();
                self.launch(Operation::Volumes, async move {
                    Outcome::Volumes(mount_volumes(&context, &pod, &downward, &objects, first).await)
                });
            }
            Action::CreateSandbox { attempt } => self.start_sandbox(attempt),
            Action::StopSandbox { id } => {
                let step = pod_step!("sandbox-stopped", &self.pod);
                self.launch(Operation::StopSandbox(id.clone()), async move {
                    let _step = step;
                    Outcome::SandboxStopped(match context.runtime.stop_pod_sandbox(&id).await {
                        Err(error) if !error.is_not_found() => Err(error.message()),
                        _ => Ok(()),
                    })
                });
            }
            Action::Start { container, sandbox, attempt, restart } => {
                let Some(sandbox) = self.runtime.sandboxes.iter().find(|s| s.id == sandbox).cloned() else { return };
                if restart {
                    self.state.record_restart(&container, now, context.settings.tuning.restart_backoff);
                }
                self.start_container(container, sandbox, attempt);
            }
            Action::Stop { .. } => self.stop_container(action, now),
            Action::TakeTurn { id } => {
                if let Some(turn) = self.state.turns.remove(&id) {
                    turn.notify_one();
                }
            }
            Action::Resize => self.start_resize(),
            Action::Remove { id } => {
                let is_sandbox = self.runtime.sandboxes.iter().any(|sandbox| sandbox.id == id);
                self.launch(Operation::Remove(id.clone()), async move {
                    Outcome::Removed(cleanup::remove_from_runtime(&context, &id, is_sandbox).await)
                });
            }
        }
    }

    fn stop_container(&mut self, action: Action, now: Instant) {
        let Action::Stop { id, container, grace, why, in_turn } = action else { return };
        let (context, pod) = (self.context.clone(), self.pod.clone());
        let turn = self.turn_to_stop(&id, in_turn);
        let hurried = self.state.stopping.insert(id.clone(), kill_time(now, grace)).is_some();
        self.state.stop_again.remove(&id);
        if starts_again(&pod, &container, &why) {
            let containers = &self.runtime.containers;
            self.runtime.restarting.retain(|old| containers.iter().any(|view| view.id == *old));
            self.runtime.restarting.insert(id.clone());
        }
        let addresses = self.runtime.current_sandbox().map(|s| s.addresses.clone()).unwrap_or_default();
        let stop = Stop { context, pod, id: id.clone(), name: container, addresses, grace, why, hurried, turn };
        self.launch(
            Operation::Stop(id),
            async move { Outcome::Stopped(stop.run().await.map_err(|error| error.message())) },
        );
    }

    /// The notification of a container's turn to stop. A repeated stop replaces the previous one, which is not notified then.
    fn turn_to_stop(&mut self, id: &str, in_turn: bool) -> Option<Arc<Notify>> {
        self.state.turns.remove(id);
        (!in_turn).then(|| self.state.turns.entry(id.to_string()).or_default().clone())
    }

    fn start_sandbox(&mut self, attempt: u32) {
        let (context, pod, events) = (self.context.clone(), self.pod.clone(), self.runtime_events.clone());
        if attempt > 0 {
            let message = "Pod sandbox changed, it will be killed and re-created.";
            context.events.about_pod(&pod, false, "SandboxChanged", message);
        }
        self.launch(Operation::Sandbox, async move {
            Outcome::Sandbox(create_sandbox(&context, &pod, attempt, events).await)
        });
    }

    fn start_container(&mut self, container: String, sandbox: Sandbox, attempt: u32) {
        let pod = self.pod.clone();
        if !self.is_resized() {
            self.size_cgroup(Some(&pod));
        }
        let target = pod::find(&pod, &container)
            .and_then(|found| found.target)
            .and_then(|target| self.runtime.latest(&target).map(|view| view.id.clone()));
        let start = Start {
            context: self.context.clone(),
            pod,
            name: container.clone(),
            sandbox,
            attempt,
            volumes: self.volumes.clone(),
            objects: self.objects.clone(),
            target,
            worker: self.sender.clone(),
            runtime_events: self.runtime_events.clone(),
            terminating: self.terminating.clone(),
        };
        self.launch(Operation::Start(container), async move { Outcome::Started(start.run().await) });
    }

    fn start_resize(&mut self) {
        let (context, pod, applied) = (self.context.clone(), self.pod.clone(), self.state.resize.applied.clone());
        let running: Vec<(String, String)> =
            self.runtime.running().map(|view| (view.name.clone(), view.id.clone())).collect();
        self.launch(Operation::Resize, async move {
            let started = std::time::Instant::now();
            let (applied, failure) = apply_resize(&context, &pod, running, applied).await;
            let (name, success) = ("kubelet_pod_resize_duration_milliseconds", failure.is_none());
            let labels = [("success", if success { "true" } else { "false" })];
            context.metrics.observe_value(name, &labels, started.elapsed().as_secs_f64() * 1e3);
            Outcome::Resized(applied, failure)
        });
    }

    /// Stores the granted resources on disk. Pods without any resources need none.
    pub(super) fn store_granted(&self) {
        let granted = resize::resources_of(&self.pod);
        let empty = |resources: &ByContainer| resources.values().all(|one| *one == Default::default());
        if empty(&granted) && empty(&self.state.resize.applied) {
            return;
        }
        let directory = self.context.settings.pod_directory(pod::uid(&self.pod));
        Granted { granted, applied: self.state.resize.applied.clone() }.store(&directory);
    }
}
