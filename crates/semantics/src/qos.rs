//! The quality of service (QoS) class of a pod, which decides who loses resources first when a node runs short.

use crate::pod_resources::{Amounts as _, ResourceList};

/// A class, the one that loses resources first first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QosClass {
    /// Nothing requests anything.
    BestEffort,
    /// All others.
    Burstable,
    /// Every container has limits of CPU and memory, and requests exactly these.
    Guaranteed,
}

impl QosClass {
    /// The name in a pod's status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BestEffort => "BestEffort",
            Self::Burstable => "Burstable",
            Self::Guaranteed => "Guaranteed",
        }
    }

    /// The name of the class's cgroup. Guaranteed pods are directly in that of all pods.
    pub fn cgroup(self) -> Option<&'static str> {
        match self {
            Self::BestEffort => Some("besteffort"),
            Self::Burstable => Some("burstable"),
            Self::Guaranteed => None,
        }
    }
}

/// The resources that count.
const COUNTED: [&str; 2] = ["cpu", "memory"];

/// The class of a pod by the requests and limits of its containers, or, if it has resources of its own, only by these.
pub fn class(requirements: impl Iterator<Item = (ResourceList, ResourceList)>) -> QosClass {
    let (mut requests, mut limits) = (ResourceList::new(), ResourceList::new());
    let mut all_are_limited = true;
    for (own_requests, own_limits) in requirements {
        requests.add(&counted(own_requests));
        let own_limits = counted(own_limits);
        all_are_limited &= own_limits.len() == COUNTED.len();
        limits.add(&own_limits);
    }
    if requests.is_empty() && limits.is_empty() {
        QosClass::BestEffort
    } else if all_are_limited && requests == limits {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

fn counted(list: ResourceList) -> ResourceList {
    list.into_iter().filter(|(name, amount)| COUNTED.contains(&name.as_str()) && amount.signum() > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> ResourceList {
        let entries = text.split(',').filter_map(|entry| entry.split_once('='));
        entries.map(|(name, amount)| (name.to_owned(), amount.parse().unwrap())).collect()
    }

    #[test]
    fn classes_follow_from_requests_and_limits() {
        let (both, half) = ("cpu=1,memory=1Gi", "cpu=500m,memory=1Gi");
        for (containers, expected) in [
            (vec![], QosClass::BestEffort),
            (vec![("", "")], QosClass::BestEffort),
            (vec![("cpu=0", "memory=0")], QosClass::BestEffort),
            (vec![("ephemeral-storage=1Gi", "example.com/gpu=1")], QosClass::BestEffort),
            (vec![(both, both)], QosClass::Guaranteed),
            (vec![("cpu=1000m,memory=1024Mi", both)], QosClass::Guaranteed),
            (vec![(both, both), (half, half)], QosClass::Guaranteed),
            (vec![("cpu=1", "")], QosClass::Burstable),
            (vec![("", both)], QosClass::Burstable),
            (vec![(half, both)], QosClass::Burstable),
            (vec![("cpu=1", "cpu=1")], QosClass::Burstable),
            (vec![(both, both), ("", "")], QosClass::Burstable),
        ] {
            let requirements = containers.iter().map(|(requests, limits)| (list(requests), list(limits)));
            assert_eq!(class(requirements), expected, "{containers:?}");
        }
    }
}
