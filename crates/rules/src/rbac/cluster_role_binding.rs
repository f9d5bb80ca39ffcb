//! ClusterRoleBinding: grants a cluster role in the whole cluster.

use super::binding::BindingRules;
use crate::common::columns::{AGE, NAME, text, wide};

/// The description of the column, which is that of the internal type's field.
const ROLE: &str = "RoleRef can only reference a ClusterRole in the global namespace. If the RoleRef cannot be \
    resolved, the Authorizer must return an error.";

/// The rules of ClusterRoleBinding.
pub static RULES: BindingRules = BindingRules {
    role_kinds: &["ClusterRole"],
    namespaced: false,
    columns: &[
        NAME,
        text("Role", "string", ROLE),
        AGE,
        wide(text("Users", "string", "Users in the clusterRoleBinding")),
        wide(text("Groups", "string", "Groups in the clusterRoleBinding")),
        wide(text("ServiceAccounts", "string", "ServiceAccounts in the clusterRoleBinding")),
    ],
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};
    use serde_json::json;

    #[test]
    fn cluster_bindings_need_cluster_roles_and_whole_accounts() {
        let object = json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [
            {"kind": "ServiceAccount", "name": "default", "apiGroup": "x"}, {"kind": "Group", "name": "g"}]});
        assert_eq!(
            messages(&RULES, &defaulted(&RULES, object), None),
            [
                "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"",
                "subjects[0].apiGroup: Unsupported value: \"x\": supported values: \"\"",
                "subjects[0].namespace: Required value",
            ]
        );
    }
}
