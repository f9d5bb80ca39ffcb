//! Conversion of v1beta1, whose requests and devices have their fields in other places. v1beta2 has those of v1.

use knarr_api::value::{Read, Write};
use serde_json::{Map, Value};

pub const VERSION: &str = "v1beta1";
/// The fields of a request that v1 has below `exactly`.
const OF_EXACTLY: [&str; 7] =
    ["deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity"];

/// Converts the spec of a claim from v1beta1 to v1.
pub fn claim_to_v1(spec: &mut Value) {
    for request in spec.items_mut(&["devices", "requests"]) {
        let Some(fields) = request.as_object_mut() else { continue };
        let moved = OF_EXACTLY.iter().filter_map(|name| fields.remove(*name).map(|value| ((*name).to_owned(), value)));
        let mut exactly: Map<String, Value> = moved.collect();
        // v1beta1 prints the name of the class although it is empty.
        if !exactly.values().all(is_zero) {
            exactly.entry("deviceClassName").or_insert_with(|| "".into());
            fields.insert("exactly".to_owned(), exactly.into());
        }
    }
}

/// Converts the spec of a claim from v1 to v1beta1.
pub fn claim_from_v1(spec: &mut Value) {
    for request in spec.items_mut(&["devices", "requests"]) {
        let Some(fields) = request.as_object_mut() else { continue };
        match fields.remove("exactly") {
            Some(Value::Object(exactly)) => fields.extend(exactly),
            _ => drop(fields.insert("deviceClassName".to_owned(), "".into())),
        }
    }
}

/// Converts a slice from v1beta1 to v1.
pub fn slice_to_v1(spec: &mut Value) {
    for name in ["nodeName", "allNodes"] {
        if is_zero(spec.at(&[name])) {
            spec.remove(&[name]);
        }
    }
    for device in spec.items_mut(&["devices"]) {
        let Some(fields) = device.as_object_mut() else { continue };
        if let Some(Value::Object(basic)) = fields.remove("basic") {
            fields.extend(basic);
        }
    }
}

/// Converts a slice from v1 to v1beta1.
pub fn slice_from_v1(spec: &mut Value) {
    for device in spec.items_mut(&["devices"]) {
        let Some(fields) = device.as_object_mut() else { continue };
        let name = fields.remove("name").unwrap_or_else(|| "".into());
        let basic = std::mem::take(fields);
        fields.insert("name".to_owned(), name);
        fields.insert("basic".to_owned(), basic.into());
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_i64() == Some(0),
        Value::String(value) => value.is_empty(),
        Value::Array(_) | Value::Object(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_go_there_and_back() {
        let old = json!({"devices": {"requests": [
            {"name": "one", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2,
             "selectors": [{"cel": {"expression": "true"}}]},
            {"name": "any", "deviceClassName": "", "firstAvailable": [{"name": "a", "deviceClassName": "gpu"}]},
        ]}});
        let new = json!({"devices": {"requests": [
            {"name": "one", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2,
             "selectors": [{"cel": {"expression": "true"}}]}},
            {"name": "any", "firstAvailable": [{"name": "a", "deviceClassName": "gpu"}]},
        ]}});
        let mut converted = old.clone();
        claim_to_v1(&mut converted);
        assert_eq!(converted, new);
        claim_from_v1(&mut converted);
        assert_eq!(converted, old);
    }

    #[test]
    fn slices_go_there_and_back() {
        let old = json!({"driver": "d", "nodeName": "n", "devices": [{"name": "x", "basic": {"attributes": {"a": {"int": 1}}}}]});
        let new = json!({"driver": "d", "nodeName": "n", "devices": [{"name": "x", "attributes": {"a": {"int": 1}}}]});
        let mut converted = old.clone();
        slice_to_v1(&mut converted);
        assert_eq!(converted, new);
        slice_from_v1(&mut converted);
        assert_eq!(converted, old);
        let mut unset = json!({"nodeName": "", "allNodes": false});
        slice_to_v1(&mut unset);
        assert_eq!(unset, json!({}));
    }
}
