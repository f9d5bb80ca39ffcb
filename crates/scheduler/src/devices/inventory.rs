//! All ResourceSlices, indexed by node and by pool.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::ResourceSlice;

use super::PoolId;
use super::slice::Slice;

#[derive(Default)]
pub struct Inventory {
    slices: HashMap<String, Arc<Slice>>,
    by_node: HashMap<String, BTreeSet<String>>,
    /// Names of the slices that are not for a single node, or that have counters.
    shared: BTreeSet<String>,
    by_pool: HashMap<PoolId, BTreeSet<String>>,
}

impl Inventory {
    pub fn set(&mut self, old: Option<&Arc<ResourceSlice>>, new: Option<&Arc<ResourceSlice>>) {
        if let Some(name) = old.and_then(|slice| slice.metadata.name.as_deref()) {
            self.remove(name);
        }
        if let Some(new) = new {
            self.remove(new.metadata.name.as_deref().unwrap_or_default());
            self.add(Slice::new(Arc::clone(new)));
        }
    }

    fn add(&mut self, slice: Slice) {
        let name = slice.name().to_owned();
        match only_node(&slice) {
            Some(node) => {
                self.by_node.entry(node.to_owned()).or_default().insert(name.clone());
            }
            None => {
                self.shared.insert(name.clone());
            }
        }
        self.by_pool.entry(slice.pool.clone()).or_default().insert(name.clone());
        self.slices.insert(name, Arc::new(slice));
    }

    fn remove(&mut self, name: &str) {
        let Some(slice) = self.slices.remove(name) else { return };
        self.shared.remove(name);
        if let Some(node) = only_node(&slice)
            && let Some(names) = self.by_node.get_mut(node)
        {
            names.remove(name);
            if names.is_empty() {
                self.by_node.remove(node);
            }
        }
        if let Some(names) = self.by_pool.get_mut(&slice.pool) {
            names.remove(name);
            if names.is_empty() {
                self.by_pool.remove(&slice.pool);
            }
        }
    }

    /// The slices that may have devices for a node.
    pub(super) fn slices_for(&self, node: &str) -> impl Iterator<Item = &Arc<Slice>> {
        let own = self.by_node.get(node).into_iter().flatten();
        own.chain(&self.shared).filter_map(|name| self.slices.get(name))
    }

    /// All slices of a pool.
    pub(super) fn slices_of(&self, pool: &PoolId) -> impl Iterator<Item = &Arc<Slice>> {
        self.by_pool.get(pool).into_iter().flatten().filter_map(|name| self.slices.get(name))
    }
}

fn only_node(slice: &Slice) -> Option<&str> {
    let node = slice.object.spec.node_name.as_deref().filter(|node| !node.is_empty());
    node.filter(|_| slice.counters.is_empty())
}
