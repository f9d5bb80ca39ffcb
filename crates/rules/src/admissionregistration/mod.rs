//! Rules of the group `admissionregistration.k8s.io`.

mod binding;
pub mod expressions;
mod matching;
pub mod mutating_admission_policy;
pub mod mutating_admission_policy_binding;
pub mod mutating_webhook_configuration;
mod policy;
mod rule;
pub mod validating_admission_policy;
pub mod validating_admission_policy_binding;
pub mod validating_webhook_configuration;
mod webhooks;

use knarr_api::value::Read;
use serde_json::Value;

use crate::KindRules;

const STATIC_SUFFIX: &str = ".static.k8s.io";

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    Some(match kind {
        "MutatingAdmissionPolicy" => &mutating_admission_policy::MutatingAdmissionPolicy,
        "MutatingAdmissionPolicyBinding" => &mutating_admission_policy_binding::MutatingAdmissionPolicyBinding,
        "MutatingWebhookConfiguration" => &mutating_webhook_configuration::RULES,
        "ValidatingAdmissionPolicy" => &validating_admission_policy::ValidatingAdmissionPolicy,
        "ValidatingAdmissionPolicyBinding" => &validating_admission_policy_binding::ValidatingAdmissionPolicyBinding,
        "ValidatingWebhookConfiguration" => &validating_webhook_configuration::RULES,
        _ => return None,
    })
}

/// Warns about names that are reserved for configurations from files.
fn name_warnings(object: &Value) -> Vec<String> {
    if !object.text(&["metadata", "name"]).ends_with(STATIC_SUFFIX) {
        return Vec::new();
    }
    vec![format!(
        "metadata.name: names ending with {STATIC_SUFFIX:?} are reserved for static manifest-based configurations and cannot \
         be managed via the API"
    )]
}
