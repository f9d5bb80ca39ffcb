//! Authorization: whether a user may do what a request does. Runs a chain of authorizers, by default the node authorizer
//! and RBAC; the first that allows or denies decides. A request that none allows is forbidden.

mod abac;
mod chain;
mod configuration;
mod covering;
mod match_conditions;
mod node;
mod node_graph;
mod rbac;
mod review_attributes;
mod rule;
mod webhook;

pub use abac::AbacError;
pub use chain::{BuiltIn, PreparedChain, ReloadableChain, watch_configuration};
pub use configuration::{AuthorizationFlags, Configuration, ConfigurationError};
pub use covering::uncovered;
pub use node::{NodeAuthorizer, node_name};
pub use node_graph::{NodeGraph, POD_FIELDS};
pub use rbac::{Rbac, UserRules};
pub use rule::Rule;

use async_trait::async_trait;
use knarr_api::status::{GroupResource, Status};

use crate::request::{Target, User};

/// The decision of one authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allowed, with the reason that access reviews return.
    Allow(String),
    /// Not allowed; the reason may be empty.
    NoOpinion(String),
    /// Not allowed, and no other authorizer may allow it.
    Deny(String),
    /// Not allowed, because the authorizer failed.
    Failed {
        error: String,
        /// Whether no other authorizer may allow it.
        is_final: bool,
    },
}

impl Decision {
    /// Why, where the authorizer says so.
    pub fn reason(&self) -> &str {
        match self {
            Decision::Allow(reason) | Decision::NoOpinion(reason) | Decision::Deny(reason) => reason,
            Decision::Failed { error, .. } => error,
        }
    }
}

/// Decides whether a user may do something.
#[async_trait]
pub trait Authorizer: Send + Sync {
    /// Decides on this thread, which waits if another server must be asked: for callers that cannot wait otherwise.
    fn decide(&self, user: &User, target: &Target) -> Decision;
    /// Decides, waiting for other servers if they must be asked.
    async fn authorize(&self, user: &User, target: &Target) -> Decision {
        self.decide(user, target)
    }
    /// What the user may do in a namespace, as far as that can be listed.
    fn rules(&self, _user: &User, _namespace: &str) -> UserRules {
        UserRules::default()
    }
}

/// The response to a request that was not allowed, or `None` if it was.
pub fn refusal(user: &User, target: &Target, decision: Decision) -> Option<Status> {
    match decision {
        Decision::Allow(_) => None,
        Decision::NoOpinion(reason) | Decision::Deny(reason) => Some(forbidden(user, target, &reason)),
        Decision::Failed { error, .. } => {
            let path = target.path.replace(['<', '>', '&'], "");
            Some(Status::internal(format!("Internal Server Error: {path:?}: {error}")))
        }
    }
}

/// The response to a request that no authorizer allowed.
pub fn forbidden(user: &User, target: &Target, reason: &str) -> Status {
    let because = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let name = &user.name;
    if !target.is_resource() {
        let why = format!("User {name:?} cannot {} path {:?}{because}", target.verb, target.path);
        return Status::forbidden(GroupResource { group: "", name: "" }, "", &why);
    }
    let resource = match target.subresource.as_str() {
        "" => target.resource.clone(),
        subresource => format!("{}/{subresource}", target.resource),
    };
    let place = match target.namespace.as_str() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let why = format!(
        "User {name:?} cannot {} resource {resource:?} in API group {:?} {place}{because}",
        target.verb, target.group
    );
    Status::forbidden(GroupResource { group: &target.group, name: &target.resource }, &target.name, &why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_who_cannot_do_what_and_where() {
        let user = User::named("nobody", &[]);
        let mut target = Target { verb: "list".into(), resource: "secrets".into(), ..Target::default() };
        target.namespace = "default".into();
        let status = forbidden(&user, &target, "");
        assert_eq!(
            status.message,
            r#"secrets is forbidden: User "nobody" cannot list resource "secrets" in API group "" in the namespace "default""#
        );
        target = Target { verb: "get".into(), path: "/metrics".into(), ..Target::default() };
        assert_eq!(forbidden(&user, &target, "").message, r#"forbidden: User "nobody" cannot get path "/metrics""#);
    }
}
