//! The room for pods on the node: what it can allocate, beside what its pods request.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_client::quantity::{milli_value, value};

use super::admit::Refusal;
use crate::cgroup::amounts::requested;

/// The allocatable resources of a node.
pub struct Room {
    max_pods: i64,
    resources: Vec<Resource>,
}

struct Resource {
    name: String,
    read: fn(&Quantity) -> i64,
    capacity: i64,
}

/// What a pod requests of each resource, in the order of the node's resources.
pub struct Requests(Vec<i64>);

/// The sum of several pods' requests. The numbers are large enough for every sum, so that subtracting a pod is exact.
#[derive(Clone, Default)]
pub struct Used {
    pods: i64,
    amounts: Vec<i128>,
}

impl Room {
    pub fn new(allocatable: &BTreeMap<String, Quantity>) -> Self {
        let resources = allocatable.iter().filter(|(name, _)| *name != "pods").map(|(name, amount)| {
            let read: fn(&Quantity) -> i64 = if name == "cpu" { milli_value } else { value };
            Resource { name: name.clone(), read, capacity: read(amount) }
        });
        Self { max_pods: allocatable.get("pods").map_or(0, value), resources: resources.collect() }
    }

    pub fn requests(&self, pod: &Pod) -> Requests {
        Requests(self.resources.iter().map(|resource| requested(pod, &resource.name, resource.read)).collect())
    }

    /// Why a pod does not fit beside others; `None` if it does.
    pub fn refusal(&self, needed: &Requests, used: &Used) -> Option<Refusal> {
        if used.pods + 1 > self.max_pods {
            let message = insufficient("pods", 1, used.pods.into(), self.max_pods);
            return Some(Refusal { reason: "OutOfpods".into(), message });
        }
        let amounts = used.amounts.iter().copied().chain(std::iter::repeat(0));
        self.resources.iter().zip(&needed.0).zip(amounts).find_map(|((resource, needed), used)| {
            let Resource { name, capacity, .. } = resource;
            let is_short = *needed != 0 && i128::from(*needed) + used > i128::from(*capacity);
            is_short.then(|| Refusal {
                reason: format!("OutOf{name}"),
                message: insufficient(name, *needed, used, *capacity),
            })
        })
    }
}

impl Used {
    pub fn add(&mut self, requests: &Requests) {
        self.change(requests, 1);
    }

    pub fn remove(&mut self, requests: &Requests) {
        self.change(requests, -1);
    }

    fn change(&mut self, requests: &Requests, sign: i64) {
        self.pods += sign;
        self.amounts.resize(requests.0.len(), 0);
        for (sum, amount) in self.amounts.iter_mut().zip(&requests.0) {
            *sum += i128::from(sign) * i128::from(*amount);
        }
    }
}

impl<'a> FromIterator<&'a Requests> for Used {
    fn from_iter<I: IntoIterator<Item = &'a Requests>>(all: I) -> Self {
        let mut used = Self::default();
        all.into_iter().for_each(|requests| used.add(requests));
        used
    }
}

fn insufficient(name: &str, needed: i64, used: i128, capacity: i64) -> String {
    format!("Node didn't have enough resource: {name}, requested: {needed}, used: {used}, capacity: {capacity}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pods_fit_while_nothing_runs_out() {
        let allocatable = json!({ "cpu": "2", "memory": "1Gi", "pods": "3", "example.com/gpu": "1" });
        let room = Room::new(&serde_json::from_value(allocatable).expect("amounts"));
        let pod = |requests: serde_json::Value| -> Requests {
            let containers = json!([{ "name": "a", "resources": { "requests": requests } }]);
            room.requests(&serde_json::from_value(json!({ "spec": { "containers": containers } })).expect("a pod"))
        };
        let short = |name, numbers| Some(format!("Node didn't have enough resource: {name}, {numbers}"));
        for (needed, others, reason, message) in [
            (json!({ "cpu": "1500m" }), vec![json!({ "cpu": "500m" })], None, None),
            (
                json!({ "cpu": "1500m" }),
                vec![json!({ "cpu": "501m" })],
                Some("OutOfcpu"),
                short("cpu", "requested: 1500, used: 501, capacity: 2000"),
            ),
            (
                json!({ "example.com/gpu": 1 }),
                vec![json!({ "example.com/gpu": 1 })],
                Some("OutOfexample.com/gpu"),
                short("example.com/gpu", "requested: 1, used: 1, capacity: 1"),
            ),
            // A resource that the pod does not request cannot be a reason to reject it.
            (json!({ "cpu": "1" }), vec![json!({ "memory": "2Gi" })], None, None),
            (
                json!({}),
                vec![json!({}), json!({}), json!({})],
                Some("OutOfpods"),
                short("pods", "requested: 1, used: 3, capacity: 3"),
            ),
            // Sums that a request cannot hold.
            (
                json!({ "memory": "1" }),
                vec![json!({ "memory": "9E" }), json!({ "memory": "9E" })],
                Some("OutOfmemory"),
                short("memory", "requested: 1, used: 18000000000000000000, capacity: 1073741824"),
            ),
        ] {
            let others: Vec<Requests> = others.into_iter().map(pod).collect();
            let refusal = room.refusal(&pod(needed.clone()), &others.iter().collect());
            assert_eq!(refusal.as_ref().map(|refusal| refusal.reason.as_str()), reason, "{needed}");
            assert_eq!(refusal.map(|refusal| refusal.message), message, "{needed}");
        }
    }

    #[test]
    fn what_is_removed_leaves_room() {
        let room = Room::new(&serde_json::from_value(json!({ "memory": "1", "pods": "9" })).expect("amounts"));
        let huge = Requests(vec![i64::MAX]);
        let mut used: Used = [&huge, &huge].into_iter().collect();
        used.remove(&huge);
        used.remove(&huge);
        assert_eq!(room.refusal(&Requests(vec![1]), &used), None);
    }
}
