//! Serves stored objects without managed fields, or only their metadata, by cutting their bytes without parsing.
//!
//! Most watchers are components that never read managed fields, and some need only metadata. To send and to parse the
//! rest would be most of their cost and ours.

use std::ops::Range;

use knarr_store::Entry;
use serde_json::Value;

use super::raw_json;
use crate::kinds::Resource;
use crate::route::accept::Trim;
use crate::stored;

/// Appends the trimmed object. Returns false and appends nothing if its bytes are not in the form this server writes.
pub fn append(out: &mut Vec<u8>, resource: &Resource, entry: &Entry, revision: u64, trim: Trim) -> bool {
    let Some(value) = stored::spliceable(resource, entry) else { return false };
    let (bytes, first) = (&value[..], resource.head().len());
    let Some(metadata) = Metadata::find(bytes, first) else { return false };
    let Some(gap) = metadata.gap(bytes, first, trim.without_managed_fields) else { return false };
    match trim.metadata_only {
        None => out.extend_from_slice(resource.head()),
        Some(version) => {
            out.extend_from_slice(b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/");
            out.extend_from_slice(version.as_bytes());
            out.extend_from_slice(b"\",\"metadata\":{");
        }
    }
    stored::append_version(out, revision);
    out.extend_from_slice(&bytes[first..gap.start]);
    match trim.metadata_only {
        None => out.extend_from_slice(&bytes[gap.end..]),
        Some(_) => {
            out.extend_from_slice(&bytes[gap.end..metadata.end]);
            out.extend_from_slice(b"}}");
        }
    }
    true
}

/// The trimmed object, parsed; `None` if its bytes are not in the form this server writes.
pub fn read(resource: &Resource, entry: &Entry, trim: Trim) -> Option<Value> {
    let mut bytes = Vec::with_capacity(entry.value_len());
    if !append(&mut bytes, resource, entry, entry.revision, trim) {
        return None;
    }
    stored::read(&bytes).ok()
}

/// Where the metadata ends, and where in it the managed fields are, with their name.
#[derive(Debug, PartialEq, Eq)]
struct Metadata {
    end: usize,
    managed_fields: Option<Range<usize>>,
}

impl Metadata {
    /// Scans the fields of the metadata, the first of which starts at `first`.
    fn find(bytes: &[u8], first: usize) -> Option<Metadata> {
        let mut managed_fields = None;
        let end = raw_json::fields(bytes, first, |field| {
            if field.name == "managedFields" {
                managed_fields = Some(field.whole);
            }
        })?;
        Some(Metadata { end, managed_fields })
    }

    /// The bytes to leave out, with their comma. `None` if the metadata would be empty.
    fn gap(&self, bytes: &[u8], first: usize, without_managed_fields: bool) -> Option<Range<usize>> {
        match &self.managed_fields {
            Some(fields) if without_managed_fields => match bytes.get(fields.end) {
                Some(b',') => Some(fields.start..fields.end + 1),
                _ if fields.start > first => Some(fields.start - 1..fields.end),
                _ => None,
            },
            _ => Some(self.end..self.end),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use knarr_api::catalogue::Catalogue;
    use serde_json::{Value, json};

    use super::*;
    use crate::kinds::{Kinds, no_descriptions};

    fn pod(metadata: Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {},
            "spec": {"managedFields": [1], "template": {"metadata": {"managedFields": ["kept"]}}},
        })
    }

    fn trimmed(object: &Value, trim: Trim) -> Option<Value> {
        let kinds = Kinds::new(Catalogue::built_in(), &HashMap::new(), no_descriptions());
        let resource = kinds.resource("", "v1", "pods").unwrap();
        let entry = Entry::new(Arc::from("k"), stored::encode(resource, object), 7, 8);
        let mut out = b"before".to_vec();
        let was_trimmed = append(&mut out, resource, &entry, 9, trim);
        assert!(was_trimmed || out == b"before");
        was_trimmed.then(|| serde_json::from_slice(&out[6..]).unwrap())
    }

    #[test]
    fn managed_fields_and_everything_but_metadata_are_left_out() {
        let managed = json!([{"manager": "a \"b\"", "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:x\\": {}}}}}]);
        for others in [
            json!({"name": "one"}),
            json!({"annotations": {"a": "\"managedFields\":[{}]", "b\\": "}]\\"}, "generation": 3, "name": "one"}),
            json!({"labels": {}, "finalizers": ["a"], "ownerReferences": [{"uid": "u", "controller": true}]}),
        ] {
            for with in [true, false] {
                let mut metadata = others.clone();
                if with {
                    metadata["managedFields"] = managed.clone();
                }
                let mut whole = pod(metadata);
                whole["metadata"]["resourceVersion"] = "9".into();
                let untrimmed = Trim { metadata_only: None, without_managed_fields: false };
                assert_eq!(trimmed(&whole, untrimmed).as_ref(), Some(&whole));
                let mut partial = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": whole["metadata"]});
                assert_eq!(trimmed(&whole, Trim { metadata_only: Some("v1"), ..untrimmed }).as_ref(), Some(&partial));
                let mut lean = whole.clone();
                for object in [&mut lean, &mut partial] {
                    object["metadata"].as_object_mut().unwrap().remove("managedFields");
                }
                let trim = Trim { metadata_only: None, without_managed_fields: true };
                assert_eq!(trimmed(&whole, trim), Some(lean));
                assert_eq!(trimmed(&whole, Trim { metadata_only: Some("v1"), ..trim }), Some(partial));
            }
        }
    }

    #[test]
    fn metadata_of_managed_fields_only_is_not_trimmed() {
        let object = pod(json!({"managedFields": []}));
        assert_eq!(trimmed(&object, Trim { metadata_only: None, without_managed_fields: true }), None);
    }

    #[test]
    fn bytes_in_another_form_are_not_trimmed() {
        for bytes in [
            "",
            "\"a",
            "\"a\"",
            "\"a\":",
            "\"a\":1",
            "\"a\" :1}",
            "\"a\":[1}",
            "\"a\":}",
            "\"a\\",
            "1}",
            "\"a\":{\"b\":[",
        ] {
            assert_eq!(Metadata::find(bytes.as_bytes(), 0), None, "{bytes}");
        }
        assert_eq!(Metadata::find(b"\"a\":1}", 0), Some(Metadata { end: 5, managed_fields: None }));
    }
}
