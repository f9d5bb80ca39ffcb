//! The cache of an informer: its objects by namespace and name, and by the keys of its indexes.
//!
//! A typed object uses several times the memory of its text: a pod about 10 KB, of which most are fields without a value.
//! So a large cache keeps only the objects that changed last as values, and the others packed, which every read decodes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_packing::{Packed, Packer};

use super::{Change, Object};

/// How much memory the values of a cache may use: about 2,000 pods, or 8,000 Leases.
const MAX_VALUE_BYTES: usize = 20 << 20;
/// An object uses several times the memory of its own struct, for texts, lists and maps.
const HEAP_FACTOR: usize = 4;

pub(super) struct Cache<K> {
    /// Namespace, then name; two levels, so that a lookup borrows its key and a namespace can be listed.
    objects: HashMap<Arc<str>, HashMap<Arc<str>, Cached<K>>>,
    indexes: HashMap<&'static str, Index<K>>,
    count: usize,
    values: usize,
    max_values: usize,
    /// The number of changes so far.
    changes: u64,
    /// The objects that were put here as values and the numbers of these changes, oldest first. Some were changed or removed since.
    order: VecDeque<(Key, u64)>,
    packer: Packer,
}

enum Cached<K> {
    Value {
        object: Arc<K>,
        /// The number of the change that put it here.
        change: u64,
    },
    Packed(Packed),
}

/// Namespace and name.
pub(super) type Key = (Arc<str>, Arc<str>);

struct Index<K> {
    keys_of: fn(&K) -> Vec<String>,
    entries: HashMap<Box<str>, HashSet<Key>>,
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            indexes: HashMap::new(),
            count: 0,
            values: 0,
            max_values: MAX_VALUE_BYTES / (HEAP_FACTOR * size_of::<K>().max(1)),
            changes: 0,
            order: VecDeque::new(),
            packer: Packer::default(),
        }
    }
}

impl<K: Object> Cached<K> {
    fn read(&self) -> Option<Arc<K>> {
        match self {
            Self::Value { object, .. } => Some(object.clone()),
            Self::Packed(packed) => match unpack(packed) {
                Ok(object) => Some(Arc::new(object)),
                Err(error) => {
                    // `pack` wrote it from a value of the same type.
                    tracing::error!(kind = super::kind_name::<K>(), %error, "cannot decode a cached object");
                    None
                }
            },
        }
    }

    /// Packs the object if it is the value that this change put here. Returns whether it was.
    fn pack(&mut self, put_by: u64, packer: &mut Packer) -> bool {
        let Self::Value { object, change } = self else { return false };
        if *change != put_by {
            return false;
        }
        // What cannot be written stays a value.
        let Ok(text) = serde_json::to_vec(&**object) else { return false };
        *self = Self::Packed(packer.pack(&text));
        true
    }
}

fn unpack<K: Object>(packed: &Packed) -> serde_json::Result<K> {
    crate::decode::from_bytes(&packed.text())
}

