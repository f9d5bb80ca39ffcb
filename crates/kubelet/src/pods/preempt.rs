//! Chooses which pods to preempt for a critical one.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_client::quantity::{milli_value, value};

use crate::cgroup::amounts::requested;
use crate::cgroup::qos::{QosClass, qos_class};
use crate::pod;

/// How much of each resource is missing, by name; CPU in thousandths.
pub type Missing = BTreeMap<String, i64>;

/// The resources that the node lacks to run a pod next to the others.
pub fn missing(pod: &Pod, others: &[Arc<Pod>], allocatable: &BTreeMap<String, Quantity>) -> Missing {
    let lack = |(name, amount): (&String, &Quantity)| {
        let whole = read(name)(amount);
        let used: i64 = others.iter().map(|other| of(other, name)).sum();
        let needed = of(pod, name);
        (needed > 0 && needed + used > whole).then(|| (name.clone(), needed + used - whole))
    };
    allocatable.iter().filter_map(lack).collect()
}

/// The pods to preempt, as few and as unimportant as possible; none if even all of them were not enough.
pub fn victims(pod: &Pod, others: &[Arc<Pod>], missing: &Missing) -> Option<Vec<Arc<Pod>>> {
    let mut victims: Vec<Arc<Pod>> = others.iter().filter(|other| may_preempt(pod, other)).cloned().collect();
    let is_enough = |victims: &[Arc<Pod>]| {
        missing.iter().all(|(name, amount)| victims.iter().map(|victim| of(victim, name)).sum::<i64>() >= *amount)
    };
    if !is_enough(&victims) {
        return None;
    }
    // The most valuable first, as those are spared first.
    victims.sort_by_key(|victim| {
        let class = match qos_class(victim) {
            QosClass::Guaranteed => 0,
            QosClass::Burstable => 1,
            QosClass::BestEffort => 2,
        };
        let sizes: i64 = missing.keys().map(|name| of(victim, name)).sum();
        (class, std::cmp::Reverse(pod::spec(victim).priority.unwrap_or(0)), std::cmp::Reverse(sizes))
    });
    let mut place = 0;
    while place < victims.len() {
        let spared = victims.remove(place);
        if !is_enough(&victims) {
            victims.insert(place, spared);
            place += 1;
        }
    }
    Some(victims)
}

fn may_preempt(pod: &Pod, other: &Pod) -> bool {
    if pod::is_critical(pod) && !pod::is_critical(other) {
        return true;
    }
    let priorities = pod::spec(pod).priority.zip(pod::spec(other).priority);
    priorities.is_some_and(|(own, other)| own > other)
}

fn read(name: &str) -> fn(&Quantity) -> i64 {
    if name == "cpu" { milli_value } else { value }
}

/// The request of a pod; each pod counts as one of `pods`.
fn of(pod: &Pod, name: &str) -> i64 {
    if name == "pods" { 1 } else { requested(pod, name, read(name)) }
}

/// The amounts as the event shows them.
pub fn rendered(missing: &Missing) -> String {
    let parts: String = missing.iter().map(|(name, amount)| format!("(res: {name}, q: {amount}), ")).collect();
    format!("[{parts}]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, priority: i32, cpu: &str) -> Arc<Pod> {
        let resources = if cpu.is_empty() { json!({}) } else { json!({ "requests": { "cpu": cpu } }) };
        let pod = json!({ "metadata": { "name": name },
            "spec": { "priority": priority, "containers": [{ "name": "c", "resources": resources }] } });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    #[test]
    fn as_few_as_possible_go_for_a_critical_pod() {
        let critical = pod("critical", 2_000_000_000, "500m");
        let allocatable =
            BTreeMap::from([("cpu".to_string(), Quantity("1".into())), ("pods".to_string(), Quantity("10".into()))]);
        // Who is there, how much is missing, and who goes; none if it does not help.
        type Case = (Vec<Arc<Pod>>, Option<i64>, Option<Vec<&'static str>>);
        let cases: Vec<Case> = vec![
            (vec![pod("a", 0, "500m")], None, Some(vec![])),
            (vec![pod("a", 0, "400m"), pod("b", 0, "300m")], Some(200), Some(vec!["b"])),
            (vec![pod("a", 5, "300m"), pod("b", 0, "600m"), pod("c", 0, "")], Some(400), Some(vec!["b"])),
            (vec![pod("a", 2_000_000_000, "900m"), pod("b", 0, "100m")], Some(500), None),
        ];
        for (others, lack, expected) in cases {
            let missing = missing(&critical, &others, &allocatable);
            assert_eq!(missing.get("cpu").copied(), lack);
            let names = |victims: Vec<Arc<Pod>>| victims.iter().map(|v| pod::name(v).to_string()).collect::<Vec<_>>();
            let expected = expected.map(|list| list.into_iter().map(String::from).collect::<Vec<_>>());
            assert_eq!(victims(&critical, &others, &missing).map(names), expected);
        }
    }

    #[test]
    fn a_place_for_a_pod_counts_as_well() {
        let allocatable = BTreeMap::from([("pods".to_string(), Quantity("1".into()))]);
        let (critical, other) = (pod("critical", 2_000_000_000, ""), pod("a", 0, ""));
        let missing = missing(&critical, std::slice::from_ref(&other), &allocatable);
        assert_eq!(rendered(&missing), "[(res: pods, q: 1), ]");
        assert_eq!(victims(&critical, &[other], &missing).map(|victims| victims.len()), Some(1));
    }
}
