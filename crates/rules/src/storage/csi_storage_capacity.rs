//! CSIStorageCapacity: the available capacity of a storage class in a topology segment.

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::quantity::Quantity;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::checks::{self, NEGATIVE};
use crate::common::{label_selector, node_labels};
use crate::kind::{Context, KindRules, MetadataPasses};

/// The rules of CsiStorageCapacity.
pub struct CsiStorageCapacity;

impl KindRules for CsiStorageCapacity {
    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let lax = old.is_some_and(|old| label_selector::is_invalid(&old["nodeTopology"]));
        label_selector::validate(&mut errors, &Path::root("nodeTopology"), &object["nodeTopology"], lax);
        let class = object.text(&["storageClassName"]);
        names::check(&mut errors, &Path::root("storageClassName"), class, names::dns_subdomain);
        let capacity = object.text(&["capacity"]);
        if Quantity::parse(capacity).is_ok_and(|quantity| quantity.is_negative()) {
            errors.invalid(&Path::root("capacity"), capacity, NEGATIVE);
        }
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let (path, topology) = (Path::root("nodeTopology"), &object["nodeTopology"]);
        label_selector::immutable(&mut errors, &path, topology, &old["nodeTopology"]);
        let class = Path::root("storageClassName");
        checks::immutable(&mut errors, &class, &object["storageClassName"], &old["storageClassName"]);
        errors
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Vec<String> {
        node_labels::selector_warnings(&object["nodeTopology"], &Path::root("nodeTopology"))
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn allows_unconditional_update(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn capacities_are_checked() {
        let right = json!({"storageClassName": "fast", "capacity": "1Gi"});
        assert!(messages(&CsiStorageCapacity, &right, None).is_empty());
        let wrong = json!({"storageClassName": "slow", "capacity": "-1"});
        assert_eq!(
            messages(&CsiStorageCapacity, &wrong, Some(&right)),
            [
                "capacity: Invalid value: \"-1\": must be greater than or equal to 0",
                "storageClassName: Invalid value: \"slow\": field is immutable",
            ]
        );
    }
}
