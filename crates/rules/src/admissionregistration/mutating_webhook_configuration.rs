//! MutatingWebhookConfiguration: webhooks that may change objects.

use super::webhooks::WebhookRules;

/// The rules of MutatingWebhookConfiguration.
pub static RULES: WebhookRules = WebhookRules { mutating: true };

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};
    use serde_json::{Value, json};

    fn configuration(hook: Value) -> Value {
        defaulted(&RULES, json!({"webhooks": [hook]}))
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
        assert!(messages(&RULES, &good, None).is_empty());
        assert_eq!(
            messages(&RULES, &configuration(json!({"name": "a", "timeoutSeconds": 31, "clientConfig": {}})), None),
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