impl<K: Object> Cache<K> {
    /// The object of a namespace and name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.objects.get(namespace)?.get(name)?.read()
    }

    /// All objects.
    pub fn all(&self) -> impl Iterator<Item = Arc<K>> {
        self.objects.values().flat_map(HashMap::values).filter_map(Cached::read)
    }

    /// The names of all objects.
    pub fn keys(&self) -> Vec<Key> {
        let names = self.objects.iter().flat_map(|(namespace, names)| names.keys().map(move |name| (namespace, name)));
        names.map(|(namespace, name)| (namespace.clone(), name.clone())).collect()
    }

    /// The objects of a namespace.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = Arc<K>> {
        self.objects.get(namespace).into_iter().flat_map(HashMap::values).filter_map(Cached::read)
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Adds an index, unless one of that name exists.
    pub fn add_index(&mut self, name: &'static str, keys_of: fn(&K) -> Vec<String>) {
        if self.indexes.contains_key(name) {
            return;
        }
        let mut index = Index { keys_of, entries: HashMap::new() };
        for (namespace, names) in &self.objects {
            for (name, cached) in names {
                if let Some(object) = cached.read() {
                    index.insert(&object, &(namespace.clone(), name.clone()));
                }
            }
        }
        self.indexes.insert(name, index);
    }

    /// The objects under a key of an index.
    pub fn by_index(&self, name: &'static str, key: &str) -> Vec<Arc<K>> {
        let keys = self.indexes.get(name).and_then(|index| index.entries.get(key));
        keys.into_iter().flatten().filter_map(|(namespace, name)| self.get(namespace, name)).collect()
    }

    /// The keys of an index that have objects.
    pub fn index_keys(&self, name: &'static str) -> Vec<String> {
        let keys = self.indexes.get(name).into_iter().flat_map(|index| index.entries.keys());
        keys.map(|key| key.to_string()).collect()
    }

    /// Adds or replaces an object and returns the changes.
    pub fn put(&mut self, object: K) -> Vec<Change<K>> {
        let new = Arc::new(object);
        let (namespace, name) = key(new.meta());
        let Some(old) = self.get(namespace, name) else {
            self.insert(new.clone());
            return vec![Change::Added(new)];
        };
        if old.meta().resource_version == new.meta().resource_version && old.meta().uid == new.meta().uid {
            return Vec::new();
        }
        self.detach(&old);
        self.insert(new.clone());
        if old.meta().uid == new.meta().uid {
            vec![Change::Updated { old, new }]
        } else {
            // Deleted and created again between two events: two objects, not an update.
            vec![Change::Deleted(old), Change::Added(new)]
        }
    }

    /// Removes an object; the change carries its last state.
    pub fn remove(&mut self, last: K) -> Vec<Change<K>> {
        let (namespace, name) = key(last.meta());
        let Some(old) = self.get(namespace, name) else { return Vec::new() };
        self.detach(&old);
        vec![Change::Deleted(Arc::new(last))]
    }

    /// Removes what a complete list does not contain and returns the changes.
    pub fn retain(&mut self, listed: &HashSet<Key>) -> Vec<Change<K>> {
        let mut changes = Vec::new();
        for key in self.keys().into_iter().filter(|key| !listed.contains(key)) {
            if let Some(object) = self.get(&key.0, &key.1) {
                self.detach(&object);
                changes.push(Change::Deleted(object));
            }
        }
        changes
    }

    fn insert(&mut self, object: Arc<K>) {
        let (namespace, name) = key(object.meta());
        let known = self.objects.get_key_value(namespace).map(|(known, _)| known.clone());
        let key: Key = (known.unwrap_or_else(|| namespace.into()), name.into());
        for index in self.indexes.values_mut() {
            index.insert(&object, &key);
        }
        self.changes += 1;
        let cached = Cached::Value { object, change: self.changes };
        self.order.push_back((key.clone(), self.changes));
        self.objects.entry(key.0).or_default().insert(key.1, cached);
        self.count += 1;
        self.values += 1;
        while self.values > self.max_values && self.pack_oldest() {}
        if self.order.len() > 2 * self.max_values {
            self.forget_old_changes();
        }
    }

    /// Packs the object that changed longest ago, if the oldest change is still its last one. Returns whether there was a change.
    fn pack_oldest(&mut self) -> bool {
        let Some(((namespace, name), change)) = self.order.pop_front() else { return false };
        let object = self.objects.get_mut(&namespace).and_then(|names| names.get_mut(&name));
        self.values -= usize::from(object.is_some_and(|object| object.pack(change, &mut self.packer)));
        true
    }

    /// Forgets the changes of objects that were changed again or removed.
    fn forget_old_changes(&mut self) {
        let objects = &self.objects;
        self.order.retain(|((namespace, name), put_by)| {
            let object = objects.get(namespace).and_then(|names| names.get(name));
            matches!(object, Some(Cached::Value { change, .. }) if change == put_by)
        });
    }

    fn detach(&mut self, object: &Arc<K>) {
        let (namespace, name) = key(object.meta());
        let Some(names) = self.objects.get_mut(namespace) else { return };
        let Some((name, cached)) = names.remove_entry(name) else { return };
        self.count -= 1;
        self.values -= usize::from(matches!(cached, Cached::Value { .. }));
        let is_last = names.is_empty();
        let key = (namespace.into(), name);
        for index in self.indexes.values_mut() {
            index.remove(object, &key);
        }
        if is_last {
            self.objects.remove(namespace);
        }
    }
}

