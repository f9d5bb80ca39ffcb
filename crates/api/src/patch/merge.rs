//! Merge patch: objects merge, null removes, everything else replaces.

use super::PatchError;
use crate::decode::{self, Decoded};
use crate::value::json_type;
use serde_json::{Map, Value};

/// Reads a merge patch (or a strategic one), which must be an object or null.
pub fn read_merge_patch(bytes: &[u8]) -> Result<Decoded, PatchError> {
    let decoded = decode::untyped_json(bytes).map_err(|error| PatchError::Malformed(error.to_string().into()))?;
    if decoded.value.is_object() || decoded.value.is_null() {
        return Ok(decoded);
    }
    let found = json_type(&decoded.value);
    let message = format!("json: cannot unmarshal {found} into Go value of type map[string]interface {{}}");
    Err(PatchError::Malformed(message.into()))
}

/// Merges a patch into a value.
pub fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else { return };
    for (name, value) in patch {
        if value.is_null() {
            fields.remove(&name);
        } else {
            merge(fields.entry(name).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn patches_merge() {
        for (mut target, patch, expected) in [
            (
                json!({"a": 1, "b": {"c": 1, "d": 2}}),
                json!({"b": {"c": null, "e": 3}}),
                json!({"a": 1, "b": {"d": 2, "e": 3}}),
            ),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (json!({}), json!({"a": {"b": null, "c": {"d": null}}}), json!({"a": {"c": {}}})),
            (json!({"a": "x"}), json!({"a": {"b": 1}}), json!({"a": {"b": 1}})),
        ] {
            merge(&mut target, patch);
            assert_eq!(target, expected);
        }
    }

    #[test]
    fn only_objects_are_merge_patches() {
        let problem = |text: &str| read_merge_patch(text.as_bytes()).expect_err("no patch").to_string();
        assert_eq!(problem("{bad"), "invalid character 'b' looking for beginning of object key string");
        assert_eq!(problem("[]"), "json: cannot unmarshal array into Go value of type map[string]interface {}");
    }

    fn any_object() -> impl Strategy<Value = Value> {
        let leaf =
            prop_oneof![Just(Value::Null), any::<i8>().prop_map(Value::from), "[a-c]{0,2}".prop_map(Value::from)];
        let value = leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        });
        prop::collection::btree_map("[a-d]", value, 0..4).prop_map(|fields| Value::Object(fields.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn merging_twice_changes_nothing_more(target in any_object(), patch in any_object()) {
            let mut once = target;
            merge(&mut once, patch.clone());
            let mut twice = once.clone();
            merge(&mut twice, patch);
            prop_assert_eq!(twice, once);
        }
    }
}
