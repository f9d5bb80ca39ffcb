//! Parts of a stored object, cut out of its bytes without parsing it.
//!
//! Most watchers are components that look at what an object asks for, not at who set which of its fields, and some look
//! at its metadata alone. For them to read, and for us to write, the rest would be most of the work.

use std::ops::Range;

use knarr_store::Entry;
use serde_json::Value;

use super::{outline, stored};
use crate::kinds::Resource;

/// What a watcher wants to be spared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Everything but the metadata; the version is that of `meta.k8s.io`.
    pub to_metadata: Option<&'static str>,
    /// Who set which fields.
    pub managed_fields: bool,
}

/// Appends what is left of an object; nothing, and false, when its bytes are not in the form we write.
pub fn append(out: &mut Vec<u8>, resource: &Resource, entry: &Entry, revision: u64, cut: Cut) -> bool {
    if !stored::is_spliceable(resource, entry) {
        return false;
    }
    let (bytes, first) = (&entry.value[..], resource.head().len());
    let Some(metadata) = Metadata::find(bytes, first) else { return false };
    let Some(gap) = metadata.gap(bytes, first, cut.managed_fields) else { return false };
    match cut.to_metadata {
        None => out.extend_from_slice(resource.head()),
        Some(version) => {
            out.extend_from_slice(b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/");
            out.extend_from_slice(version.as_bytes());
            out.extend_from_slice(b"\",\"metadata\":{");
        }
    }
    stored::append_version(out, revision);
    out.extend_from_slice(&bytes[first..gap.start]);
    match cut.to_metadata {
        None => out.extend_from_slice(&bytes[gap.end..]),
        Some(_) => {
            out.extend_from_slice(&bytes[gap.end..metadata.end]);
            out.extend_from_slice(b"}}");
        }
    }
    true
}

/// The object, or a part of it, parsed; nothing when its bytes are not in the form we write.
pub fn read(resource: &Resource, entry: &Entry, cut: Cut) -> Option<Value> {
    let mut bytes = Vec::with_capacity(entry.value.len());
    if !append(&mut bytes, resource, entry, entry.revision, cut) {
        return None;
    }
    stored::read(&bytes).ok()
}

/// Where an object's metadata ends, and where in it the managed fields are, name and all.
#[derive(Debug, PartialEq, Eq)]
struct Metadata {
    end: usize,
    managed_fields: Option<Range<usize>>,
}

impl Metadata {
    /// Looks through the metadata's own fields, the first of which begins at `first`.
    fn find(bytes: &[u8], first: usize) -> Option<Metadata> {
        let mut managed_fields = None;
        let end = outline::fields(bytes, first, |field| {
            if field.name == "managedFields" {
                managed_fields = Some(field.whole);
            }
        })?;
        Some(Metadata { end, managed_fields })
    }

    /// The bytes to leave out, with the comma that belongs to them. None when nothing would be left.
    fn gap(&self, bytes: &[u8], first: usize, is_wanted: bool) -> Option<Range<usize>> {
        match &self.managed_fields {
            Some(fields) if is_wanted => match bytes.get(fields.end) {
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

    fn cut_out(object: &Value, cut: Cut) -> Option<Value> {
        let kinds = Kinds::new(Catalogue::built_in(), &HashMap::new(), no_descriptions());
        let resource = kinds.resource("", "v1", "pods").unwrap();
        let entry = Entry::new(Arc::from("k"), stored::encode(resource, object), 7, 8);
        let mut out = b"before".to_vec();
        let was_cut = append(&mut out, resource, &entry, 9, cut);
        assert!(was_cut || out == b"before");
        was_cut.then(|| serde_json::from_slice(&out[6..]).unwrap())
    }

    #[test]
    fn what_is_left_is_the_object_without_its_managed_fields() {
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
                let uncut = Cut { to_metadata: None, managed_fields: false };
                assert_eq!(cut_out(&whole, uncut).as_ref(), Some(&whole));
                let mut partial = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": whole["metadata"]});
                assert_eq!(cut_out(&whole, Cut { to_metadata: Some("v1"), ..uncut }).as_ref(), Some(&partial));
                let mut lean = whole.clone();
                for object in [&mut lean, &mut partial] {
                    object["metadata"].as_object_mut().unwrap().remove("managedFields");
                }
                let cut = Cut { to_metadata: None, managed_fields: true };
                assert_eq!(cut_out(&whole, cut), Some(lean));
                assert_eq!(cut_out(&whole, Cut { to_metadata: Some("v1"), ..cut }), Some(partial));
            }
        }
    }

    #[test]
    fn an_object_of_nothing_but_managed_fields_is_left_alone() {
        let object = pod(json!({"managedFields": []}));
        assert_eq!(cut_out(&object, Cut { to_metadata: None, managed_fields: true }), None);
    }

    #[test]
    fn bytes_that_are_not_in_our_form_are_not_cut() {
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
