//! ResourceSlice: a subset of the devices in a pool of a driver.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::time;
use knarr_api::value::{Read, Write};
use serde_json::Value;

use super::{device, naming, v1beta1};
use crate::common::columns::{self, AGE, NAME, field};
use crate::common::{checks, internal_types};
use crate::core::pod::validation::scheduling;
use crate::kind::{Column, Context, KindRules};

const SPEC: &str = "io.k8s.api.resource.v1.ResourceSliceSpec";
const MAX_DEVICES: usize = 128;
/// The limit for slices with taints or consumed counters, which need more space.
const MAX_LARGE_DEVICES: usize = 64;
const MAX_COUNTER_SETS: usize = 8;
/// Types of attributes that are lists.
const LISTS: [&str; 4] = ["bools", "ints", "strings", "versions"];

/// The rules of ResourceSlice.
pub struct ResourceSlice;

impl KindRules for ResourceSlice {
    fn convert(&self, object: &mut Value, from: &str, to: &str) {
        if let Some(spec) = object.find(&["spec"]) {
            match (from, to) {
                (v1beta1::VERSION, _) => v1beta1::slice_to_v1(spec),
                (_, v1beta1::VERSION) => v1beta1::slice_from_v1(spec),
                _ => {}
            }
        }
    }

    fn prepare_create(&self, object: &mut Value, context: &Context<'_>) {
        set_taint_times(object, context.now);
    }

    fn prepare_update(&self, object: &mut Value, _old: &Value, context: &Context<'_>) {
        set_taint_times(object, context.now);
    }

    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        validate_spec(&mut errors, &object["spec"], old.map(|old| &old["spec"]));
        errors
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Vec<String> {
        let driver = object.text(&["spec", "driver"]);
        if driver == driver.to_lowercase() {
            return Vec::new();
        }
        vec![format!("spec.driver: driver names should be lowercase; {driver:?} contains uppercase characters")]
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                NAME,
                field("Node", "string", SPEC, "nodeName"),
                field("Driver", "string", SPEC, "driver"),
                field("Pool", "string", "io.k8s.api.resource.v1.ResourcePool", "name"),
                AGE,
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            columns::name(object),
            object.text(&["spec", "nodeName"]).into(),
            object.text(&["spec", "driver"]).into(),
            object.text(&["spec", "pool", "name"]).into(),
            columns::age(object, now),
        ]
    }
}

/// Sets the time of new taints.
fn set_taint_times(slice: &mut Value, now: Timestamp) {
    for device in slice.items_mut(&["spec", "devices"]) {
        for taint in device.items_mut(&["taints"]) {
            taint.set_default(&["timeAdded"], time::seconds(now));
        }
    }
}

fn validate_spec(errors: &mut Errors, spec: &Value, old: Option<&Value>) {
    let path = Path::root("spec");
    naming::validate_driver(errors, &path.child("driver"), spec.text(&["driver"]));
    validate_pool(errors, &path.child("pool"), &spec["pool"]);
    if let Some(old) = old {
        checks::immutable(errors, &path.child("pool.name"), spec.at(&["pool", "name"]), old.at(&["pool", "name"]));
        for field in ["driver", "nodeName"] {
            checks::immutable(errors, &path.child(field), &spec[field], &old[field]);
        }
    }
    validate_nodes(errors, &path, spec);
    if spec.has(&["sharedCounters"]) && spec.has(&["devices"]) {
        errors.invalid(&path, "", "only one of `sharedCounters` or `devices` is allowed");
    }
    validate_devices(errors, &path.child("devices"), spec, old);
    let sets = spec.items(&["sharedCounters"]);
    let at = path.child("sharedCounters");
    if naming::within(errors, &at, sets.len(), MAX_COUNTER_SETS) {
        for (index, set) in sets.iter().enumerate() {
            device::validate_counters(errors, &at.index(index), set, "name");
        }
        let names: Vec<Value> = sets.iter().map(|set| set.text(&["name"]).into()).collect();
        naming::validate_distinct(errors, &at, &names);
    }
}

fn validate_pool(errors: &mut Errors, path: &Path<'_>, pool: &Value) {
    naming::validate_pool(errors, &path.child("name"), pool.text(&["name"]));
    let count = pool.integer(&["resourceSliceCount"]).unwrap_or(0);
    if count <= 0 {
        errors.invalid(&path.child("resourceSliceCount"), count, "must be greater than zero");
    }
    if let Some(generation) = pool.integer(&["generation"]).filter(|generation| *generation < 0) {
        errors.invalid(&path.child("generation"), generation, "must be greater than or equal to zero");
    }
}

