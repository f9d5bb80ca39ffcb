//! Validation of the devices in a slice.

use std::collections::BTreeSet;

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::{Map, Value};

use super::{capacity, naming, taints};
use crate::common::{checks, go_json};
use crate::core::pod::validation::scheduling;

const MAX_DESCRIBING: usize = 32;
const MAX_VALUES: usize = 48;
const MAX_TAINTS: usize = 16;
const MAX_CONSUMED_SETS: usize = 2;
const MAX_COUNTERS: usize = 32;
const MAX_CONDITIONS: usize = 4;
const MAX_VALUE_LENGTH: usize = 64;
const MAX_KEY_LENGTH: usize = 63 + 1 + 32;
const LISTS: [&str; 4] = ["bools", "ints", "strings", "versions"];

/// `per_device`: whether each device selects its own nodes.
pub fn validate(errors: &mut Errors, path: &Path<'_>, device: &Value, old: Option<&Value>, per_device: bool) {
    names::check(errors, &path.child("name"), device.text(&["name"]), names::dns_label);
    let (attributes, capacities) = (device.fields(&["attributes"]), device.fields(&["capacity"]));
    let count = attributes.map_or(0, Map::len) + capacities.map_or(0, Map::len);
    if count > MAX_DESCRIBING {
        let detail = format!("the total number of attributes and capacities must not exceed {MAX_DESCRIBING}");
        errors.invalid(path, count, detail);
    }
    let values: usize = attributes.into_iter().flatten().map(|(_, attribute)| count_values(attribute)).sum();
    if values > MAX_VALUES {
        errors.invalid(path, values, format!("the total number of attribute values must not exceed {MAX_VALUES}"));
    }
    validate_map(errors, &path.child("attributes"), attributes, |errors, path, attribute| {
        validate_attribute(errors, path, attribute);
    });
    let shared = device["allowMultipleAllocations"] == true;
    validate_map(errors, &path.child("capacity"), capacities, |errors, path, amount| {
        capacity::validate(errors, path, amount, shared);
    });
    if old.is_none_or(|old| old["taints"] != device["taints"]) {
        let list = device.items(&["taints"]);
        if naming::within(errors, &path.child("taints"), list.len(), MAX_TAINTS) {
            for (index, taint) in list.iter().enumerate() {
                taints::validate(errors, &path.item("taints", index), taint);
            }
        }
    }
    validate_consumption(errors, &path.child("consumesCounters"), device.items(&["consumesCounters"]));
    validate_nodes(errors, path, device, per_device);
    validate_binding_conditions(errors, path, device);
}

fn count_values(attribute: &Value) -> usize {
    let listed: usize = LISTS.iter().map(|list| attribute.items(&[list]).len()).sum();
    listed.max(1)
}

