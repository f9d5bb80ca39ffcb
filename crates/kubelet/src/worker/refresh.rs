//! Reads containers and sandboxes from the runtime after events.

use std::time::Duration;

use knarr_cri::CallError;
use tokio::time::Instant;

use super::{Message, Worker};
use crate::journey_events;
use crate::pod;
use crate::runtime::{ContainerView, State, observe_container, observe_sandbox};

impl Worker {
    /// Adds a container that just started. Its exit may already have been reported, and is then processed now.
    pub(super) fn put_started(&mut self, view: ContainerView) {
        if self.state.starts.early_exits.remove(&view.id) {
            let _ = self.sender.send(Message::Exited(view.id.clone()));
        }
        if view.state == State::Exited {
            self.record_exit(&view);
        }
        self.put_container(view);
    }

    /// Adds or replaces a container, and notes when its exit was first observed.
    pub(super) fn put_container(&mut self, view: ContainerView) {
        if view.state == State::Exited {
            self.state.exits.entry(view.id.clone()).or_insert_with(Instant::now);
        }
        self.runtime.put_container(view);
    }

    /// Reads one container or sandbox again. After an exit the runtime may need a moment to record it.
    pub(super) async fn refresh(&mut self, id: &str, exited: bool) {
        if self.runtime.sandboxes.iter().any(|sandbox| sandbox.id == id) {
            self.refresh_sandbox(id, exited).await;
            return;
        }
        let Some(sandbox) = self.runtime.by_id(id).map(|container| container.sandbox.clone()) else {
            if exited {
                self.state.starts.early_exits.insert(id.to_string());
            }
            return;
        };
        let mut pause = Duration::from_millis(2);
        loop {
            match observe_container(&self.context.runtime, id, &sandbox).await {
                Ok(view) if exited && view.state == State::Running && pause < Duration::from_millis(500) => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Ok(view) => {
                    if view.state == State::Exited && self.runtime.by_id(id).is_some_and(ContainerView::is_running) {
                        self.record_exit(&view);
                    }
                    if exited && view.state == State::Running {
                        // A busy runtime may need longer than we should wait here; check again later.
                        self.recheck_exit(id);
                    }
                    self.put_container(view);
                    return;
                }
                Err(error) => return self.not_observed(id, exited, &error),
            }
        }
    }

    pub(super) fn record_exit(&self, view: &ContainerView) {
        journey_events::container_terminated(&self.pod, view);
        let labels = [
            ("container_type", pod::container_type(&self.pod, &view.name)),
            ("exit_code", &view.exit_code.to_string()),
            ("reason", view.reason.as_str()),
        ];
        self.context.metrics.count("kubelet_terminated_containers_total", &labels);
    }

    /// Schedules one more check of an exit, unless one is already pending.
    pub(super) fn recheck_exit(&mut self, id: &str) {
        if self.pending_rechecks.insert(id.to_string()) {
            self.send_later(Message::ExitedAgain(id.to_string()));
        }
    }

    /// Sends a message to this worker after a delay.
    pub(super) fn send_later(&self, message: Message) {
        let sender = self.sender.clone();
        knarr_supervisor::spawn(async move {
            tokio::time::sleep(Duration::from_millis(500)).await;
            // The worker may already have stopped.
            let _ = sender.send(message);
        });
    }

    pub(super) async fn refresh_sandbox(&mut self, id: &str, exited: bool) {
        let mut pause = Duration::from_millis(2);
        loop {
            match observe_sandbox(&self.context.runtime, id).await {
                Ok(view) if exited && view.ready && pause < Duration::from_millis(500) => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Ok(view) => {
                    if exited && view.ready {
                        self.recheck_exit(id);
                    }
                    self.runtime.put_sandbox(view);
                    return;
                }
                Err(error) => return self.not_observed(id, exited, &error),
            }
        }
    }

    /// Forgets a container or sandbox that is gone. One that cannot be read is checked again if it exited.
    fn not_observed(&mut self, id: &str, exited: bool, error: &CallError) {
        if error.is_not_found() {
            self.runtime.forget(id);
            self.state.exits.remove(id);
            return;
        }
        tracing::warn!(%error, pod = pod::title(&self.pod), id, "cannot read a container or sandbox");
        if exited {
            self.recheck_exit(id);
        }
    }
}