fn validate_nodes(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    let mut specified = Vec::new();
    match spec["nodeName"].as_str() {
        Some("") => {
            errors.invalid(&path.child("nodeName"), "", "must be either unset or set to a non-empty string");
        }
        Some(name) => {
            specified.push("`nodeName`");
            names::check(errors, &path.child("nodeName"), name, names::dns_subdomain);
        }
        None => {}
    }
    if spec.has(&["nodeSelector"]) {
        specified.push("`nodeSelector`");
        let at = path.child("nodeSelector");
        scheduling::node_selector(errors, &spec["nodeSelector"], false, &at);
        let terms = &spec["nodeSelector"]["nodeSelectorTerms"];
        if terms.items(&[]).len() != 1 {
            let rendered = internal_types::to_json("[]NodeSelectorTerm", terms);
            errors.invalid_verbatim(
                &at.child("nodeSelectorTerms"),
                rendered,
                "must have exactly one node selector term",
            );
        }
    }
    for (field, rendered) in [("allNodes", "`allNodes`"), ("perDeviceNodeSelection", "`perDeviceNodeSelection`")] {
        match spec.flag(&[field]) {
            Some(true) => specified.push(rendered),
            Some(false) => errors.invalid(&path.child(field), false, "must be either unset or set to true"),
            None => {}
        }
    }
    let one = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match specified.len() {
        0 => errors.required(path, one),
        1 => {}
        _ => {
            errors.invalid(path, format!("{{{}}}", specified.join(", ")), format!("{one}, but multiple fields are set"))
        }
    }
}

fn validate_devices(errors: &mut Errors, path: &Path<'_>, spec: &Value, old: Option<&Value>) {
    let devices = spec.items(&["devices"]);
    let is_large = |device: &Value| {
        let attributes = device.fields(&["attributes"]).into_iter().flatten();
        !device.items(&["taints"]).is_empty()
            || !device.items(&["consumesCounters"]).is_empty()
            || attributes.into_iter().any(|(_, attribute)| LISTS.iter().any(|list| attribute.has(&[list])))
    };
    let max = if devices.iter().any(is_large) { MAX_LARGE_DEVICES } else { MAX_DEVICES };
    if !naming::within(errors, path, devices.len(), max) {
        return;
    }
    let per_device = spec.flag(&["perDeviceNodeSelection"]) == Some(true);
    for (index, one) in devices.iter().enumerate() {
        let before = old.and_then(|old| old.items(&["devices"]).iter().find(|other| other["name"] == one["name"]));
        device::validate(errors, &path.index(index), one, before, per_device);
    }
    let names: Vec<Value> = devices.iter().map(|device| device.text(&["name"]).into()).collect();
    naming::validate_distinct(errors, path, &names);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{context, messages};
    use serde_json::json;

    fn slice(driver: &str) -> Value {
        json!({"spec": {"driver": driver, "pool": {"name": "p", "resourceSliceCount": 1}, "nodeName": "n",
            "devices": [{"name": "a", "taints": [{"key": "k", "effect": "NoSchedule"}]}]}})
    }

    #[test]
    fn slices_are_checked() {
        assert!(messages(&ResourceSlice, &slice("d.example.com"), None).is_empty());
        assert_eq!(
            messages(&ResourceSlice, &slice("e.example.com"), Some(&slice("d.example.com"))),
            ["spec.driver: Invalid value: \"e.example.com\": field is immutable"]
        );
        let wrong = json!({"spec": {"driver": "d", "pool": {"name": "p"}, "allNodes": true, "nodeName": "n", "devices": [{"name": "a"}, {"name": "a"}]}});
        assert_eq!(
            messages(&ResourceSlice, &wrong, None),
            [
                "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero",
                "spec: Invalid value: \"{`nodeName`, `allNodes`}\": exactly one of `nodeName`, `nodeSelector`, `allNodes`, \
                 `perDeviceNodeSelection` is required, but multiple fields are set",
                "spec.devices[1]: Duplicate value: \"a\"",
            ]
        );
    }

    #[test]
    fn new_taints_are_stamped() {
        let mut object = slice("d");
        ResourceSlice.prepare_create(&mut object, &context("v1"));
        assert_eq!(object["spec"]["devices"][0]["taints"][0]["timeAdded"], "1970-01-01T00:00:00Z");
    }
}
