//! The cache of an informer: its objects by namespace and name, and by the keys of its indexes.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Change, Object};

pub(super) struct Cache<K> {
    /// Namespace, then name; two levels, so that a lookup borrows its key and a namespace can be listed.
    objects: HashMap<Box<str>, HashMap<Box<str>, Arc<K>>>,
    indexes: HashMap<&'static str, Index<K>>,
    count: usize,
}

struct Index<K> {
    keys_of: fn(&K) -> Vec<String>,
    /// Key, then the object's address, which is its identity while the cache holds it.
    entries: HashMap<Box<str>, HashMap<usize, Arc<K>>>,
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self { objects: HashMap::new(), indexes: HashMap::new(), count: 0 }
    }
}

impl<K: Object> Cache<K> {
    /// The object of a namespace and name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<K>> {
        self.objects.get(namespace)?.get(name)
    }

    /// All objects.
    pub fn all(&self) -> impl Iterator<Item = &Arc<K>> {
        self.objects.values().flat_map(HashMap::values)
    }

    /// The objects of a namespace.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<K>> {
        self.objects.get(namespace).into_iter().flat_map(HashMap::values)
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
        for object in self.all() {
            index.insert(object);
        }
        self.indexes.insert(name, index);
    }

    /// The objects under a key of an index.
    pub fn by_index(&self, name: &'static str, key: &str) -> Vec<Arc<K>> {
        let entries = self.indexes.get(name).and_then(|index| index.entries.get(key));
        entries.map(|objects| objects.values().cloned().collect()).unwrap_or_default()
    }

    /// Adds or replaces an object and returns the changes.
    pub fn put(&mut self, object: K) -> Vec<Change<K>> {
        let new = Arc::new(object);
        let (namespace, name) = key(new.meta());
        let Some(old) = self.get(namespace, name).cloned() else {
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
        let Some(old) = self.get(namespace, name).cloned() else { return Vec::new() };
        self.detach(&old);
        vec![Change::Deleted(Arc::new(last))]
    }

    /// Replaces the whole cache by `objects` and returns the changes.
    pub fn replace(&mut self, objects: Vec<K>) -> Vec<Change<K>> {
        let mut listed: HashMap<&str, std::collections::HashSet<&str>> = HashMap::new();
        for object in &objects {
            let (namespace, name) = key(object.meta());
            listed.entry(namespace).or_default().insert(name);
        }
        let is_listed = |object: &K| {
            let (namespace, name) = key(object.meta());
            listed.get(namespace).is_some_and(|names| names.contains(name))
        };
        let vanished: Vec<Arc<K>> = self.all().filter(|object| !is_listed(object)).cloned().collect();
        let mut changes = Vec::new();
        for object in vanished {
            self.detach(&object);
            changes.push(Change::Deleted(object));
        }
        for object in objects {
            changes.extend(self.put(object));
        }
        changes
    }

    fn insert(&mut self, object: Arc<K>) {
        for index in self.indexes.values_mut() {
            index.insert(&object);
        }
        let (namespace, name) = key(object.meta());
        let name = name.into();
        match self.objects.get_mut(namespace) {
            Some(names) => names.insert(name, object),
            None => self.objects.entry(namespace.into()).or_default().insert(name, object),
        };
        self.count += 1;
    }

    fn detach(&mut self, object: &Arc<K>) {
        for index in self.indexes.values_mut() {
            index.remove(object);
        }
        let (namespace, name) = key(object.meta());
        if let Some(names) = self.objects.get_mut(namespace) {
            self.count -= usize::from(names.remove(name).is_some());
            if names.is_empty() {
                self.objects.remove(namespace);
            }
        }
    }
}

impl<K> Index<K> {
    fn insert(&mut self, object: &Arc<K>) {
        for key in (self.keys_of)(object) {
            self.entries.entry(key.into()).or_default().insert(Arc::as_ptr(object).addr(), object.clone());
        }
    }

    fn remove(&mut self, object: &Arc<K>) {
        for key in (self.keys_of)(object) {
            if let Some(objects) = self.entries.get_mut(key.as_str()) {
                objects.remove(&Arc::as_ptr(object).addr());
                if objects.is_empty() {
                    self.entries.remove(key.as_str());
                }
            }
        }
    }
}

fn key(meta: &ObjectMeta) -> (&str, &str) {
    (meta.namespace.as_deref().unwrap_or(""), meta.name.as_deref().unwrap_or(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

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
        cache.replace(vec![object("c", "5", "blue")]);
        assert_eq!(cache.by_index("color", "blue").len(), 1);
        assert_eq!((cache.len(), cache.in_namespace("ns").count()), (1, 1));
        assert!(cache.by_index("shape", "round").is_empty());
    }
}
