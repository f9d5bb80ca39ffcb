//! Auditing: records requests and their responses as the audit policy demands.
//!
//! Each line of the log is a JSON audit event: one stage of one request.

mod log;
mod policy;
mod record;

pub use log::{Log, LogSettings};
pub use policy::{Policy, PolicyError};
pub use record::{Annotation, AuditAnnotations, Record};

/// The audit policy and the log that events are written to.
pub struct Audit {
    policy: Policy,
    log: Log,
}

impl Audit {
    pub fn new(policy: Policy, log: Log) -> Audit {
        Audit { policy, log }
    }
}
