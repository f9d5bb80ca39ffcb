//! Owners that the server does not have.

use std::collections::HashSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use parking_lot::Mutex;

/// References to owners that are gone; a uid is never reused. A reference is remembered with everything it says: one that
/// names an existing owner wrongly, or from another namespace, must not make the owner's real dependents orphans.
#[derive(Default)]
pub(super) struct Absent(Mutex<HashSet<Entry>>);

type Entry = (String, String, String, String, String);

impl Absent {
    const LIMIT: usize = 10_000;
    /// Authors of objects choose what references say. Longer ones are checked again each time.
    const MAX_BYTES: usize = 1024;

    pub fn has(&self, namespace: &str, reference: &OwnerReference) -> bool {
        self.0.lock().contains(&entry(namespace, reference))
    }

    pub fn remember(&self, namespace: &str, reference: &OwnerReference) {
        let OwnerReference { api_version, kind, name, uid, .. } = reference;
        if [namespace, api_version, kind, name, uid].map(str::len).iter().sum::<usize>() > Self::MAX_BYTES {
            return;
        }
        let mut all = self.0.lock();
        if all.len() >= Self::LIMIT {
            all.clear();
        }
        all.insert(entry(namespace, reference));
    }
}

fn entry(namespace: &str, reference: &OwnerReference) -> Entry {
    let OwnerReference { api_version, kind, name, uid, .. } = reference.clone();
    (namespace.to_owned(), api_version, kind, name, uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_reference_is_remembered() {
        let reference = |kind: &str, name: &str| OwnerReference {
            api_version: "v1".to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: "u".to_owned(),
            ..OwnerReference::default()
        };
        let absent = Absent::default();
        absent.remember("a", &reference("ConfigMap", "x"));
        for (namespace, kind, name, expected) in [
            ("a", "ConfigMap", "x", true),
            ("b", "ConfigMap", "x", false),
            ("a", "Secret", "x", false),
            ("a", "ConfigMap", "y", false),
        ] {
            assert_eq!(absent.has(namespace, &reference(kind, name)), expected, "{namespace} {kind} {name}");
        }
    }
    #[test]
    fn long_references_do_not_fill_memory() {
        let absent = Absent::default();
        for (length, remembered) in [(36, 1), (1_000_000, 1)] {
            let uid = "u".repeat(length);
            absent.remember("a", &OwnerReference { uid, name: "x".to_owned(), ..OwnerReference::default() });
            assert_eq!(absent.0.lock().len(), remembered);
        }
    }
}
