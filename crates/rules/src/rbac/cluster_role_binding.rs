//! ClusterRoleBinding: grants a cluster role in the whole cluster.

use jiff::Timestamp;
use knarr_api::field::Errors;
use knarr_api::names::{self, Check};
use serde_json::Value;

use super::binding;
use crate::common::columns::{AGE, NAME, text, wide};
use crate::kind::{Column, Context, KindRules, MetadataPasses};

/// The description of the column, which is that of the internal type's field.
const ROLE: &str = "RoleRef can only reference a ClusterRole in the global namespace. If the RoleRef cannot be \
    resolved, the Authorizer must return an error.";

/// The rules of ClusterRoleBinding.
pub struct ClusterRoleBinding;

impl KindRules for ClusterRoleBinding {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        binding::set_defaults(object);
    }

    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        binding::validate(&mut errors, object, &["ClusterRole"], false);
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
                wide(text("Users", "string", "Users in the clusterRoleBinding")),
                wide(text("Groups", "string", "Groups in the clusterRoleBinding")),
                wide(text("ServiceAccounts", "string", "ServiceAccounts in the clusterRoleBinding")),
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
    fn cluster_bindings_need_cluster_roles_and_whole_accounts() {
        let object = json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [
            {"kind": "ServiceAccount", "name": "default", "apiGroup": "x"}, {"kind": "Group", "name": "g"}]});
        assert_eq!(
            messages(&ClusterRoleBinding, &defaulted(&ClusterRoleBinding, object), None),
            [
                "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"",
                "subjects[0].apiGroup: Unsupported value: \"x\": supported values: \"\"",
                "subjects[0].namespace: Required value",
            ]
        );
    }
}
