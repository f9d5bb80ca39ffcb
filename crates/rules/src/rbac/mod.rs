//! Rules of the group `rbac.authorization.k8s.io`.

mod binding;
pub mod cluster_role;
pub mod cluster_role_binding;
mod policy_rule;
pub mod role;
pub mod role_binding;

use crate::KindRules;

const GROUP: &str = "rbac.authorization.k8s.io";

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    Some(match kind {
        "ClusterRole" => &cluster_role::ClusterRole,
        "ClusterRoleBinding" => &cluster_role_binding::RULES,
        "Role" => &role::Role,
        "RoleBinding" => &role_binding::RULES,
        _ => return None,
    })
}
