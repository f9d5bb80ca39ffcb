//! What everything that makes pods from a template warns of.

use knarr_api::field::Path;
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

/// Warns of a name that is no label and so makes poor host names.
pub fn name_warning(object: &Value) -> Option<String> {
    let wrong = names::dns_label(object.text(&["metadata", "name"]));
    (!wrong.is_empty()).then(|| {
        format!(
            "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS \
             label is recommended: [{}]",
            wrong.join(" ")
        )
    })
}

/// Warnings about the pods that a template makes.
pub fn template_warnings(_template: &Value, _old: Option<&Value>, _path: &Path<'_>) -> Vec<String> {
    Vec::new()
}
