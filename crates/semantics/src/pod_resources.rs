//! How the resources of a pod's containers add up.
//!
//! Containers run in parallel. Init containers run one after another before them, beside the sidecars started so far. What
//! the containers need is the maximum over these phases. Resources of the whole pod replace those of its containers, and
//! the runtime's overhead is added. Components count in different units, so the sum is generic over [`Amounts`].

use std::collections::BTreeMap;

use crate::quantity::Quantity;

/// Quantities by the name of the resource.
pub type ResourceList = BTreeMap<String, Quantity>;

/// Amounts of several resources.
pub trait Amounts: Clone + Default {
    /// Adds each amount of the other.
    fn add(&mut self, other: &Self);
    /// Raises each amount to at least that of the other.
    fn raise(&mut self, other: &Self);
}

impl Amounts for ResourceList {
    fn add(&mut self, other: &Self) {
        for (name, amount) in other {
            match self.get_mut(name) {
                Some(sum) => sum.add(amount),
                None => {
                    self.insert(name.clone(), amount.clone());
                }
            }
        }
    }

    fn raise(&mut self, other: &Self) {
        for (name, amount) in other {
            if self.get(name).is_none_or(|own| amount > own) {
                self.insert(name.clone(), amount.clone());
            }
        }
    }
}

/// The resources of all containers of a pod together. The flag of each init container says whether it is a sidecar.
pub fn combined<A: Amounts>(containers: impl Iterator<Item = A>, init: impl Iterator<Item = (bool, A)>) -> A {
    let mut running = A::default();
    for own in containers {
        running.add(&own);
    }
    let mut sidecars = A::default();
    let mut starting = A::default();
    for (is_sidecar, own) in init {
        let mut at_once = sidecars.clone();
        at_once.add(&own);
        starting.raise(&at_once);
        if is_sidecar {
            running.add(&own);
            sidecars = at_once;
        }
    }
    running.raise(&starting);
    running
}

/// The requests or the limits of resource requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The amounts that are reserved.
    Requests,
    /// The maximum amounts that may be used.
    Limits,
}

impl Side {
    /// The field in resource requirements.
    pub fn field(self) -> &'static str {
        match self {
            Side::Requests => "requests",
            Side::Limits => "limits",
        }
    }
}

/// What a whole pod needs: that of its containers, replaced by the resources of the pod that may be set for it, and the
/// overhead. Overhead raises a limit and creates none.
pub fn of_pod(side: Side, containers: ResourceList, pod_level: ResourceList, overhead: &ResourceList) -> ResourceList {
    let mut total = containers;
    total.extend(pod_level.into_iter().filter(|(name, _)| is_pod_level(name)));
    match side {
        Side::Requests => total.add(overhead),
        Side::Limits => {
            for (name, amount) in overhead {
                if let Some(limit) = total.get_mut(name).filter(|limit| !limit.is_zero()) {
                    limit.add(amount);
                }
            }
        }
    }
    total
}

/// Whether an init container with this restart policy keeps running beside the containers.
pub fn is_sidecar(restart_policy: &str) -> bool {
    restart_policy == "Always"
}

/// Whether a resource may be requested for the pod as a whole.
pub fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_huge_page(name)
}

/// Whether a resource is a size of huge pages.
pub fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (vec![], vec![2, 3], 5),
            (vec![("", 4)], vec![2, 3], 5),
            (vec![("", 9)], vec![2, 3], 9),
            (vec![("Always", 4)], vec![2, 3], 9),
            (vec![("Always", 4), ("", 7)], vec![2, 3], 11),
            (vec![("", 7), ("Always", 4)], vec![2], 7),
            (vec![("Never", 7), ("OnFailure", 4)], vec![2], 7),
        ] {
            let steps = init.iter().map(|(policy, count)| (is_sidecar(policy), Count(*count)));
            let total = combined(containers.iter().copied().map(Count), steps);
            assert_eq!(total.0, expected, "{init:?} {containers:?}");
        }
    }

    fn list(text: &str) -> ResourceList {
        let entries = text.split(',').filter_map(|entry| entry.split_once('='));
        entries.map(|(name, amount)| (name.to_owned(), amount.parse().unwrap())).collect()
    }

    #[test]
    fn pods_replace_what_their_containers_need_and_add_overhead() {
        for (containers, pod_level, overhead, requests, limits) in [
            ("cpu=1", "", "", "cpu=1", "cpu=1"),
            ("cpu=1,memory=1Gi", "cpu=2", "", "cpu=2,memory=1Gi", "cpu=2,memory=1Gi"),
            // Other resources than CPU, memory and huge pages cannot be set for a pod.
            ("a/b=1", "a/b=5,hugepages-2Mi=4Mi", "", "a/b=1,hugepages-2Mi=4Mi", "a/b=1,hugepages-2Mi=4Mi"),
            ("", "", "cpu=10m,memory=1Mi", "cpu=10m,memory=1Mi", ""),
            ("cpu=1", "", "cpu=10m,memory=1Mi", "cpu=1010m,memory=1Mi", "cpu=1010m"),
            ("cpu=0", "", "cpu=10m", "cpu=10m", "cpu=0"),
            ("memory=1Gi", "", "memory=1Mi", "memory=1025Mi", "memory=1025Mi"),
            ("cpu=1", "cpu=2", "cpu=10m", "cpu=2010m", "cpu=2010m"),
        ] {
            for (side, expected) in [(Side::Requests, requests), (Side::Limits, limits)] {
                let total = of_pod(side, list(containers), list(pod_level), &list(overhead));
                let shown: Vec<String> = total.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
                assert_eq!(shown.join(","), expected, "{side:?} of {containers} | {pod_level} | {overhead}");
            }
        }
    }

    #[test]
    fn lists_are_raised_by_name() {
        let mut own = list("a=1,b=5");
        own.raise(&list("a=2,b=3,c=0"));
        assert_eq!(own, list("a=2,b=5,c=0"));
    }
}
