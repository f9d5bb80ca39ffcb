//! The common base of admission policies and webhooks: match criteria, object versions, CEL evaluation, reinvocation.

pub mod activation;
pub mod cached;
pub mod condition;
pub mod criteria;
pub mod request;
pub mod rule;
#[cfg(test)]
mod server_tests;
pub mod versioned;

use super::Write;

/// Whether a write is exempt: configuration of admission itself is, so that a broken configuration can be fixed.
pub fn is_exempt(write: &Write<'_>) -> bool {
    const KINDS: [&str; 6] = [
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
    ];
    write.group == "admissionregistration.k8s.io" && KINDS.contains(&write.kind)
}
