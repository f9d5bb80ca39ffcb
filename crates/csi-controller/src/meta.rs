//! The metadata of objects: names, annotations and finalizers.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde_json::{Value, json};

pub(crate) fn name(object: &impl Resource) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}

pub(crate) fn namespace(object: &impl Resource) -> &str {
    object.meta().namespace.as_deref().unwrap_or_default()
}

pub(crate) fn uid(object: &impl Resource) -> &str {
    object.meta().uid.as_deref().unwrap_or_default()
}

pub(crate) fn annotation<'a>(object: &'a impl Resource, key: &str) -> Option<&'a str> {
    object.meta().annotations.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn is_deleted(object: &impl Resource) -> bool {
    object.meta().deletion_timestamp.is_some()
}

pub(crate) fn has_finalizer(object: &impl Resource, finalizer: &str) -> bool {
    object.meta().finalizers.iter().flatten().any(|own| own == finalizer)
}

/// A patch that adds or removes a finalizer, and that the server rejects if the object has changed meanwhile; `None` if nothing
/// changes.
pub(crate) fn finalizer_patch(meta: &ObjectMeta, finalizer: &str, is_wanted: bool) -> Option<Value> {
    let mut finalizers = meta.finalizers.clone().unwrap_or_default();
    let had = finalizers.iter().any(|own| own == finalizer);
    if had == is_wanted {
        return None;
    }
    if is_wanted {
        finalizers.push(finalizer.to_owned());
    } else {
        finalizers.retain(|own| own != finalizer);
    }
    Some(json!({"metadata": {"resourceVersion": meta.resource_version, "finalizers": finalizers}}))
}

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn of(object: &impl Resource) -> Self {
        Self { namespace: namespace(object).to_owned(), name: name(object).to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finalizer_is_patched_only_when_it_changes() {
        let meta = |finalizers: &[&str]| ObjectMeta {
            resource_version: Some("7".into()),
            finalizers: Some(finalizers.iter().map(|name| name.to_string()).collect()),
            ..ObjectMeta::default()
        };
        let patch = |finalizers: &[&str]| Some(json!({"metadata": {"resourceVersion": "7", "finalizers": finalizers}}));
        for (own, is_wanted, expected) in [
            (&["a"][..], true, patch(&["a", "f"])),
            (&["a", "f"], true, None),
            (&["a", "f"], false, patch(&["a"])),
            (&["a"], false, None),
        ] {
            assert_eq!(finalizer_patch(&meta(own), "f", is_wanted), expected);
        }
    }
}