fn validate_map(
    errors: &mut Errors,
    path: &Path<'_>,
    map: Option<&Map<String, Value>>,
    validate: impl Fn(&mut Errors, &Path<'_>, &Value),
) {
    for (key, value) in map.into_iter().flatten() {
        naming::validate_qualified(errors, path, key);
        validate(errors, &path.key(&shortened(key, MAX_KEY_LENGTH)), value);
    }
}

/// Shortens a long key for error messages by omitting its middle.
fn shortened(key: &str, max_length: usize) -> String {
    if key.len() <= max_length || !key.is_ascii() {
        return key.to_owned();
    }
    let rest = max_length - 3;
    format!("{}...{}", &key[..rest.div_ceil(2)], &key[key.len() - rest / 2..])
}

fn validate_attribute(errors: &mut Errors, path: &Path<'_>, attribute: &Value) {
    let too_long = |errors: &mut Errors, path: &Path<'_>, text: &str| {
        if text.len() > MAX_VALUE_LENGTH {
            errors.too_long(path, MAX_VALUE_LENGTH);
        }
    };
    let version = |errors: &mut Errors, path: &Path<'_>, text: &str| {
        if !is_version(text) {
            errors.invalid(path, text, "must be a string compatible with semver.org spec 2.0.0");
        }
        too_long(errors, path, text);
    };
    if let Some(text) = attribute["string"].as_str() {
        too_long(errors, &path.child("string"), text);
    }
    if let Some(text) = attribute["version"].as_str() {
        version(errors, &path.child("version"), text);
    }
    for list in LISTS.iter().filter(|list| attribute.has(&[list])) {
        let items = attribute.items(&[list]);
        if items.is_empty() {
            errors.invalid(&path.child(list), attribute[*list].clone(), "must not be empty if specified");
        }
        for (index, text) in items.iter().filter_map(Value::as_str).enumerate() {
            let path = path.item(list, index);
            if *list == "versions" { version(errors, &path, text) } else { too_long(errors, &path, text) }
        }
    }
    let specified =
        ["bool", "int", "string", "version"].iter().chain(&LISTS).filter(|field| attribute.has(&[field])).count();
    match specified {
        0 => errors.invalid(path, "", "exactly one value must be specified"),
        1 => {}
        _ => {
            let rendered = go_json::struct_json(&[
                ("IntValue", attribute["int"].clone()),
                ("BoolValue", attribute["bool"].clone()),
                ("StringValue", attribute["string"].clone()),
                ("VersionValue", attribute["version"].clone()),
                ("IntValues", attribute["ints"].clone()),
                ("BoolValues", attribute["bools"].clone()),
                ("StringValues", attribute["strings"].clone()),
                ("VersionValues", attribute["versions"].clone()),
            ]);
            errors.invalid_verbatim(path, rendered, "exactly one value must be specified");
        }
    }
}

/// Returns whether the text is a semantic version: `1.2.3-rc.1+build`.
fn is_version(text: &str) -> bool {
    let (rest, build) = text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
    let (core, pre) = rest.split_once('-').map_or((rest, None), |(core, pre)| (core, Some(pre)));
    let word = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte == b'-' || byte.is_ascii_alphanumeric());
    let numeric = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let number = |part: &str| !part.is_empty() && numeric(part) && (part == "0" || !part.starts_with('0'));
    let parts: Vec<&str> = core.split('.').collect();
    parts.len() == 3
        && parts.into_iter().all(number)
        && pre.is_none_or(|pre| pre.split('.').all(|part| word(part) && (!numeric(part) || number(part))))
        && build.is_none_or(|build| build.split('.').all(word))
}

fn validate_consumption(errors: &mut Errors, path: &Path<'_>, consumptions: &[Value]) {
    if !naming::within(errors, path, consumptions.len(), MAX_CONSUMED_SETS) {
        return;
    }
    for (index, consumption) in consumptions.iter().enumerate() {
        validate_counters(errors, &path.index(index), consumption, "counterSet");
    }
    let sets: Vec<Value> = consumptions.iter().map(|one| one.text(&["counterSet"]).into()).collect();
    naming::validate_distinct(errors, path, &sets);
}

/// Validates a counter set, whose name is in the field `name_field`.
pub fn validate_counters(errors: &mut Errors, path: &Path<'_>, set: &Value, name_field: &str) {
    checks::required_name(errors, &path.child(name_field), set.text(&[name_field]), names::dns_label);
    let counters = set.fields(&["counters"]).filter(|counters| !counters.is_empty());
    let at = path.child("counters");
    match counters {
        None => errors.required(&at, ""),
        Some(counters) if counters.len() > MAX_COUNTERS => errors.too_many(&at, counters.len(), MAX_COUNTERS),
        Some(counters) => {
            for name in counters.keys() {
                names::check(errors, &at, name, names::dns_label);
            }
        }
    }
}