impl<K> Index<K> {
    fn insert(&mut self, object: &K, key: &Key) {
        for entry in (self.keys_of)(object) {
            self.entries.entry(entry.into()).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, object: &K, key: &Key) {
        for entry in (self.keys_of)(object) {
            if let Some(keys) = self.entries.get_mut(entry.as_str()) {
                keys.remove(key);
                if keys.is_empty() {
                    self.entries.remove(entry.as_str());
                }
            }
        }
    }
}

pub(super) fn key(meta: &ObjectMeta) -> (&str, &str) {
    (meta.namespace.as_deref().unwrap_or(""), meta.name.as_deref().unwrap_or(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};

    fn object(name: &str, version: &str, color: &str) -> ConfigMap {
        let metadata = ObjectMeta {
            name: Some(name.into()),
            namespace: Some("ns".into()),
            uid: Some(name.into()),
            resource_version: Some(version.into()),
            labels: Some([("color".to_owned(), color.to_owned())].into()),
            ..ObjectMeta::default()
        };
        ConfigMap { metadata, ..ConfigMap::default() }
    }

    fn color(object: &ConfigMap) -> Vec<String> {
        object.metadata.labels.iter().flatten().map(|(_, value)| value.clone()).collect()
    }

    #[test]
    fn indexes_are_updated_with_changes() {
        let mut cache = Cache::default();
        cache.put(object("a", "1", "red"));
        cache.add_index("color", color);
        cache.put(object("b", "2", "red"));
        assert_eq!(cache.by_index("color", "red").len(), 2);
        cache.put(object("a", "3", "blue"));
        assert_eq!(cache.by_index("color", "red").len(), 1);
        assert_eq!(cache.by_index("color", "blue").len(), 1);
        assert!(cache.put(object("a", "3", "blue")).is_empty(), "the same version is no change");
        cache.remove(object("b", "4", "red"));
        assert!(cache.by_index("color", "red").is_empty());
        assert_eq!(cache.indexes["color"].entries.len(), 1, "an empty key is dropped");
        cache.put(object("c", "5", "blue"));
        let gone = cache.retain(&[("ns".into(), "c".into())].into());
        assert!(matches!(&gone[..], [Change::Deleted(gone)] if gone.metadata.name.as_deref() == Some("a")));
        assert_eq!(cache.by_index("color", "blue").len(), 1);
        assert_eq!((cache.len(), cache.in_namespace("ns").count()), (1, 1));
        assert!(cache.by_index("shape", "round").is_empty());
    }

    #[test]
    fn a_large_cache_keeps_the_objects_that_changed_last_as_values() {
        let mut cache = Cache { max_values: 8, ..Cache::default() };
        cache.add_index("color", color);
        for number in 0..100 {
            cache.put(object(&format!("o-{number}"), "1", "red"));
        }
        let values = |cache: &Cache<ConfigMap>| {
            let all = cache.objects.values().flat_map(HashMap::values);
            all.filter(|cached| matches!(cached, Cached::Value { .. })).count()
        };
        assert_eq!((values(&cache), cache.values), (8, 8));
        assert_eq!((cache.len(), cache.all().count(), cache.by_index("color", "red").len()), (100, 100, 100));
        // The oldest is read, changed and removed as if it were a value.
        assert_eq!(*cache.get("ns", "o-0").unwrap(), object("o-0", "1", "red"));
        let changes = cache.put(object("o-0", "2", "blue"));
        assert!(matches!(&changes[..], [Change::Updated { old, .. }] if **old == object("o-0", "1", "red")));
        assert!(cache.put(object("o-1", "1", "red")).is_empty(), "the same version is no change");
        assert_eq!(cache.by_index("color", "red").len(), 99);
        assert_eq!(cache.remove(object("o-1", "3", "red")).len(), 1);
        let listed: HashSet<Key> = [("ns".into(), "o-0".into()), ("ns".into(), "o-2".into())].into();
        assert_eq!(cache.retain(&listed).len(), 97);
        assert_eq!((cache.len(), cache.values, values(&cache)), (2, 1, 1));
        for version in 10..100 {
            cache.put(object("o-0", &version.to_string(), "blue"));
        }
        assert!(cache.order.len() <= 2 * cache.max_values, "changes of the same object do not pile up");
    }

    #[test]
    fn a_packed_object_is_read_as_it_was() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7", "finalizers": [],
                "creationTimestamp": "2026-01-02T03:04:05Z", "labels": {"app": "web"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "v", "controller": true}]},
            "spec": {"nodeName": "n", "tolerations": [{"operator": "Exists"}], "containers": [{"name": "c",
                "ports": [{"containerPort": 80}], "resources": {"requests": {"cpu": "1500m", "memory": "1.5Gi"}},
                "livenessProbe": {"httpGet": {"port": "web"}}}]},
            "status": {"phase": "Running", "startTime": "2026-01-02T03:04:06Z", "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:07Z"}]},
        }))
        .unwrap();
        let mut cached = Cached::Value { object: Arc::new(pod.clone()), change: 2 };
        let mut packer = Packer::default();
        assert!(!cached.pack(1, &mut packer), "it was changed since");
        assert!(cached.pack(2, &mut packer) && matches!(&cached, Cached::Packed(_)) && !cached.pack(2, &mut packer));
        assert_eq!(*cached.read().unwrap(), pod);
    }
}
