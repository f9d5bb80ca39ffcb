//! Amounts of resources as plain integers, so that adding and comparing them is cheap.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_client::pod_resources::{Amounts, combined, is_sidecar};
use knarr_client::quantity::{milli_value, value};

/// Scores count a container without a request as this much.
pub const DEFAULT_MILLI_CPU: i64 = 100;
pub const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    pub pods: i64,
    /// Extended resources, huge pages and attachable volumes.
    pub others: BTreeMap<String, i64>,
}

pub type Quantities = BTreeMap<String, Quantity>;

impl Resources {
    pub fn of(amounts: Option<&Quantities>) -> Self {
        let mut resources = Resources::default();
        for (name, quantity) in amounts.into_iter().flatten() {
            match name.as_str() {
                "cpu" => resources.milli_cpu += milli_value(quantity),
                "memory" => resources.memory += value(quantity),
                "ephemeral-storage" => resources.ephemeral_storage += value(quantity),
                "pods" => resources.pods += value(quantity),
                other => *resources.others.entry(other.to_owned()).or_default() += value(quantity),
            }
        }
        resources
    }

    pub fn get(&self, name: &str) -> i64 {
        match name {
            "cpu" => self.milli_cpu,
            "memory" => self.memory,
            "ephemeral-storage" => self.ephemeral_storage,
            "pods" => self.pods,
            other => self.others.get(other).copied().unwrap_or(0),
        }
    }

    /// Whether the test holds for the name of any requested resource.
    pub fn any(&self, test: impl Fn(&str) -> bool) -> bool {
        let plain = [("cpu", self.milli_cpu), ("memory", self.memory), ("ephemeral-storage", self.ephemeral_storage)];
        let others = self.others.iter().map(|(name, amount)| (name.as_str(), *amount));
        plain.into_iter().chain(others).any(|(name, amount)| amount > 0 && test(name))
    }

    /// Whether any amount is less than in the other.
    pub fn is_less_somewhere(&self, other: &Resources) -> bool {
        self.milli_cpu < other.milli_cpu
            || self.memory < other.memory
            || self.ephemeral_storage < other.ephemeral_storage
            || other.others.keys().any(|name| self.get(name) < other.get(name))
    }

    pub fn add(&mut self, other: &Resources) {
        self.change(other, 1);
    }

    pub fn subtract(&mut self, other: &Resources) {
        self.change(other, -1);
    }

    fn change(&mut self, other: &Resources, sign: i64) {
        self.milli_cpu += sign * other.milli_cpu;
        self.memory += sign * other.memory;
        self.ephemeral_storage += sign * other.ephemeral_storage;
        self.pods += sign * other.pods;
        for (name, amount) in &other.others {
            *self.others.entry(name.clone()).or_default() += sign * amount;
        }
    }

    fn override_with(&mut self, amounts: Option<&Quantities>) {
        for (name, quantity) in amounts.into_iter().flatten() {
            match name.as_str() {
                "cpu" => self.milli_cpu = milli_value(quantity),
                "memory" => self.memory = value(quantity),
                other if other.starts_with("hugepages-") => {
                    self.others.insert(other.to_owned(), value(quantity));
                }
                _ => {}
            }
        }
    }
}

impl Amounts for Resources {
    fn add(&mut self, other: &Self) {
        self.change(other, 1);
    }

    fn raise(&mut self, other: &Self) {
        self.milli_cpu = self.milli_cpu.max(other.milli_cpu);
        self.memory = self.memory.max(other.memory);
        self.ephemeral_storage = self.ephemeral_storage.max(other.ephemeral_storage);
        for (name, amount) in &other.others {
            let own = self.others.entry(name.clone()).or_default();
            *own = (*own).max(*amount);
        }
    }
}

/// What a pod requests from a node: the sum of its containers and sidecars, or its largest init step if that is more, and
/// its runtime's overhead. With `defaults`, containers without requests count as something. A container that is being
/// resized counts with the maximum of its requested, allocated and actual resources.
pub fn pod_requests(pod: &Pod, defaults: bool) -> Resources {
    let mut requests = container_requests(pod, defaults);
    let Some(spec) = &pod.spec else { return requests };
    requests.override_with(spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()));
    requests.add(&Resources::of(spec.overhead.as_ref()));
    requests
}

