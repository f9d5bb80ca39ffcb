//! The pools that have devices for a node.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use knarr_client::node;

use super::PoolId;
use super::inventory::Inventory;
use super::slice::{Amounts, Slice};

pub struct Pool {
    pub id: PoolId,
    pub state: PoolState,
    /// Slices with devices for the node, by name.
    pub slices: Vec<Arc<Slice>>,
    /// The others: their devices may consume the same counters.
    pub elsewhere: Vec<Arc<Slice>>,
    pub counters: HashMap<String, Amounts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolState {
    Usable,
    /// Slices of its newest generation are missing: its driver is about to publish them.
    Incomplete,
    /// Its slices contradict each other.
    Invalid,
}

impl Pool {
    fn without_devices(id: PoolId, state: PoolState) -> Self {
        Pool { id, state, slices: Vec::new(), elsewhere: Vec::new(), counters: HashMap::new() }
    }

    fn has_binding_conditions(&self) -> bool {
        let devices = self.slices.iter().flat_map(|slice| slice.object.spec.devices.iter().flatten());
        devices.into_iter().any(|device| device.binding_conditions.is_some())
    }
}

/// The pools for a node, in the order in which their devices are tried: by name, those with binding conditions last.
pub fn pools_for(inventory: &Inventory, node: &Node) -> Vec<Pool> {
    let mut relevant: BTreeMap<&PoolId, Vec<&Arc<Slice>>> = BTreeMap::new();
    for slice in inventory.slices_for(node::name(node)).filter(|slice| slice.is_for(node)) {
        let known = relevant.entry(&slice.pool).or_default();
        match known.first().map(|first| first.generation()) {
            Some(newest) if slice.generation() < newest => continue,
            Some(newest) if slice.generation() > newest => known.clear(),
            _ => {}
        }
        known.push(slice);
    }
    let pools = relevant.into_iter().filter_map(|(id, slices)| build(inventory, id, slices));
    let (last, first): (Vec<Pool>, Vec<Pool>) = pools.partition(Pool::has_binding_conditions);
    first.into_iter().chain(last).collect()
}

fn build(inventory: &Inventory, id: &PoolId, mut slices: Vec<&Arc<Slice>>) -> Option<Pool> {
    let generation = slices[0].generation();
    let expected = slices[0].object.spec.pool.resource_slice_count;
    let mut all = Vec::new();
    if i64::try_from(slices.len()) != Ok(expected) {
        // The rest may be for other nodes.
        for slice in inventory.slices_of(id) {
            if slice.generation() > generation {
                // The newer generation has nothing for this node.
                return None;
            }
            if slice.generation() == generation {
                all.push(slice);
            }
        }
        if i64::try_from(all.len()) != Ok(expected) {
            return Some(Pool::without_devices(id.clone(), PoolState::Incomplete));
        }
    }
    slices.sort_by(|a, b| a.name().cmp(b.name()));
    let names: HashSet<&str> = slices.iter().map(|slice| slice.name()).collect();
    all.retain(|slice| !names.contains(slice.name()));
    let (with_counters, with_devices): (Vec<_>, Vec<_>) =
        slices.into_iter().partition(|slice| !slice.counters.is_empty());
    let mut counters = HashMap::new();
    for (name, amounts) in with_counters.iter().flat_map(|slice| &slice.counters) {
        if counters.insert(name.clone(), amounts.clone()).is_some() {
            return Some(Pool::without_devices(id.clone(), PoolState::Invalid));
        }
    }
    let mut known = HashSet::new();
    let is_valid = with_devices.iter().flat_map(|slice| &slice.devices).all(|device| known.insert(&device.id.device))
        && with_devices.iter().chain(&all).all(|slice| consumes_known(slice, &counters));
    if !is_valid {
        return Some(Pool::without_devices(id.clone(), PoolState::Invalid));
    }
    let owned = |slices: Vec<&Arc<Slice>>| slices.into_iter().map(Arc::clone).collect();
    let (slices, elsewhere) = (owned(with_devices), owned(all));
    Some(Pool { id: id.clone(), state: PoolState::Usable, slices, elsewhere, counters })
}

fn consumes_known(slice: &Slice, counters: &HashMap<String, Amounts>) -> bool {
    let mut consumed = slice.devices.iter().flat_map(|device| &device.consumes);
    consumed.all(|(set, amounts)| {
        counters.get(set).is_some_and(|known| amounts.keys().all(|name| known.contains_key(name)))
    })
}
