//! Validation of the rules of Roles and ClusterRoles.

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

/// Validates all rules. Those of a namespaced role cannot apply to non-resource URLs.
pub fn validate_all(errors: &mut Errors, role: &Value, namespaced: bool) {
    for (index, rule) in role.items(&["rules"]).iter().enumerate() {
        validate(errors, &Path::root("rules").index(index), rule, namespaced);
    }
}

fn validate(errors: &mut Errors, path: &Path, rule: &Value, namespaced: bool) {
    let empty = |field: &str| rule.items(&[field]).is_empty();
    if empty("verbs") {
        errors.required(&path.child("verbs"), "verbs must contain at least one value");
    }
    if !empty("nonResourceURLs") {
        let urls = path.child("nonResourceURLs");
        let rendered = || rule["nonResourceURLs"].clone();
        if namespaced {
            errors.invalid(&urls, rendered(), "namespaced rules cannot apply to non-resource URLs");
        }
        if !empty("apiGroups") || !empty("resources") || !empty("resourceNames") {
            errors.invalid(&urls, rendered(), "rules cannot apply to both regular resources and non-resource URLs");
        }
        return;
    }
    if empty("apiGroups") {
        errors.required(&path.child("apiGroups"), "resource rules must supply at least one api group");
    }
    if empty("resources") {
        errors.required(&path.child("resources"), "resource rules must supply at least one resource");
    }
}
