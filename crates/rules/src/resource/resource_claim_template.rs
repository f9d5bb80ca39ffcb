//! ResourceClaimTemplate: the template from which claims for pods are created.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::value::{Read, Write};
use serde_json::Value;

use super::{claim_spec, v1beta1};
use crate::common::columns::{self, AGE, NAME};
use crate::common::{checks, template_metadata};
use crate::kind::{Column, Context, KindRules, MetadataPasses};

/// The rules of ResourceClaimTemplate.
pub struct ResourceClaimTemplate;

impl KindRules for ResourceClaimTemplate {
    fn convert(&self, object: &mut Value, from: &str, to: &str) {
        if let Some(spec) = object.find(&["spec", "spec"]) {
            match (from, to) {
                (v1beta1::VERSION, _) => v1beta1::claim_to_v1(spec),
                (_, v1beta1::VERSION) => v1beta1::claim_from_v1(spec),
                _ => {}
            }
        }
    }

    fn set_defaults(&self, object: &mut Value, version: &str) {
        if object.has(&["spec", "spec"])
            && let Some(spec) = object.find(&["spec", "spec"])
        {
            claim_spec::set_defaults(spec, version);
        }
    }

    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let path = Path::root("spec");
        template_metadata::validate(&mut errors, &path.child("metadata"), object.at(&["spec", "metadata"]));
        claim_spec::validate(&mut errors, &path.child("spec"), object.at(&["spec", "spec"]));
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        checks::immutable_structure(
            &mut errors,
            &Path::root("spec"),
            "ResourceClaimTemplateSpec",
            &object["spec"],
            &old["spec"],
        );
        errors
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn columns(&self) -> &'static [Column] {
        const { &[NAME, AGE] }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![columns::name(object), columns::age(object, now)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn templates_are_checked() {
        let template = json!({"spec": {"metadata": {"name": "x"}, "spec": {"devices": {"constraints": [{}]}}}});
        assert_eq!(
            messages(&ResourceClaimTemplate, &template, None),
            [
                "spec.metadata.name: Forbidden: cannot be set",
                "spec.spec.devices.constraints[0]: Required value: exactly one of \"matchAttribute\" or \"distinctAttribute\" is \
                 required, but multiple fields are set",
            ]
        );
    }
}
