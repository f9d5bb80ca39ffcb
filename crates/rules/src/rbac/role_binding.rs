//! RoleBinding: grants a role in a namespace.

use super::binding::BindingRules;
use crate::common::columns::{AGE, NAME, text, wide};

/// The description of the column, which is that of the internal type's field.
const ROLE: &str = "RoleRef can reference a Role in the current namespace or a ClusterRole in the global namespace. \
    If the RoleRef cannot be resolved, the Authorizer must return an error.";

/// The rules of RoleBinding.
pub static RULES: BindingRules = BindingRules {
    role_kinds: &["Role", "ClusterRole"],
    namespaced: true,
    columns: &[
        NAME,
        text("Role", "string", ROLE),
        AGE,
        wide(text("Users", "string", "Users in the roleBinding")),
        wide(text("Groups", "string", "Groups in the roleBinding")),
        wide(text("ServiceAccounts", "string", "ServiceAccounts in the roleBinding")),
    ],
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};
    use serde_json::json;

    #[test]
    fn bindings_are_defaulted_and_checked() {
        let object = json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [
            {"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "default"}]});
        let object = defaulted(&RULES, object);
        assert_eq!(
            object,
            json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}, "subjects": [
                {"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"},
                {"kind": "ServiceAccount", "name": "default"}]})
        );
        assert!(messages(&RULES, &object, None).is_empty());
        let wrong = json!({"roleRef": {"apiGroup": "x", "kind": "Rule"}, "subjects": [{"kind": "Robot"}]});
        assert_eq!(
            messages(&RULES, &wrong, None),
            [
                "roleRef.apiGroup: Unsupported value: \"x\": supported values: \"rbac.authorization.k8s.io\"",
                "roleRef.kind: Unsupported value: \"Rule\": supported values: \"Role\", \"ClusterRole\"",
                "roleRef.name: Required value",
                "subjects[0].name: Required value",
                "subjects[0].kind: Unsupported value: \"Robot\": supported values: \"ServiceAccount\", \"User\", \"Group\"",
            ]
        );
    }

    #[test]
    fn the_role_stays() {
        let of =
            |name: &str| json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}});
        assert_eq!(
            messages(&RULES, &of("b"), Some(&of("a"))),
            ["roleRef: Invalid value: {\"APIGroup\":\"rbac.authorization.k8s.io\",\"Kind\":\"Role\",\"Name\":\"b\"}: \
              cannot change roleRef"]
        );
    }
}
