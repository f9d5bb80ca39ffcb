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
pub use record::{Annotation, AuditAnnotations, Panicked, Record};
pub use truncate::Limits;
pub use webhook::AuditWebhook;

use serde_json::Value;

/// The audit policy, and where events are written to.
pub struct Audit {
    policy: Policy,
    backends: Vec<Backend>,
}

impl Audit {
    pub fn new(policy: Policy, backends: Vec<Backend>) -> Audit {
        Audit { policy, backends }
    }

    /// Writes an event to all backends, also if one fails.
    async fn write(&self, event: &Value) -> Result<(), NotStored> {
        let mut outcome = Ok(());
        for backend in &self.backends {
            outcome = backend.write(event.clone()).await.and(outcome);
        }
        outcome
    }
}
