//! Counts the changes that reach the store's index, by resource.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use knarr_store::ChangeObserver;
use parking_lot::Mutex;

use crate::kinds::{Kinds, Resource};
use crate::metrics::STORAGE_EVENTS;

/// The resources by the prefix of their keys, of the kinds they were built from.
struct ByPrefix {
    kinds: Arc<Kinds>,
    resources: BTreeMap<String, Arc<Resource>>,
}

impl ByPrefix {
    fn new(kinds: Arc<Kinds>) -> ByPrefix {
        let stored = kinds.all().filter(|resource| resource.is_stored_version() && resource.storage().is_some());
        let resources = stored.map(|resource| (resource.range(""), resource.clone())).collect();
        ByPrefix { kinds, resources }
    }

    /// The resource of a key: that with the longest prefix of it, as the prefix of one may start with that of another.
    fn find(&self, key: &str) -> Option<&Arc<Resource>> {
        let mut end = key.len();
        while let Some(slash) = key[..end].rfind('/') {
            if let Some(resource) = self.resources.get(&key[..=slash]) {
                return Some(resource);
            }
            end = slash;
        }
        None
    }
}

/// An observer of the store that counts changes of kinds that are served at the moment.
pub fn observer(kinds: Arc<ArcSwap<Kinds>>) -> ChangeObserver {
    let cached = Mutex::new(ByPrefix::new(kinds.load_full()));
    Arc::new(move |key| {
        // Only the writer of the store calls this: the lock is free.
        let mut cached = cached.lock();
        let current = kinds.load();
        if !Arc::ptr_eq(&cached.kinds, &current) {
            *cached = ByPrefix::new(Arc::clone(&current));
        }
        if let Some(resource) = cached.find(key) {
            STORAGE_EVENTS.add(&[&resource.kind.group, &resource.kind.plural], 1);
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use knarr_api::catalogue::Catalogue;

    use super::*;
    use crate::kinds::no_descriptions;

    #[test]
    fn keys_belong_to_resources() {
        let all = ByPrefix::new(Arc::new(Kinds::new(Catalogue::built_in(), &HashMap::new(), no_descriptions())));
        for (key, plural) in [
            ("/registry/pods/web/one", Some("pods")),
            ("/registry/minions/n1", Some("nodes")),
            ("/registry/services/specs/web/s", Some("services")),
            ("/registry/services/endpoints/web/s", Some("endpoints")),
            ("/registry/masterleases/1.2.3.4", None),
            ("/registry/knarr/cluster", None),
        ] {
            assert_eq!(all.find(key).map(|resource| resource.kind.plural.as_str()), plural, "{key}");
        }
    }
}
