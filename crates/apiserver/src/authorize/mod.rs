//! Authorization: whether a user may do what the request asks. Node authorization and RBAC, in this order; the first
//! that allows decides, and nothing allowed is refused.

use crate::request::{Target, User};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allowed, with the reason access reviews show.
    Allow(String),
    /// Nobody allowed it; the reason may be empty.
    NoOpinion(String),
}

pub trait Authorizer: Send + Sync {
    fn decide(&self, user: &User, target: &Target) -> Decision;
}
