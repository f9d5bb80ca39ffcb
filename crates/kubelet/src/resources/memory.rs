//! Memory and huge pages of guaranteed pods, reserved on NUMA nodes.
//!
//! Nodes are used singly or in groups. A node in a group serves no single-node grants, as a group's memory may come
//! from any of its nodes, so the free amount of one node is unknown.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_client::quantity::value;
use serde::{Deserialize, Serialize};

use super::affinity::{Hint, Offers, subsets};
use super::cpu_set::NumberSet;
use super::topology::Layout;
use crate::cgroup::qos::{QosClass, qos_class};
use crate::pod;

/// Bytes by resource name.
pub type Bytes = BTreeMap<String, u64>;

/// The memory granted to a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    pub nodes: NumberSet,
    pub bytes: Bytes,
}

/// The memory to reserve for a container: none unless its pod is guaranteed.
pub fn requested(pod: &Pod, container: &Container) -> Bytes {
    if qos_class(pod) != QosClass::Guaranteed {
        return Bytes::new();
    }
    let amounts = pod::limits(container).iter().flatten();
    amounts
        .filter(|(name, _)| *name == "memory" || name.starts_with("hugepages-"))
        .map(|(name, amount)| (name.clone(), u64::try_from(value(amount)).unwrap_or(0)))
        .filter(|(_, bytes)| *bytes > 0)
        .collect()
}

/// The host's memory minus reservations, and the grants from it.
pub struct MemoryPool<'a> {
    pub layout: &'a Layout,
    pub reserved: &'a BTreeMap<u32, Bytes>,
    pub grants: Vec<&'a Share>,
}

impl MemoryPool<'_> {
    fn allocatable(&self, node: u32, name: &str) -> u64 {
        let of = |table: &BTreeMap<u32, Bytes>| table.get(&node).and_then(|own| own.get(name)).copied().unwrap_or(0);
        of(&self.layout.memory).saturating_sub(of(self.reserved))
    }

    /// Whether these nodes fits_empty satisfy the request if they were empty.
    fn fits_empty(&self, nodes: &NumberSet, requested: &Bytes) -> bool {
        requested
            .iter()
            .all(|(name, bytes)| nodes.iter().map(|node| self.allocatable(node, name)).sum::<u64>() >= *bytes)
    }

    /// Whether these nodes fits satisfy the request now.
    fn fits(&self, nodes: &NumberSet, requested: &Bytes) -> bool {
        let touching = || self.grants.iter().filter(|share| !share.nodes.common(nodes).is_empty());
        if touching().any(|share| share.nodes != *nodes) {
            return false;
        }
        requested.iter().all(|(name, bytes)| {
            let whole: u64 = nodes.iter().map(|node| self.allocatable(node, name)).sum();
            let used: u64 = touching().filter_map(|share| share.bytes.get(name)).sum();
            whole.saturating_sub(used) >= *bytes
        })
    }

    pub fn offers(&self, requested: &Bytes) -> Offers {
        let all = subsets(&self.layout.nodes());
        let Some(fewest) = all.iter().filter(|nodes| self.fits_empty(nodes, requested)).map(NumberSet::len).min()
        else {
            return Some(Vec::new());
        };
        let possible = all.into_iter().filter(|nodes| self.fits(nodes, requested));
        Some(possible.map(|nodes| Hint { preferred: nodes.len() == fewest, nodes: Some(nodes) }).collect())
    }

    /// Reserves the request on the agreed nodes, or on the smallest larger set that fits satisfy it.
    pub fn allocate(&self, requested: &Bytes, near: Option<&NumberSet>) -> Option<Share> {
        let all = subsets(&self.layout.nodes());
        let reaches = |nodes: &&NumberSet| near.is_none_or(|near| near.is_within(nodes));
        let nodes = all.iter().filter(reaches).find(|nodes| self.fits(nodes, requested))?;
        Some(Share { nodes: nodes.clone(), bytes: requested.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::topology::tests::two_sockets;
    use super::*;

    fn share(nodes: &str, bytes: u64) -> Share {
        Share { nodes: NumberSet::parse(nodes).expect("a set"), bytes: [("memory".to_string(), bytes)].into() }
    }

    #[test]
    fn nodes_serve_singles_or_a_group() {
        let layout = two_sockets();
        let reserved = BTreeMap::from([(0, Bytes::from([("memory".to_string(), 100)]))]);
        for (grants, bytes, near, expected) in [
            (vec![], 900, None, Some("0")),
            (vec![], 950, None, Some("1")),
            (vec![], 1500, None, Some("0-1")),
            (vec![share("0", 10)], 1500, None, None),
            (vec![share("0-1", 10)], 100, None, Some("0-1")),
            (vec![share("0", 800)], 200, None, Some("1")),
            (vec![], 100, Some("1"), Some("1")),
            (vec![], 2000, None, None),
        ] {
            let book = MemoryPool { layout: &layout, reserved: &reserved, grants: grants.iter().collect() };
            let near = near.map(|text| NumberSet::parse(text).expect("a set"));
            let share = book.allocate(&Bytes::from([("memory".to_string(), bytes)]), near.as_ref());
            assert_eq!(share.map(|share| share.nodes.to_string()).as_deref(), expected, "{bytes} beside {grants:?}");
        }
    }
}
