//! ValidatingAdmissionPolicyBinding: where a validating policy applies, and the actions on failure.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use super::{binding, name_warnings};
use crate::common::checks;
use crate::kind::{Column, Context, KindRules, MetadataPasses};

/// The rules of ValidatingAdmissionPolicyBinding.
pub struct ValidatingAdmissionPolicyBinding;

impl KindRules for ValidatingAdmissionPolicyBinding {
    fn requires_known_finalizers(&self) -> bool {
        false
    }

    fn set_defaults(&self, object: &mut Value, _version: &str) {
        binding::set_defaults(object);
    }

    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let spec = &object["spec"];
        binding::validate(&mut errors, spec);
        validate_actions(&mut errors, &Path::root("spec.validationActions"), &spec["validationActions"]);
        errors
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Vec<String> {
        name_warnings(object)
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 0, as_create: 2 }
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn allows_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        binding::COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        binding::cells(object, now)
    }
}

fn validate_actions(errors: &mut Errors, path: &Path<'_>, actions: &Value) {
    let list: Vec<&str> = actions.items(&[]).iter().map(|action| action.as_str().unwrap_or_default()).collect();
    for (index, action) in list.iter().enumerate() {
        checks::one_of(errors, &path.index(index), action, &["Audit", "Deny", "Warn"]);
        if list[..index].contains(action) {
            errors.duplicate(&path.index(index), *action);
        }
    }
    if list.contains(&"Deny") && list.contains(&"Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API response \
                    and headers serves no purpose)";
        errors.invalid(path, actions.clone(), detail);
    }
    if list.is_empty() {
        errors.required(path, "at least one validation action is required");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn bindings_are_checked() {
        assert_eq!(
            messages(
                &ValidatingAdmissionPolicyBinding,
                &json!({"spec": {"policyName": "p", "paramRef": {}, "validationActions": ["Deny", "Warn"]}}),
                None
            ),
            [
                "spec.paramRef: Required value: one of name or selector must be specified",
                "spec.paramRef.parameterNotFoundAction: Required value",
                "spec.validationActions: Invalid value: [\"Deny\",\"Warn\"]: must not contain both Deny and Warn (repeating the \
                 same validation failure information in the API response and headers serves no purpose)",
            ]
        );
        let reference =
            json!({"name": "n", "selector": {"matchLabels": {"a": "b"}}, "parameterNotFoundAction": "Deny"});
        let binding = json!({"spec": {"paramRef": {"selector": reference["selector"]}}});
        assert_eq!(
            ValidatingAdmissionPolicyBinding.cells(&binding, Timestamp::UNIX_EPOCH)[2],
            "&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{},}"
        );
    }
}
