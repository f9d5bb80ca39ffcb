//! Authorization: whether a user may do what a request does. Runs the node authorizer, then RBAC; the first that allows
//! decides. A request that neither allows is forbidden.

mod covering;
mod node;
mod node_graph;
mod rbac;
mod rule;

pub use covering::uncovered;
pub use node::{NodeAuthorizer, node_name};
pub use node_graph::{NodeGraph, POD_FIELDS};
pub use rbac::{Rbac, UserRules};
pub use rule::Rule;

use knarr_api::status::{GroupResource, Status};

use crate::request::{GROUP_MASTERS, Target, User};

/// The decision of one authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allowed, with the reason that access reviews return.
    Allow(String),
    /// Not allowed; the reason may be empty.
    NoOpinion(String),
}

/// Decides whether a user may do something.
pub trait Authorizer: Send + Sync {
    fn decide(&self, user: &User, target: &Target) -> Decision;
}

/// Runs authorizers in order. Members of `system:masters` may do everything, so that an administrator can fix a broken
/// policy.
pub struct Union(pub Vec<Box<dyn Authorizer>>);

impl Authorizer for Union {
    fn decide(&self, user: &User, target: &Target) -> Decision {
        if user.is_in(GROUP_MASTERS) {
            return Decision::Allow(String::new());
        }
        let mut reasons = Vec::new();
        for authorizer in &self.0 {
            match authorizer.decide(user, target) {
                Decision::NoOpinion(reason) if !reason.is_empty() => reasons.push(reason),
                Decision::NoOpinion(_) => {}
                allowed => return allowed,
            }
        }
        Decision::NoOpinion(reasons.join("\n"))
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