fn validate_nodes(errors: &mut Errors, path: &Path<'_>, device: &Value, per_device: bool) {
    let named = ["nodeName", "nodeSelector", "allNodes"].iter().any(|field| device.has(&[field]));
    if !per_device {
        if named {
            let detail = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in \
                        the ResourceSlice spec";
            errors.invalid(path, Value::Null, detail);
        }
        return;
    }
    let mut specified = Vec::new();
    match device["nodeName"].as_str() {
        Some("") => errors.invalid(&path.child("nodeName"), "", "must not be empty"),
        Some(name) => {
            specified.push("`nodeName`");
            names::check(errors, &path.child("nodeName"), name, names::dns_subdomain);
        }
        None => {}
    }
    if device.has(&["nodeSelector"]) {
        specified.push("`nodeSelector`");
        scheduling::node_selector(errors, &device["nodeSelector"], false, &path.child("nodeSelector"));
    }
    match device.flag(&["allNodes"]) {
        Some(true) => specified.push("`allNodes`"),
        Some(false) => errors.invalid(&path.child("allNodes"), false, "must be either unset or set to true"),
        None => {}
    }
    let detail = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true \
                in the ResourceSlice spec";
    match specified.len() {
        0 => errors.required(path, detail),
        1 => {}
        _ => errors.invalid(path, format!("{{{}}}", specified.join(", ")), detail),
    }
}

/// Validates the conditions that binding waits for, and those that make it fail.
pub fn validate_binding_conditions(errors: &mut Errors, path: &Path<'_>, device: &Value) {
    const BIND: &str = "bindingConditions";
    const FAIL: &str = "bindingFailureConditions";
    let (bind, fail) = (device.items(&[BIND]), device.items(&[FAIL]));
    for (field, list) in [(BIND, bind), (FAIL, fail)] {
        if naming::within(errors, &path.child(field), list.len(), MAX_CONDITIONS) {
            for (index, name) in list.iter().enumerate() {
                names::check(
                    errors,
                    &path.item(field, index),
                    name.as_str().unwrap_or_default(),
                    names::qualified_name,
                );
            }
        }
    }
    naming::validate_distinct(errors, &path.child(BIND), bind);
    let (mut seen, bound): (BTreeSet<_>, BTreeSet<_>) = (BTreeSet::new(), bind.iter().map(Value::as_str).collect());
    for (index, name) in fail.iter().enumerate() {
        let path = path.item(FAIL, index);
        if !seen.insert(name.as_str()) {
            errors.duplicate(&path, name.clone());
        }
        if bound.contains(&name.as_str()) {
            errors.invalid(&path, name.clone(), "bindingFailureConditions must not overlap with bindingConditions");
        }
    }
    for (field, detail, wrong) in [
        (BIND, "bindingConditions are required to use bindingFailureConditions", bind.is_empty() && !fail.is_empty()),
        (FAIL, "bindingFailureConditions are required to use bindingConditions", fail.is_empty() && !bind.is_empty()),
    ] {
        if wrong {
            errors.invalid(&path.child(field), device[field].clone(), detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn devices_are_checked() {
        for (device, wrong) in [
            (
                json!({"name": "gpu-0", "attributes": {"model": {"string": "x"}}, "capacity": {"memory": {"value": "1Gi"}}}),
                vec![],
            ),
            (
                json!({"name": "gpu-0", "attributes": {"a b": {}, "version": {"version": "1"}}}),
                vec![
                    "d.attributes: Invalid value: \"a b\": a valid C identifier must start with alphabetic character or '_', \
                     followed by a string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex \
                     used for validation is '[A-Za-z_][A-Za-z0-9_]*')",
                    "d.attributes[a b]: Invalid value: \"\": exactly one value must be specified",
                    "d.attributes[version].version: Invalid value: \"1\": must be a string compatible with semver.org spec 2.0.0",
                ],
            ),
            (
                json!({"name": "gpu-0", "nodeName": "n", "bindingConditions": ["a"]}),
                vec![
                    "d: Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set if \
                     `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
                    "d.bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to use \
                     bindingConditions",
                ],
            ),
        ] {
            let mut errors = Errors::new();
            validate(&mut errors, &Path::root("d"), &device, None, false);
            let read: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
            assert_eq!(read, wrong);
        }
        for (text, good) in
            [("1.2.3", true), ("1.2.3-rc.1+b", true), ("01.2.3", false), ("1.2", false), ("1.2.3-01", false)]
        {
            assert_eq!(is_version(text), good, "{text}");
        }
    }
}
