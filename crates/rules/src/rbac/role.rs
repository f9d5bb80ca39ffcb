//! Role: permissions in a namespace.

use knarr_api::field::Errors;
use knarr_api::names::{self, Check};
use serde_json::Value;

use super::policy_rule;
use crate::kind::{Context, KindRules, MetadataPasses};

/// The rules of Role.
pub struct Role;

impl KindRules for Role {
    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        policy_rule::validate_all(&mut errors, object, true);
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn rules_must_name_what_they_allow() {
        for (rule, wrong) in [
            (json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}), vec![]),
            (
                json!({}),
                vec![
                    "rules[0].verbs: Required value: verbs must contain at least one value",
                    "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                    "rules[0].resources: Required value: resource rules must supply at least one resource",
                ],
            ),
            (
                json!({"verbs": ["get"], "nonResourceURLs": ["/a"], "resources": ["pods"]}),
                vec![
                    "rules[0].nonResourceURLs: Invalid value: [\"/a\"]: namespaced rules cannot apply to non-resource URLs",
                    "rules[0].nonResourceURLs: Invalid value: [\"/a\"]: rules cannot apply to both regular resources and \
                     non-resource URLs",
                ],
            ),
        ] {
            assert_eq!(messages(&Role, &json!({"rules": [rule]}), None), wrong);
        }
    }
}
