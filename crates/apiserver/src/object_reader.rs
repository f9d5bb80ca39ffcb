//! The interface by which admission and authorization read other objects.

use std::sync::Arc;

use knarr_api::status::Status;
use serde_json::{Map, Value};

/// Reads stored objects. Parsed objects of most kinds are cached with the stored entry, so that another read costs a lookup.
pub trait ObjectReader: Send + Sync {
    /// One object, if it exists. Decisions about security use this: a stored object that cannot be read is an error, not
    /// an absent object.
    fn read(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Result<Option<Arc<Value>>, Status>;
    /// The labels of an object, if it exists; the rest of it is not parsed.
    fn read_labels(
        &self,
        group: &str,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Map<String, Value>>, Status> {
        let object = self.read(group, resource, namespace, name)?;
        Ok(object.map(|object| object["metadata"]["labels"].as_object().cloned().unwrap_or_default()))
    }
    /// All objects of a namespace, or of the cluster if `namespace` is empty, in name order. It fails if one cannot be read.
    fn read_all(&self, group: &str, resource: &str, namespace: &str) -> Result<Vec<Arc<Value>>, Status>;
    /// Like `read`, for uses where an unreadable object may count as absent.
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>>;
    /// Like `read_all`, for uses where unreadable objects may be left out.
    fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<Arc<Value>>;
    /// Grows with every change to the resource; equal numbers mean an equal list.
    fn version(&self, group: &str, resource: &str) -> u64;
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use knarr_api::value::Read;

    /// A fixed list of objects, for tests.
    pub struct Fixed(Vec<(&'static str, &'static str, Arc<Value>)>);

    impl Fixed {
        pub fn new(objects: Vec<(&'static str, &'static str, Value)>) -> Self {
            Fixed(objects.into_iter().map(|(group, resource, object)| (group, resource, Arc::new(object))).collect())
        }
    }

    impl ObjectReader for Fixed {
        fn read(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Result<Option<Arc<Value>>, Status> {
            Ok(self.get(group, resource, namespace, name))
        }

        fn read_all(&self, group: &str, resource: &str, namespace: &str) -> Result<Vec<Arc<Value>>, Status> {
            Ok(self.list(group, resource, namespace))
        }

        fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
            let all = self.list(group, resource, namespace);
            all.into_iter().find(|object| object.text(&["metadata", "name"]) == name)
        }

        fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<Arc<Value>> {
            let is_in_namespace =
                |object: &Value| namespace.is_empty() || object.text(&["metadata", "namespace"]) == namespace;
            let of = self.0.iter().filter(|(g, r, object)| *g == group && *r == resource && is_in_namespace(object));
            of.map(|(_, _, object)| Arc::clone(object)).collect()
        }

        fn version(&self, _group: &str, _resource: &str) -> u64 {
            1
        }
    }

    /// A store whose objects cannot be read, as when the key that encrypts them is gone.
    pub struct Unreadable;

    impl ObjectReader for Unreadable {
        fn read(&self, _: &str, _: &str, _: &str, name: &str) -> Result<Option<Arc<Value>>, Status> {
            Err(Status::internal(format!("stored object {name:?} cannot be read")))
        }

        fn read_all(&self, _: &str, resource: &str, _: &str) -> Result<Vec<Arc<Value>>, Status> {
            Err(Status::internal(format!("stored objects of {resource} cannot be read")))
        }

        fn get(&self, _: &str, _: &str, _: &str, _: &str) -> Option<Arc<Value>> {
            None
        }

        fn list(&self, _: &str, _: &str, _: &str) -> Vec<Arc<Value>> {
            Vec::new()
        }

        fn version(&self, _: &str, _: &str) -> u64 {
            1
        }
    }
}
