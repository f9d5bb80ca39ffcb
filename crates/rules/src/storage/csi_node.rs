//! CSINode: the CSI drivers of a node.

use std::collections::BTreeSet;

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use super::provisioner;
use crate::common::checks::{self, IMMUTABLE};
use crate::common::columns::{self, AGE, NAME, text};
use crate::common::go_json::struct_json;
use crate::kind::{Column, Context, KindRules, MetadataPasses};

const MAX_NODE_ID_LENGTH: usize = 256;

/// The rules of CsiNode.
pub struct CsiNode;

impl KindRules for CsiNode {
    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let mut seen = BTreeSet::new();
        for (index, driver) in object.items(&["spec", "drivers"]).iter().enumerate() {
            let drivers = Path::root("spec.drivers");
            let path = drivers.index(index);
            let name = driver.text(&["name"]);
            provisioner::validate_driver_name(&mut errors, &path.child("name"), name);
            validate_node_id(&mut errors, &path.child("nodeID"), driver.text(&["nodeID"]));
            let count = driver.integer(&["allocatable", "count"]);
            checks::non_negative(&mut errors, &path.child("allocatable.count"), count);
            if !seen.insert(name) {
                errors.duplicate(&path.child("name"), name);
            }
            validate_topology_keys(&mut errors, &path, driver.items(&["topologyKeys"]));
        }
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        for old_driver in old.items(&["spec", "drivers"]) {
            for driver in object.items(&["spec", "drivers"]) {
                let same = |field: &str| driver[field] == old_driver[field];
                if same("name") && !(same("nodeID") && same("topologyKeys")) {
                    let rendered = struct_json(&[
                        ("Name", driver["name"].clone()),
                        ("NodeID", driver.text(&["nodeID"]).into()),
                        ("TopologyKeys", driver["topologyKeys"].clone()),
                        ("Allocatable", Value::Null),
                    ]);
                    errors.invalid_verbatim(&Path::root("spec.drivers"), rendered, IMMUTABLE);
                }
            }
        }
        errors
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 0, as_create: 2 }
    }

    fn allows_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const DRIVERS: &str = "Drivers indicates the number of CSI drivers registered on the node";
        const { &[NAME, text("Drivers", "integer", DRIVERS), AGE] }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let drivers = object.items(&["spec", "drivers"]).len();
        vec![columns::name(object), drivers.into(), columns::age(object, now)]
    }
}

fn validate_node_id(errors: &mut Errors, path: &Path, id: &str) {
    if id.is_empty() {
        errors.required(path, "");
    }
    if id.len() > MAX_NODE_ID_LENGTH {
        errors.invalid(path, id, format!("must be {MAX_NODE_ID_LENGTH} characters or less"));
    }
}

fn validate_topology_keys(errors: &mut Errors, path: &Path, keys: &[Value]) {
    let mut seen = BTreeSet::new();
    for key in keys.iter().map(|key| key.as_str().unwrap_or_default()) {
        if key.is_empty() {
            errors.required(path, "");
        }
        if !seen.insert(key) {
            errors.duplicate(path, key);
        }
        names::check(errors, path, key, names::qualified_name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn drivers_are_checked_and_stay() {
        let node = |id: &str| json!({"spec": {"drivers": [{"name": "a.b", "nodeID": id, "topologyKeys": ["zone"]}]}});
        assert!(messages(&CsiNode, &node("n"), None).is_empty());
        assert_eq!(
            messages(&CsiNode, &node("m"), Some(&node("n"))),
            ["spec.drivers: Invalid value: {\"Name\":\"a.b\",\"NodeID\":\"m\",\"TopologyKeys\":[\"zone\"],\
              \"Allocatable\":null}: field is immutable"]
        );
        let twice = json!({"spec": {"drivers": [{"name": "a", "nodeID": ""}, {"name": "a", "nodeID": "n",
            "allocatable": {"count": -1}, "topologyKeys": ["k", "k"]}]}});
        assert_eq!(
            messages(&CsiNode, &twice, None),
            [
                "spec.drivers[0].nodeID: Required value",
                "spec.drivers[1].allocatable.count: Invalid value: -1: must be greater than or equal to 0",
                "spec.drivers[1].name: Duplicate value: \"a\"",
                "spec.drivers[1]: Duplicate value: \"k\"",
            ]
        );
    }
}
