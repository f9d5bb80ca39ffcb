//! Versions that this process wrote, to detect a stale cache.

use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;

use super::Key;

/// The newest version written of each object. Syncing an older one would repeat the work; the event that brings the newer
/// version queues the object again.
#[derive(Default)]
pub struct WrittenVersions(Mutex<HashMap<Key, Version>>);

struct Version {
    uid: Option<String>,
    number: u64,
}

impl WrittenVersions {
    pub fn note(&self, key: &Key, written: &ObjectMeta) {
        if let Some(number) = number(written) {
            self.0.lock().insert(key.clone(), Version { uid: written.uid.clone(), number });
        }
    }

    /// Whether the cached object is older than the version written last.
    pub fn is_newer_than(&self, key: &Key, cached: &ObjectMeta) -> bool {
        let mut all = self.0.lock();
        let Some(version) = all.get(key) else { return false };
        let behind = version.uid == cached.uid && number(cached).is_some_and(|cached| cached < version.number);
        if !behind {
            all.remove(key);
        }
        behind
    }

    pub fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

fn number(meta: &ObjectMeta) -> Option<u64> {
    meta.resource_version.as_deref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_cache_is_noticed_until_it_has_caught_up() {
        let meta = |uid: &str, version: &str| ObjectMeta {
            uid: Some(uid.to_owned()),
            resource_version: Some(version.to_owned()),
            ..ObjectMeta::default()
        };
        let key = Key { namespace: "ns".to_owned(), name: "a".to_owned() };
        let written = WrittenVersions::default();
        assert!(!written.is_newer_than(&key, &meta("u", "5")));
        written.note(&key, &meta("u", "9"));
        assert!(written.is_newer_than(&key, &meta("u", "8")));
        assert!(!written.is_newer_than(&key, &meta("u", "9")));
        written.note(&key, &meta("u", "9"));
        assert!(!written.is_newer_than(&key, &meta("another", "8")), "a new object under the name");
        written.note(&key, &meta("u", "9"));
        written.forget(&key);
        assert!(!written.is_newer_than(&key, &meta("u", "1")));
    }
}
