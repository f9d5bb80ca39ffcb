//! A panic of an operation counts as its failure: the pod gets an event, and the operation is tried again.

use std::time::Duration;

use tokio::time::Instant;

use super::Worker;
use super::outcome::{Outcome, StatusError};
use super::start::StartFailure;
use super::state::Operation;
use crate::pod;
use crate::resources::AllocationRefusal;

/// How long a container whose start panicked waits for the next attempt.
const START_RETRY: Duration = Duration::from_secs(10);

impl Worker {
    pub(super) fn finish_panicked(&mut self, operation: Operation, reason: &str) {
        tracing::error!(pod = pod::title(&self.pod), ?operation, reason, "an operation of a pod panicked");
        let message = format!("error syncing pod: {operation:?} panicked: {reason}");
        self.context.events.about_pod(&self.pod, true, "FailedSync", message.clone());
        let now = Instant::now();
        let outcome = match &operation {
            Operation::Volumes => {
                let complete = !self.volumes.volumes.is_empty();
                self.state.volumes.fail_mount(complete, false, now);
                self.state.operations.remove(&operation);
                return;
            }
            Operation::Resize => Outcome::Resized(self.state.resize.applied.clone(), Some(message)),
            other => failed(other, message, now),
        };
        self.finish_operation(operation, outcome);
    }
}

/// The outcome of an operation that failed with this message.
fn failed(operation: &Operation, message: String, now: Instant) -> Outcome {
    match operation {
        Operation::Allocate => {
            Outcome::Allocated(Err(AllocationRefusal { reason: "UnexpectedAdmissionError", message }))
        }
        Operation::Start(_) => Outcome::Started(Err(StartFailure {
            reason: "RunContainerError".into(),
            message,
            retry_at: now + START_RETRY,
            remains: None,
        })),
        Operation::Stop(_) => Outcome::Stopped(Err(message)),
        Operation::StopSandbox(_) => Outcome::SandboxStopped(Err(message)),
        Operation::Remove(_) => Outcome::Removed(Err(message)),
        Operation::Status => Outcome::Status(Err(StatusError::Refused(message))),
        Operation::Delete => Outcome::Deleted(Err(StatusError::Refused(message))),
        Operation::Search => Outcome::Found(Err(message)),
        Operation::Clean => Outcome::Cleaned(Err(message)),
        Operation::Sandbox | Operation::Volumes | Operation::Resize => Outcome::Sandbox(Err(message)),
    }
}
