//! The approval that definitions in groups of the Kubernetes community need.

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

const APPROVED: &str = "api-approved.kubernetes.io";

#[derive(PartialEq)]
enum Approval {
    Missing,
    Invalid,
    Given,
    Bypassed,
}

fn approval(object: &Value) -> Approval {
    match object.text(&["metadata", "annotations", APPROVED]) {
        "" => Approval::Missing,
        text if text.starts_with("unapproved") => Approval::Bypassed,
        text => match text.split_once("://") {
            Some((scheme, rest)) if !scheme.is_empty() && !rest.is_empty() && !rest.starts_with('/') => Approval::Given,
            _ => Approval::Invalid,
        },
    }
}

/// Validates the approval of definitions in groups of the Kubernetes community.
pub(super) fn validate_approval(errors: &mut Errors, object: &Value, old: Option<&Value>) {
    let group = object.text(&["spec", "group"]);
    let is_protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group == *domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')));
    let state = approval(object);
    if !is_protected || old.is_some_and(|old| approval(old) == state) {
        return;
    }
    let annotations = Path::root("metadata.annotations");
    let path = annotations.key(APPROVED);
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    let needs = format!("protected groups must have approval annotation {APPROVED:?}");
    match state {
        Approval::Missing => errors.required(&path, format!("{needs}, {see}")),
        Approval::Invalid => {
            let detail = format!("{needs} with either a URL or a reason starting with \"unapproved\", {see}");
            errors.invalid(&path, object.text(&["metadata", "annotations", APPROVED]), detail);
        }
        Approval::Given | Approval::Bypassed => {}
    }
}
