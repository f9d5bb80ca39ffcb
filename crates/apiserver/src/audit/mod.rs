//! The audit trail: who asked for what, when, and how it was answered, as far as a policy wants it recorded.
//!
//! In: a request and its answer. Out: lines of JSON in a file, each one stage of one request.

mod log;
mod policy;
mod record;

pub use log::{Log, LogSettings};
pub use policy::{Policy, PolicyError};
pub use record::{Notes, Record};

/// The policy and where it is recorded.
pub struct Audit {
    policy: Policy,
    log: Log,
}

impl Audit {
    pub fn new(policy: Policy, log: Log) -> Audit {
        Audit { policy, log }
    }
}
