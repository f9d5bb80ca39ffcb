//! MutatingAdmissionPolicyBinding: where a mutating policy applies, and its parameters.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use super::{binding, matching, name_warnings};
use crate::kind::{Column, Context, KindRules, MetadataPasses};

/// The rules of MutatingAdmissionPolicyBinding.
pub struct MutatingAdmissionPolicyBinding;

impl KindRules for MutatingAdmissionPolicyBinding {
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
        if spec.has(&["matchResources"]) {
            let path = Path::root("spec.matchResources");
            matching::validate_mutating_operations(&mut errors, &path, &spec["matchResources"]);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn bindings_need_a_policy() {
        assert_eq!(
            messages(&MutatingAdmissionPolicyBinding, &json!({"spec": {}}), None),
            ["spec.policyName: Required value"]
        );
    }
}
