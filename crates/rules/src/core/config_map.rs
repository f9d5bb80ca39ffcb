//! ConfigMap: configuration data.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use super::secret::{decoded_length, immutable};
use crate::common::columns::{self, field};
use crate::common::formats;
use crate::kind::{Column, Context, KindRules, MetadataPasses};

/// The maximum total size of the data of a ConfigMap or Secret.
pub const SIZE_LIMIT: usize = 1024 * 1024;

const COLUMNS: &[Column] =
    &[columns::NAME, field("Data", "string", "io.k8s.api.core.v1.ConfigMap", "data"), columns::AGE];

/// The rules of ConfigMap.
pub struct ConfigMap;

impl KindRules for ConfigMap {
    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if let Some(old) = old {
            immutable(&mut errors, object, old, &["data", "binaryData"]);
        }
        let root = Path::default();
        let mut size = 0;
        for (key, value) in object.fields(&["data"]).into_iter().flatten() {
            let path = root.child("data");
            let path = path.key(key);
            names::check(&mut errors, &path, key, formats::config_key);
            if object.at(&["binaryData"]).get(key).is_some() {
                errors.invalid(&path, key.as_str(), "duplicate of key present in binaryData");
            }
            size += value.as_str().map_or(0, str::len);
        }
        for (key, value) in object.fields(&["binaryData"]).into_iter().flatten() {
            let path = root.child("binaryData");
            names::check(&mut errors, &path.key(key), key, formats::config_key);
            size += decoded_length(value);
        }
        if size > SIZE_LIMIT {
            // Upstream reports this error for the empty path, which it renders like this.
            errors.too_long(&Path::root("[]"), SIZE_LIMIT);
        }
        errors
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let count = |field: &str| object.fields(&[field]).map_or(0, serde_json::Map::len);
        vec![columns::name(object), (count("data") + count("binaryData")).into(), columns::age(object, now)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn keys_and_sizes_are_checked() {
        for (object, expected) in [
            (json!({"data": {"a.b": "c"}}), vec![]),
            (
                json!({"data": {"a": "b"}, "binaryData": {"a": ""}}),
                vec!["data[a]: Invalid value: \"a\": duplicate of key present in binaryData".to_owned()],
            ),
            (
                json!({"data": {"a": "x".repeat(SIZE_LIMIT + 1)}}),
                vec!["[]: Too long: may not be more than 1048576 bytes".to_owned()],
            ),
        ] {
            assert_eq!(messages(&ConfigMap, &object, None), expected);
        }
        let old = json!({"immutable": true, "data": {"a": "b"}});
        assert_eq!(
            messages(&ConfigMap, &json!({"data": {"a": "c"}}), Some(&old)),
            [
                "immutable: Forbidden: field is immutable when `immutable` is set",
                "data: Forbidden: field is immutable when `immutable` is set",
            ]
        );
    }
}
