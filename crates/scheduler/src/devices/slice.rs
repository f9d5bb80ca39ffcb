//! A ResourceSlice with its amounts parsed, once when it is observed.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, NodeSelector};
use k8s_openapi::api::resource::v1 as api;
use knarr_client::quantity::{self, Quantity};
use knarr_client::{node, node_fit};

use super::capacity::Capacity;
use super::{DeviceId, PoolId};

/// Amounts by name.
pub type Amounts = BTreeMap<String, Quantity>;

pub struct Slice {
    pub object: Arc<api::ResourceSlice>,
    pub pool: PoolId,
    pub devices: Vec<Device>,
    /// Counters by the name of their set.
    pub counters: Vec<(String, Amounts)>,
}

pub struct Device {
    pub id: DeviceId,
    pub capacity: BTreeMap<String, Capacity>,
    /// Counters it consumes, by the name of their set.
    pub consumes: Vec<(String, Amounts)>,
    /// Devices that differ in nothing but their names have the same.
    pub likeness: u64,
}

impl Slice {
    pub fn new(object: Arc<api::ResourceSlice>) -> Self {
        let spec = &object.spec;
        let pool = PoolId { driver: spec.driver.as_str().into(), pool: spec.pool.name.as_str().into() };
        let amounts = |counters: &Option<BTreeMap<String, api::Counter>>| -> Amounts {
            counters.iter().flatten().map(|(name, counter)| (name.clone(), quantity::of(&counter.value))).collect()
        };
        let device = |device: &api::Device| Device {
            id: DeviceId { pool: pool.clone(), device: device.name.as_str().into() },
            capacity: device
                .capacity
                .iter()
                .flatten()
                .map(|(name, capacity)| (name.clone(), Capacity::of(capacity)))
                .collect(),
            consumes: (device.consumes_counters.iter().flatten())
                .map(|consumed| (consumed.counter_set.clone(), amounts(&Some(consumed.counters.clone()))))
                .collect(),
            likeness: likeness(device),
        };
        let devices = spec.devices.iter().flatten().map(device).collect();
        let counters = spec.shared_counters.iter().flatten();
        let counters = counters.map(|set| (set.name.clone(), amounts(&Some(set.counters.clone())))).collect();
        Slice { pool, devices, counters, object }
    }

    pub fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn generation(&self) -> i64 {
        self.object.spec.pool.generation
    }

    pub fn device(&self, index: usize) -> &api::Device {
        // Both lists are made from the same.
        &self.object.spec.devices.as_deref().unwrap_or_default()[index]
    }

    pub fn selects_per_device(&self) -> bool {
        self.object.spec.per_device_node_selection == Some(true)
    }

    /// Whether it has something for the node. Counters count for every node: their pool cannot be used without them.
    pub fn is_for(&self, node: &Node) -> bool {
        let spec = &self.object.spec;
        if !self.counters.is_empty() {
            return true;
        }
        if self.selects_per_device() {
            return spec.devices.iter().flatten().any(|device| device_is_for(device, node));
        }
        is_for(spec.node_name.as_deref(), spec.all_nodes, spec.node_selector.as_ref(), node)
    }
}

/// Whether a device that selects its nodes itself is for the node.
pub fn device_is_for(device: &api::Device, node: &Node) -> bool {
    is_for(device.node_name.as_deref(), device.all_nodes, device.node_selector.as_ref(), node)
}

fn is_for(name: Option<&str>, all: Option<bool>, selector: Option<&NodeSelector>, node: &Node) -> bool {
    match (name.filter(|name| !name.is_empty()), all, selector) {
        (Some(name), ..) => node::name(node) == name,
        (None, Some(true), _) => true,
        (None, _, Some(selector)) => node_fit::selector_matches(selector, node),
        _ => false,
    }
}

fn likeness(device: &api::Device) -> u64 {
    let nameless = api::Device { name: String::new(), ..device.clone() };
    let mut hasher = DefaultHasher::new();
    // Maps are sorted, so that the text is the same for the same content.
    serde_json::to_string(&nameless).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}
