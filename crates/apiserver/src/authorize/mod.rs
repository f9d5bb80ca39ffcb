//! Authorization: whether a user may do what the request asks. Node authorization and RBAC, in this order; the first
//! that allows decides, and nothing allowed is refused.

mod covering;
mod node;
mod node_graph;
mod rbac;
mod rule;

pub use covering::uncovered;
pub use node::{NodeAuthorizer, node_name};
pub use node_graph::{NodeGraph, OF_POD};
pub use rbac::{Rbac, UserRules};
pub use rule::Rule;

use knarr_api::status::{GroupResource, Status};

use crate::request::{GROUP_MASTERS, Target, User};

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

/// Asks each authorizer in turn. Members of `system:masters` may do everything, so that an administrator can mend a
/// broken policy.
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

/// The answer to a request that nobody allowed.
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
