//! The registry: finds the rules of a kind by group and kind.

use crate::KindRules;
use crate::{
    admissionregistration, apiextensions, apiregistration, apps, authentication, authorization, autoscaling, batch,
    certificates, coordination, core, discovery, flowcontrol, networking, node, policy, rbac, resource, scheduling,
    storage,
};

/// The rules of a kind that has none of its own.
struct DefaultRules;

impl KindRules for DefaultRules {
    fn requires_known_finalizers(&self) -> bool {
        false
    }
}

/// Returns the rules of a kind, or the default rules if it has none of its own.
pub fn rules_of(group: &str, kind: &str) -> &'static dyn KindRules {
    let rules = match group {
        "" => core::rules_of(kind),
        "admissionregistration.k8s.io" => admissionregistration::rules_of(kind),
        "apiextensions.k8s.io" => apiextensions::rules_of(kind),
        "apiregistration.k8s.io" => apiregistration::rules_of(kind),
        "apps" => apps::rules_of(kind),
        "authentication.k8s.io" => authentication::rules_of(kind),
        "authorization.k8s.io" => authorization::rules_of(kind),
        "autoscaling" => autoscaling::rules_of(kind),
        "batch" => batch::rules_of(kind),
        "certificates.k8s.io" => certificates::rules_of(kind),
        "coordination.k8s.io" => coordination::rules_of(kind),
        "discovery.k8s.io" => discovery::rules_of(kind),
        "events.k8s.io" => (kind == "Event").then_some(&core::event::GroupedEvent as &dyn KindRules),
        "flowcontrol.apiserver.k8s.io" => flowcontrol::rules_of(kind),
        "networking.k8s.io" => networking::rules_of(kind),
        "node.k8s.io" => node::rules_of(kind),
        "policy" => policy::rules_of(kind),
        "rbac.authorization.k8s.io" => rbac::rules_of(kind),
        "resource.k8s.io" => resource::rules_of(kind),
        "scheduling.k8s.io" => scheduling::rules_of(kind),
        "storage.k8s.io" => storage::rules_of(kind),
        _ => None,
    };
    rules.unwrap_or(&DefaultRules)
}
