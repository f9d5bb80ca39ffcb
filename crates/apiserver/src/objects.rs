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
