//! MutatingWebhookConfiguration: webhooks that may change objects.

use jiff::Timestamp;
use knarr_api::field::Errors;
use serde_json::Value;

use super::{name_warnings, webhooks};
use crate::kind::{Column, Context, KindRules, MetadataPasses};

/// The rules of MutatingWebhookConfiguration.
pub struct MutatingWebhookConfiguration;

impl KindRules for MutatingWebhookConfiguration {
    fn requires_known_finalizers(&self) -> bool {
        false
    }

    fn set_defaults(&self, object: &mut Value, _version: &str) {
        webhooks::set_defaults(object, true);
    }

    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        webhooks::validate(&mut errors, object, old, true);
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

    fn increments_generation(&self, object: &Value, old: &Value) -> bool {
        object["webhooks"] != old["webhooks"]
    }

    fn allows_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        webhooks::COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        webhooks::cells(object, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};
    use serde_json::json;

    fn configuration(hook: Value) -> Value {
        defaulted(&MutatingWebhookConfiguration, json!({"webhooks": [hook]}))
    }

    #[test]
    fn webhooks_are_defaulted_and_checked() {
        let service = json!({"service": {"name": "s", "namespace": "n"}});
        let good = configuration(
            json!({"name": "a.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": service, "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]}),
        );
        let hook = &good["webhooks"][0];
        for (field, value) in [
            ("failurePolicy", json!("Fail")),
            ("matchPolicy", json!("Equivalent")),
            ("namespaceSelector", json!({})),
            ("objectSelector", json!({})),
            ("timeoutSeconds", json!(10)),
            ("reinvocationPolicy", json!("Never")),
        ] {
            assert_eq!(hook[field], value);
        }
        assert_eq!(hook["rules"][0]["scope"], "*");
        assert_eq!(hook["clientConfig"]["service"]["port"], 443);
        assert!(messages(&MutatingWebhookConfiguration, &good, None).is_empty());
        assert_eq!(
            messages(
                &MutatingWebhookConfiguration,
                &configuration(json!({"name": "a", "timeoutSeconds": 31, "clientConfig": {}})),
                None
            ),
            [
                "webhooks[0].name: Invalid value: \"a\": should be a domain with at least three segments separated by dots",
                "webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun",
                "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
                "webhooks[0].clientConfig: Required value: exactly one of url or service is required",
                "webhooks[0].admissionReviewVersions: Required value: must specify one of v1, v1beta1",
            ]
        );
    }
}
