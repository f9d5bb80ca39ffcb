//! What admission policies and webhooks have in common: which writes they look at, in which version they see them, and
//! what they are told about them.

pub mod activation;
pub mod cached;
pub mod condition;
pub mod criteria;
#[cfg(test)]
mod journeys;
pub mod reinvocation;
pub mod request;
pub mod rule;
pub mod versioned;

use super::Write;

/// Objects that decide about admission are never subject to it, so that a broken one can be mended.
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
