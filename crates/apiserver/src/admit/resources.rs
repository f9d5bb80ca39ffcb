//! Resource amounts by name, and the total requests and limits of a pod.

use std::collections::BTreeMap;

use knarr_api::quantity::Quantity;
use knarr_api::value::Read;
use serde_json::Value;

pub type Amounts = BTreeMap<String, Quantity>;

/// Parses `{"cpu": "1", …}`. Skips invalid amounts, which validation refuses.
pub fn amounts(value: &Value) -> Amounts {
    let fields = value.as_object().into_iter().flatten();
    fields.filter_map(|(name, amount)| Some((name.clone(), amount.as_str()?.parse().ok()?))).collect()
}

pub fn add(to: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        match to.get_mut(name) {
            Some(sum) => sum.add(amount),
            None => {
                to.insert(name.clone(), amount.clone());
            }
        }
    }
}

fn raise(to: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        if to.get(name).is_none_or(|own| own < amount) {
            to.insert(name.clone(), amount.clone());
        }
    }
}

/// A pod's total `requests` or `limits`: the sum of its containers and sidecars, or what an init step needs if that is more.
/// Pod-level amounts take precedence. The runtime's overhead is added.
pub fn pod_amounts(pod: &Value, which: &str) -> Amounts {
    let of = |container: &Value| amounts(container.at(&["resources", which]));
    let mut total = Amounts::new();
    for container in pod.items(&["spec", "containers"]) {
        add(&mut total, &of(container));
    }
    let mut sidecars = Amounts::new();
    let mut start = Amounts::new();
    for container in pod.items(&["spec", "initContainers"]) {
        let own = of(container);
        let mut at_once = sidecars.clone();
        add(&mut at_once, &own);
        if container.text(&["restartPolicy"]) == "Always" {
            add(&mut total, &own);
            sidecars = at_once.clone();
        }
        raise(&mut start, &at_once);
    }
    raise(&mut total, &start);
    total.extend(amounts(pod.at(&["spec", "resources", which])));
    let overhead = amounts(pod.at(&["spec", "overhead"]));
    if which == "requests" {
        add(&mut total, &overhead);
    } else {
        // Without a limit, overhead adds none.
        for (name, amount) in overhead {
            if let Some(limit) = total.get_mut(&name).filter(|limit| !limit.is_zero()) {
                limit.add(&amount);
            }
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_asks_for_its_containers_or_its_dearest_start() {
        let cpu = |amount: &str| json!({"resources": {"requests": {"cpu": amount}}});
        let sidecar = |amount: &str| json!({"restartPolicy": "Always", "resources": {"requests": {"cpu": amount}}});
        for (spec, total) in [
            (json!({"containers": [cpu("1"), cpu("500m")]}), "1500m"),
            (json!({"containers": [cpu("1")], "initContainers": [cpu("3")]}), "3"),
            (json!({"containers": [cpu("1")], "initContainers": [sidecar("1"), cpu("3")]}), "4"),
            (json!({"containers": [cpu("1")], "initContainers": [cpu("1"), sidecar("1")]}), "2"),
            (json!({"containers": [cpu("1")], "overhead": {"cpu": "250m"}}), "1250m"),
            (json!({"containers": [cpu("1")], "resources": {"requests": {"cpu": "5"}}}), "5"),
        ] {
            let amounts = pod_amounts(&json!({"spec": spec}), "requests");
            assert_eq!(amounts["cpu"], total.parse().unwrap(), "{spec}");
        }
    }
}
