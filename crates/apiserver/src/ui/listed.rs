//! Pages of lists, parsed object by object: as values, objects take tens of times the memory of their text, and tenants write
//! them.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// How many objects are read at a time.
pub const PAGE_SIZE: usize = 100;

/// What maps of a few entries, entries and values take besides their text.
const MAP_BYTES: usize = 640;
const ENTRIES_PER_MAP: usize = 8;
const ENTRY_BYTES: usize = 16;
const ITEM_BYTES: usize = 32;

/// A page of a list, whose items are not parsed yet.
#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow, default)]
    items: Vec<&'a RawValue>,
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default, rename = "continue")]
    next: String,
}

/// Hands the objects of a page on, one at a time. Returns where the next page starts.
pub fn for_each(body: &[u8], mut found: impl FnMut(Value)) -> serde_json::Result<String> {
    let page: Page<'_> = serde_json::from_slice(body)?;
    for item in page.items {
        found(serde_json::from_str(item.get())?);
    }
    Ok(page.metadata.next)
}

/// Removes what no diagnosis reads: most of what long objects consist of.
pub fn strip(object: &mut Value) {
    let Value::Object(fields) = object else { return };
    for long in ["data", "binaryData", "stringData"] {
        fields.remove(long);
    }
    if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    if let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("template");
        for list in ["containers", "initContainers"] {
            let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
            containers.filter_map(Value::as_object_mut).for_each(|container| drop(container.remove("env")));
        }
    }
}

/// About how much memory a value takes.
pub fn weight(value: &Value) -> usize {
    let below = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Object(fields) => {
            let entries: usize = fields.iter().map(|(name, value)| ENTRY_BYTES + name.len() + weight(value)).sum();
            fields.len().div_ceil(ENTRIES_PER_MAP) * MAP_BYTES + entries
        }
        _ => 0,
    };
    ITEM_BYTES + below
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page_is_parsed_object_by_object() {
        let body = br#"{"kind": "PodList", "metadata": {"continue": "c"}, "items": [{"a": 1}, {"b": [2]}]}"#;
        let mut found = Vec::new();
        assert_eq!(for_each(body, |object| found.push(object)).unwrap(), "c");
        assert_eq!(json!(found), json!([{"a": 1}, {"b": [2]}]));
        assert_eq!(for_each(br#"{"metadata": {}}"#, |_| ()).unwrap(), "");
        assert!(for_each(b"[", |_| ()).is_err());
    }

    #[test]
    fn small_maps_weigh_more_than_their_text() {
        let object = json!({"volumes": vec![json!({"name": "a"}); 1000]});
        assert!(weight(&object) > 40 * object.to_string().len());
        assert!(weight(&json!("x".repeat(1000))) < 1100);
    }

    #[test]
    fn what_no_diagnosis_reads_is_removed() {
        let mut object = json!({
            "metadata": {"name": "a", "managedFields": [{}]}, "data": {"key": "value"},
            "spec": {"nodeName": "n", "template": {}, "containers": [{"name": "c", "env": [{"name": "A"}]}]},
        });
        strip(&mut object);
        let left = json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n", "containers": [{"name": "c"}]}});
        assert_eq!(object, left);
    }
}