/// The same from the containers only, without pod-level requests.
pub fn requests_of_containers(pod: &Pod) -> Resources {
    let mut requests = container_requests(pod, true);
    requests.add(&Resources::of(pod.spec.as_ref().and_then(|spec| spec.overhead.as_ref())));
    requests
}

fn container_requests(pod: &Pod, defaults: bool) -> Resources {
    let Some(spec) = &pod.spec else { return Resources::default() };
    let infeasible = is_resize_infeasible(pod);
    let of = |container: &Container| {
        let given = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let mut requests = Resources::of(given);
        if let Some(status) = status_of(pod, container)
            && let Some(has) = &status.resources
        {
            if infeasible {
                requests = Resources::default();
            }
            requests.raise(&Resources::of(has.requests.as_ref()));
            requests.raise(&Resources::of(status.allocated_resources.as_ref()));
        }
        if defaults {
            let names = |name: &str| given.is_some_and(|given| given.contains_key(name));
            if !names("cpu") {
                requests.milli_cpu = DEFAULT_MILLI_CPU;
            }
            if !names("memory") {
                requests.memory = DEFAULT_MEMORY;
            }
        }
        requests
    };
    combined(spec, of)
}

/// The status of a container whose resources can change while it runs.
fn status_of<'a>(pod: &'a Pod, container: &Container) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let statuses = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let is_steady = |container: &Container| {
        let starts = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
        is_sidecar(container) || !starts.into_iter().any(|start| start.name == container.name)
    };
    statuses.into_iter().find(|status| status.name == container.name).filter(|_| is_steady(container))
}

/// Whether the node reported that it can never satisfy the pod's resize.
fn is_resize_infeasible(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let pending = conditions.into_iter().find(|condition| condition.type_ == "PodResizePending");
    pending.is_some_and(|condition| condition.reason.as_deref() == Some("Infeasible"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_resize_counts_with_the_most_until_the_node_refuses() {
        for (requested, allocated, has, reason, cpu) in
            [("1", "2", "3", "Deferred", 3000), ("4", "2", "1", "Deferred", 4000), ("4", "2", "1", "Infeasible", 2000)]
        {
            let pod: Pod = serde_json::from_value(json!({
                "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": requested}}}]},
                "status": {"conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
                    "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                        "allocatedResources": {"cpu": allocated}, "resources": {"requests": {"cpu": has}}}]},
            }))
            .unwrap();
            assert_eq!(pod_requests(&pod, false).milli_cpu, cpu, "{requested} {allocated} {has} {reason}");
        }
    }

    fn requests(spec: serde_json::Value, defaults: bool) -> (i64, i64) {
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        let requests = pod_requests(&pod, defaults);
        (requests.milli_cpu, requests.memory)
    }

    #[test]
    fn pods_ask_for_their_containers_or_their_start() {
        let container = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Mi"}}});
        let sidecar =
            |cpu: &str| json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}});
        let mi = 1024 * 1024;
        assert_eq!(requests(json!({"containers": [container("1"), container("500m")]}), false), (1500, 2 * mi));
        let start = json!({"containers": [container("1")], "initContainers": [sidecar("1"), container("3")]});
        assert_eq!(requests(start, false), (4000, mi));
        assert_eq!(requests(json!({"containers": [{"name": "c"}]}), false), (0, 0));
        assert_eq!(requests(json!({"containers": [{"name": "c"}]}), true), (DEFAULT_MILLI_CPU, DEFAULT_MEMORY));
        let whole = json!({"containers": [{"name": "c"}], "resources": {"requests": {"cpu": "2"}}});
        assert_eq!(requests(whole.clone(), true), (2000, DEFAULT_MEMORY));
        let pod: Pod = serde_json::from_value(json!({"spec": whole})).unwrap();
        assert_eq!(requests_of_containers(&pod).milli_cpu, DEFAULT_MILLI_CPU);
    }
}
