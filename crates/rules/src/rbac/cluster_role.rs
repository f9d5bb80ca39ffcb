//! ClusterRole: cluster-wide permissions, possibly aggregated from other roles.

use knarr_api::field::{Errors, Path};
use knarr_api::names::{self, Check};
use knarr_api::selector::LabelSelector;
use knarr_api::value::Read;
use serde_json::Value;

use super::policy_rule;
use crate::common::label_selector;
use crate::kind::{Context, KindRules, MetadataPasses};

/// The rules of ClusterRole.
pub struct ClusterRole;

impl KindRules for ClusterRole {
    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        policy_rule::validate_all(&mut errors, object, false);
        if object.has(&["aggregationRule"]) {
            let old_selectors = old.map_or(&[][..], |old| old.items(&["aggregationRule", "clusterRoleSelectors"]));
            let lax = old_selectors.iter().any(label_selector::is_invalid);
            validate_aggregation(&mut errors, &object["aggregationRule"], lax);
        }
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

fn validate_aggregation(errors: &mut Errors, rule: &Value, lax_values: bool) {
    let path = Path::root("aggregationRule.clusterRoleSelectors");
    let selectors = rule.items(&["clusterRoleSelectors"]);
    if selectors.is_empty() {
        errors.required(&path, "at least one clusterRoleSelector required if aggregationRule is non-nil");
    }
    for (index, selector) in selectors.iter().enumerate() {
        let path = path.index(index);
        label_selector::validate(errors, &path, selector, lax_values);
        if LabelSelector::from_object(selector).is_err() {
            errors.invalid(&path, Value::Null, "invalid label selector.");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn aggregation_needs_selectors() {
        assert_eq!(
            messages(&ClusterRole, &json!({"aggregationRule": {}}), None),
            ["aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if \
              aggregationRule is non-nil"]
        );
        let near = json!({"matchExpressions": [{"key": "a", "operator": "Near"}]});
        assert_eq!(
            messages(&ClusterRole, &json!({"aggregationRule": {"clusterRoleSelectors": [near]}}), None),
            [
                "aggregationRule.clusterRoleSelectors[0].matchExpressions[0].operator: Invalid value: \"Near\": not a \
                 valid selector operator",
                "aggregationRule.clusterRoleSelectors[0]: Invalid value: null: invalid label selector.",
            ]
        );
        let rule = json!({"verbs": ["get"], "nonResourceURLs": ["/healthz"]});
        assert!(messages(&ClusterRole, &json!({"rules": [rule]}), None).is_empty());
    }
}
