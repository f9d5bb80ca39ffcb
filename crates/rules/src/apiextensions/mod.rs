//! Rules of the group `apiextensions.k8s.io`.

mod approval;
mod conversion;
pub mod custom_resource_definition;
mod defaults;
mod field_path;
mod formats;
mod hoisted;
mod names;
mod schema;
mod schema_fields;
mod spec;
mod structural;
mod version_json;
mod versions;

use crate::KindRules;

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    match kind {
        "CustomResourceDefinition" => Some(&custom_resource_definition::CustomResourceDefinition),
        _ => None,
    }
}
