//! What everything that makes pods from a template has in common.

use knarr_api::names;
use knarr_api::value::{Read, Write};
use serde_json::Value;

use crate::core::pod::prepare;

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

/// Removes from a template what is behind a feature that is off, unless the stored one has it already.
pub fn drop_disabled(object: &mut Value, old: Option<&Value>, template: &[&str]) {
    if let Some(new) = object.find(template) {
        prepare::drop_disabled(new, old.map(|old| old.at(template)));
    }
}
