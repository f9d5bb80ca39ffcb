//! Allocations as tables: slices, claims and a node in, devices out.

mod adversarial;
mod features;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim};
use serde_json::{Value, json};

use super::{Allocator, InUse, Inventory, Selectors};

pub const DRIVER: &str = "gpu.example.com";

/// What allocations are decided by, with a class "gpu" of all devices of a driver.
pub struct World {
    pub inventory: Inventory,
    pub in_use: InUse,
    pub classes: HashMap<String, Arc<DeviceClass>>,
    pub selectors: Selectors,
    /// The search is stopped after this many checks.
    pub checks: Option<usize>,
}

impl World {
    pub fn new(slices: &[Value]) -> Self {
        let mut world = World {
            inventory: Inventory::default(),
            in_use: InUse::default(),
            classes: HashMap::new(),
            selectors: Selectors::default(),
            checks: None,
        };
        world.add_class("gpu", json!({"selectors": [cel(&format!("device.driver == '{DRIVER}'"))]}));
        for slice in slices {
            let slice = Arc::new(serde_json::from_value(slice.clone()).expect("a slice"));
            world.inventory.set(None, Some(&slice));
        }
        world
    }

    pub fn add_class(&mut self, name: &str, spec: Value) {
        let class = json!({"metadata": {"name": name}, "spec": spec});
        self.classes.insert(name.to_owned(), Arc::new(serde_json::from_value(class).expect("a class")));
    }

    pub fn allocate(&self, claims: &[Value]) -> Result<Option<Vec<AllocationResult>>, String> {
        let claims: Vec<ResourceClaim> =
            claims.iter().map(|claim| serde_json::from_value(claim.clone()).expect("a claim")).collect();
        let claims: Vec<&ResourceClaim> = claims.iter().collect();
        let allocator = Allocator {
            inventory: &self.inventory,
            in_use: &self.in_use,
            classes: &self.classes,
            selectors: &self.selectors,
        };
        let (checked, mut shares) = (Cell::new(0), 0);
        let stop = || {
            checked.set(checked.get() + 1);
            self.checks.is_some_and(|limit| checked.get() > limit)
        };
        let mut share_id = || {
            shares += 1;
            format!("share-{shares}")
        };
        allocator.allocate(&node("one"), &claims, &stop, &mut share_id).map_err(|error| error.to_string())
    }

    /// The outcome in short: request and device of each claim, or why there is none.
    pub fn outcome(&self, claims: &[Value]) -> String {
        match self.allocate(claims) {
            Err(error) => format!("error: {error}"),
            Ok(None) => "none".to_owned(),
            Ok(Some(results)) => results.iter().map(shown).collect::<Vec<_>>().join(" | "),
        }
    }

    /// Counts the devices of an earlier allocation as allocated.
    pub fn take(&mut self, claims: &[Value]) {
        for result in self.allocate(claims).expect("an allocation").expect("devices") {
            self.in_use.add(&result);
        }
    }
}

fn shown(result: &AllocationResult) -> String {
    let devices = result.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    let devices = devices.map(|device| match device.pool.as_str() {
        "one" => format!("{}={}", device.request, device.device),
        pool => format!("{}={pool}/{}", device.request, device.device),
    });
    devices.collect::<Vec<_>>().join(" ")
}

pub fn node(name: &str) -> Node {
    let node = json!({"metadata": {"name": name, "labels": {"zone": "a"}}});
    serde_json::from_value(node).expect("a node")
}

pub fn cel(expression: &str) -> Value {
    json!({"cel": {"expression": expression}})
}

/// A slice of a pool on node one.
pub fn slice(name: &str, devices: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"driver": DRIVER, "nodeName": "one",
        "pool": {"name": "one", "generation": 1, "resourceSliceCount": 1}, "devices": devices}})
}

pub fn with(mut object: Value, path: &str, value: Value) -> Value {
    *object
        .pointer_mut(path.rsplit_once('/').expect("a path").0)
        .expect("a parent")
        .as_object_mut()
        .expect("an object")
        .entry(path.rsplit_once('/').expect("a path").1)
        .or_insert(Value::Null) = value;
    object
}

/// A device with attributes: model, slot and numa.
pub fn device(name: &str, model: &str, slot: i64, numa: i64) -> Value {
    json!({"name": name, "attributes": {"model": {"string": model}, "slot": {"int": slot},
        "example.com/numa": {"int": numa}}, "capacity": {"memory": {"value": "40Gi"}}})
}

pub fn claim(requests: Value) -> Value {
    json!({"metadata": {"name": "c", "namespace": "n", "uid": "u"}, "spec": {"devices": {"requests": requests}}})
}

/// A request for devices of the class "gpu".
pub fn request(name: &str, more: Value) -> Value {
    let mut exactly = json!({"deviceClassName": "gpu"});
    exactly.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    json!({"name": name, "exactly": exactly})
}
