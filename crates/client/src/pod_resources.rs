//! How the resources of a pod's containers add up.
//!
//! Containers run in parallel. Init containers run one after another before them, beside the sidecars started so far. What a
//! pod needs is the maximum over these phases. Components count in different units, so the sum is generic over [`Amounts`].

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};

use crate::quantity::Quantity;

/// Amounts of several resources.
pub trait Amounts: Clone + Default {
    /// Adds each amount of the other.
    fn add(&mut self, other: &Self);
    /// Raises each amount to at least that of the other.
    fn raise(&mut self, other: &Self);
}

impl Amounts for BTreeMap<String, Quantity> {
    fn add(&mut self, other: &Self) {
        for (name, value) in other {
            *self.entry(name.clone()).or_insert(Quantity::new(0, value.format())) += *value;
        }
    }

    fn raise(&mut self, other: &Self) {
        for (name, value) in other {
            let present = self.entry(name.clone()).or_insert(*value);
            *present = (*present).max(*value);
        }
    }
}

/// Combines the amounts of all containers, without pod-level resources and overhead.
pub fn combined<A: Amounts>(spec: &PodSpec, of: impl Fn(&Container) -> A) -> A {
    let mut running = A::default();
    for container in &spec.containers {
        running.add(&of(container));
    }
    let mut sidecars = A::default();
    let mut starting = A::default();
    for container in spec.init_containers.iter().flatten() {
        let own = of(container);
        let mut at_once = sidecars.clone();
        at_once.add(&own);
        starting.raise(&at_once);
        if is_sidecar(container) {
            running.add(&own);
            sidecars = at_once;
        }
    }
    running.raise(&starting);
    running
}

/// Whether an init container keeps running beside the pod's containers.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[derive(Clone, Default)]
    struct Count(u32);

    impl Amounts for Count {
        fn add(&mut self, other: &Self) {
            self.0 += other.0;
        }

        fn raise(&mut self, other: &Self) {
            self.0 = self.0.max(other.0);
        }
    }

    #[test]
    fn the_largest_phase_counts() {
        for (init, containers, expected) in [
            (vec![], vec!["2", "3"], 5),
            (vec!["4"], vec!["2", "3"], 5),
            (vec!["9"], vec!["2", "3"], 9),
            (vec!["4+"], vec!["2", "3"], 9),
            (vec!["4+", "7"], vec!["2", "3"], 11),
            (vec!["7", "4+"], vec!["2"], 7),
        ] {
            let container = |text: &&str| match text.strip_suffix('+') {
                Some(number) => json!({"name": number, "restartPolicy": "Always"}),
                None => json!({"name": text}),
            };
            let all = |texts: &[&str]| texts.iter().map(container).collect::<Vec<_>>();
            let spec = serde_json::from_value(json!({"initContainers": all(&init), "containers": all(&containers)}));
            let total = combined(&spec.unwrap(), |container| Count(container.name.parse().unwrap()));
            assert_eq!(total.0, expected, "{init:?} {containers:?}");
        }
    }
}
