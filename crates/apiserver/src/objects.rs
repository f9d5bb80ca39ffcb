//! How admission and authorization read other objects: parsed, shared, from what this server already knows.

use std::sync::Arc;

use serde_json::Value;

/// Reads of stored objects. The parsed form is kept with the stored entry, so reading one again costs a lookup.
pub trait Objects: Send + Sync {
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>>;
    /// All of a namespace, or of the cluster when `namespace` is empty, in name order.
    fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<Arc<Value>>;
    /// Grows with every change to the resource; equal numbers mean an equal list.
    fn version(&self, group: &str, resource: &str) -> u64;
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use knarr_api::value::Read;

    /// Objects that are just there, for tests of what reads them.
    pub struct Fixed(Vec<(&'static str, &'static str, Arc<Value>)>);

    impl Fixed {
        pub fn new(objects: Vec<(&'static str, &'static str, Value)>) -> Self {
            Fixed(objects.into_iter().map(|(group, resource, object)| (group, resource, Arc::new(object))).collect())
        }
    }

    impl Objects for Fixed {
        fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
            let all = self.list(group, resource, namespace);
            all.into_iter().find(|object| object.text(&["metadata", "name"]) == name)
        }

        fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<Arc<Value>> {
            let wanted = |object: &Value| namespace.is_empty() || object.text(&["metadata", "namespace"]) == namespace;
            let of = self.0.iter().filter(|(g, r, object)| *g == group && *r == resource && wanted(object));
            of.map(|(_, _, object)| Arc::clone(object)).collect()
        }

        fn version(&self, _group: &str, _resource: &str) -> u64 {
            1
        }
    }
}
