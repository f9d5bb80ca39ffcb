//! Auditing: records requests and their responses as the audit policy demands.
//!
//! Each event is one stage of one request. A [`Backend`] writes events to the log or the webhook; requests wait for it or not.

mod backend;
mod batch;
mod log;
mod policy;
mod record;
mod text_line;
mod truncate;
mod webhook;

pub use backend::{Backend, Mode, NotStored, Sink};
pub use batch::{BatchSender, BatchSettings};
pub use log::{Format, Log, LogSettings};
pub use policy::{Policy, PolicyError};
pub use record::{Panicked, Record};
pub use truncate::Limits;
pub use webhook::AuditWebhook;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

/// The timeout of each of the two steps of closing: writing the last events of requests, and sending queued events.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(15);

/// The audit policy, and where events are written to.
pub struct Audit {
    policy: Policy,
    backends: Vec<Backend>,
    /// The number of finished requests whose last events are not written yet.
    unwritten: watch::Sender<usize>,
    closing: watch::Sender<bool>,
}

impl Audit {
    pub fn new(policy: Policy, backends: Vec<Backend>) -> Audit {
        Audit { policy, backends, unwritten: watch::Sender::new(0), closing: watch::Sender::new(false) }
    }

    /// Becomes true when the senders must send their queued events and return.
    pub fn closing(&self) -> watch::Receiver<bool> {
        self.closing.subscribe()
    }

    /// Waits until the events of all finished requests are written or queued, then closes the senders. Call this when no request
    /// is in progress.
    pub async fn close(&self) {
        let mut unwritten = self.unwritten.subscribe();
        if tokio::time::timeout(CLOSE_TIMEOUT, unwritten.wait_for(|count| *count == 0)).await.is_err() {
            let requests = *self.unwritten.borrow();
            tracing::error!(requests, "audit events could not be written before the server stopped");
        }
        self.closing.send_replace(true);
    }

    /// Writes an event to all backends, even if one of them fails.
    async fn write(&self, event: &Value) -> Result<(), NotStored> {
        let mut outcome = Ok(());
        for backend in &self.backends {
            outcome = backend.write(event.clone()).await.and(outcome);
        }
        outcome
    }

    /// Writes the last events of a request in the background.
    fn write_later(self: Arc<Self>, events: VecDeque<Value>) {
        let unwritten = Unwritten::new(self);
        knarr_supervisor::spawn(async move {
            for event in events {
                // The backend has logged the failure, and the response was sent already.
                let _ = unwritten.0.write(&event).await;
            }
        });
    }
}

/// Counts a request until its events are written.
struct Unwritten(Arc<Audit>);

impl Unwritten {
    fn new(audit: Arc<Audit>) -> Unwritten {
        audit.unwritten.send_modify(|count| *count += 1);
        Unwritten(audit)
    }
}

impl Drop for Unwritten {
    fn drop(&mut self) {
        self.0.unwritten.send_modify(|count| *count -= 1);
    }
}
