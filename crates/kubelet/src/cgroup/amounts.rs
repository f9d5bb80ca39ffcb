//! The resource requests and limits of a pod as a whole.

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_client::pod_resources::{self, Amounts};
use knarr_client::quantity::{milli_value, value};
use std::collections::BTreeMap;

use crate::pod;

/// CPU in thousandths, memory in bytes. A limit is set only if every container has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodAmounts {
    pub cpu_request: i64,
    pub memory_request: i64,
    pub cpu_limit: Option<i64>,
    pub memory_limit: Option<i64>,
}

pub fn pod_amounts(pod: &Pod) -> PodAmounts {
    PodAmounts {
        cpu_request: requested(pod, "cpu", milli_value),
        memory_request: requested(pod, "memory", value),
        cpu_limit: limited(pod, "cpu", milli_value),
        memory_limit: limited(pod, "memory", value),
    }
}

/// The request of the whole pod for any resource, with the overhead of the runtime.
pub fn requested(pod: &Pod, name: &str, read: fn(&Quantity) -> i64) -> i64 {
    let whole = pod::spec(pod).resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get(name));
    let sum = match whole {
        Some(amount) => read(amount),
        None => combined(pod, |container| Some(request_of(container, name, read))).unwrap_or(0),
    };
    sum.saturating_add(overhead(pod, name, read))
}

fn limited(pod: &Pod, name: &str, read: fn(&Quantity) -> i64) -> Option<i64> {
    let whole = pod::spec(pod).resources.as_ref().and_then(|resources| resources.limits.as_ref()?.get(name));
    let sum = match whole {
        Some(amount) => Some(read(amount)),
        None => combined(pod, |container| amount(pod::limits(container), name, read).filter(|limit| *limit > 0)),
    };
    sum.map(|sum| sum.saturating_add(overhead(pod, name, read)))
}

/// A container that limits a resource without requesting it requests the limit.
fn request_of(container: &Container, name: &str, read: fn(&Quantity) -> i64) -> i64 {
    amount(pod::requests(container), name, read).or_else(|| amount(pod::limits(container), name, read)).unwrap_or(0)
}

fn amount(amounts: &Option<BTreeMap<String, Quantity>>, name: &str, read: fn(&Quantity) -> i64) -> Option<i64> {
    amounts.as_ref()?.get(name).map(read)
}

fn overhead(pod: &Pod, name: &str, read: fn(&Quantity) -> i64) -> i64 {
    amount(&pod::spec(pod).overhead, name, read).unwrap_or(0)
}

/// The amounts of all containers as [`pod_resources::combined`] adds them up. None if one container has none. A sum that is
/// too large is the largest number: authors choose the amounts.
pub fn combined(pod: &Pod, of: impl Fn(&Container) -> Option<i64>) -> Option<i64> {
    pod_resources::combined(pod::spec(pod), |container| Amount(of(container))).0
}

#[derive(Clone)]
struct Amount(Option<i64>);

impl Default for Amount {
    fn default() -> Self {
        Amount(Some(0))
    }
}

impl Amounts for Amount {
    fn add(&mut self, other: &Self) {
        self.0 = self.0.zip(other.0).map(|(own, other)| own.saturating_add(other));
    }

    fn raise(&mut self, other: &Self) {
        self.0 = self.0.zip(other.0).map(|(own, other)| own.max(other));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A pod whose author chose its node is checked by nobody else: its requests must not wrap around to nothing.
    #[test]
    fn huge_amounts_stay_huge() {
        let huge =
            json!({ "requests": { "memory": "9223372036854775807" }, "limits": { "memory": "9223372036854775807" } });
        let container = |name: &str| json!({ "name": name, "resources": huge });
        let sidecar = json!({ "name": "s", "restartPolicy": "Always", "resources": huge });
        let pod: Pod = serde_json::from_value(json!({ "spec": {
            "initContainers": [sidecar, container("i")], "containers": [container("a"), container("b")],
            "overhead": { "memory": "1" } } }))
        .expect("a pod");
        let amounts = pod_amounts(&pod);
        assert_eq!((amounts.memory_request, amounts.memory_limit), (i64::MAX, Some(i64::MAX)));
    }

    #[test]
    fn init_containers_count_by_the_largest() {
        let pod = serde_json::from_value(json!({ "spec": {
            "initContainers": [
                { "name": "side", "restartPolicy": "Always", "resources": { "requests": { "cpu": "100m" } } },
                { "name": "big", "resources": { "requests": { "cpu": "1" } } } ],
            "containers": [
                { "name": "a", "resources": { "requests": { "cpu": "200m" }, "limits": { "memory": "1Mi" } } },
                { "name": "b", "resources": { "limits": { "cpu": "300m" } } } ],
            "overhead": { "cpu": "10m" } } }))
        .expect("a pod");
        let amounts = pod_amounts(&pod);
        assert_eq!(amounts.cpu_request, 1110);
        assert_eq!((amounts.cpu_limit, amounts.memory_limit, amounts.memory_request), (None, None, 1 << 20));
    }
}
