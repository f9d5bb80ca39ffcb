//! RoleBinding: grants a role in a namespace.

use jiff::Timestamp;
use knarr_api::field::Errors;
use knarr_api::names::{self, Check};
use serde_json::Value;

use super::binding;
use crate::common::columns::{AGE, NAME, text, wide};
use crate::kind::{Column, Context, KindRules, MetadataPasses};

/// The description of the column, which is that of the internal type's field.
const ROLE: &str = "RoleRef can reference a Role in the current namespace or a ClusterRole in the global namespace. \
    If the RoleRef cannot be resolved, the Authorizer must return an error.";

/// The rules of RoleBinding.
pub struct RoleBinding;

impl KindRules for RoleBinding {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        binding::set_defaults(object);
    }

    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        binding::validate(&mut errors, object, &["Role", "ClusterRole"], true);
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        binding::validate_update(&mut errors, object, old);
        errors
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn name_check(&self) -> Check {
        names::path_segment
    }

    fn allows_create_on_update(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                NAME,
                text("Role", "string", ROLE),
                AGE,
                wide(text("Users", "string", "Users in the roleBinding")),
                wide(text("Groups", "string", "Groups in the roleBinding")),
                wide(text("ServiceAccounts", "string", "ServiceAccounts in the roleBinding")),
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        binding::cells(object, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};
    use serde_json::json;

    #[test]
    fn bindings_are_defaulted_and_checked() {
        let object = json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [
            {"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "default"}]});
        let object = defaulted(&RoleBinding, object);
        assert_eq!(
            object,
            json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}, "subjects": [
                {"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"},
                {"kind": "ServiceAccount", "name": "default"}]})
        );
        assert!(messages(&RoleBinding, &object, None).is_empty());
        let wrong = json!({"roleRef": {"apiGroup": "x", "kind": "Rule"}, "subjects": [{"kind": "Robot"}]});
        assert_eq!(
            messages(&RoleBinding, &wrong, None),
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
            messages(&RoleBinding, &of("b"), Some(&of("a"))),
            ["roleRef: Invalid value: {\"APIGroup\":\"rbac.authorization.k8s.io\",\"Kind\":\"Role\",\"Name\":\"b\"}: \
              cannot change roleRef"]
        );
    }
}
