//! Exclusive CPUs for containers of guaranteed pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_client::quantity::milli_value;

use super::affinity::{Hint, Offers, subsets};
use super::cpu_set::NumberSet;
use super::topology::Layout;
use crate::cgroup::qos::{QosClass, qos_class};
use crate::pod;

/// The number of exclusive CPUs of a container: whole CPUs requested in guaranteed pods.
pub fn exclusive(pod: &Pod, container: &Container) -> usize {
    if qos_class(pod) != QosClass::Guaranteed {
        return 0;
    }
    let request = pod::requests(container).as_ref().and_then(|requests| requests.get("cpu"));
    let limit = pod::limits(container).as_ref().and_then(|limits| limits.get("cpu"));
    let milli = request.or(limit).map_or(0, milli_value);
    if milli % 1000 == 0 { usize::try_from(milli / 1000).unwrap_or(0) } else { 0 }
}

/// CPUs reserved for the system, chosen in the same way as for containers.
pub fn reserved(layout: &Layout, milli: i64) -> NumberSet {
    let count = usize::try_from((milli + 999) / 1000).unwrap_or(0);
    pick(layout, &layout.all(), count).unwrap_or_default()
}

/// The NUMA hints for this number of CPUs.
pub fn offers(layout: &Layout, available: &NumberSet, count: usize) -> Offers {
    let of = |nodes: &NumberSet| -> NumberSet {
        layout.cpus.iter().filter(|(_, place)| nodes.contains(place.node)).map(|(cpu, _)| *cpu).collect()
    };
    let all = subsets(&layout.nodes());
    // The fewest nodes with enough CPUs, free or not.
    let fewest = all.iter().filter(|nodes| of(nodes).len() >= count).map(NumberSet::len).min()?;
    let possible = all.into_iter().filter(|nodes| of(nodes).common(available).len() >= count);
    Some(possible.map(|nodes| Hint { preferred: nodes.len() == fewest, nodes: Some(nodes) }).collect())
}

/// Picks available CPUs, from the given nodes first; none if there are too few.
pub fn pick_near(layout: &Layout, available: &NumberSet, count: usize, near: Option<&NumberSet>) -> Option<NumberSet> {
    let Some(near) = near else { return pick(layout, available, count) };
    let local: NumberSet = available.iter().filter(|cpu| near.contains(layout.cpus[cpu].node)).collect();
    let first = pick(layout, &local, count.min(local.len()))?;
    let rest = pick(layout, &available.without(&first), count - first.len())?;
    Some(first.union(&rest))
}

/// Picks CPUs that share as much as possible with each other and as little as possible with others: whole NUMA nodes,
/// then whole cores, then single threads, each from where the fewest are left.
pub fn pick(layout: &Layout, available: &NumberSet, count: usize) -> Option<NumberSet> {
    if available.len() < count {
        return None;
    }
    let mut picked = NumberSet::default();
    for level in [Level::Node, Level::Core, Level::Thread] {
        for group in free_groups(layout, &available.without(&picked), level) {
            if picked.len() + group.len() <= count {
                picked = picked.union(&group);
            }
        }
    }
    (picked.len() == count).then_some(picked)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Node,
    Core,
    Thread,
}

/// The fully free groups of a level, those in the fullest nodes and cores first.
fn free_groups(layout: &Layout, free: &NumberSet, level: Level) -> Vec<NumberSet> {
    let key = |cpu: u32| {
        let place = layout.cpus[&cpu];
        match level {
            Level::Node => (place.node, 0, 0),
            Level::Core => (place.core.0, place.core.1, 0),
            Level::Thread => (place.core.0, place.core.1, cpu + 1),
        }
    };
    let mut groups: BTreeMap<_, (NumberSet, usize)> = BTreeMap::new();
    for cpu in layout.cpus.keys() {
        let (group, size) = groups.entry(key(*cpu)).or_default();
        *size += 1;
        if free.contains(*cpu) {
            *group = group.union(&NumberSet::from_iter([*cpu]));
        }
    }
    let mut whole: Vec<NumberSet> =
        groups.into_values().filter(|(group, size)| group.len() == *size).map(|(group, _)| group).collect();
    let left = |group: &NumberSet| {
        let place = group.iter().next().map(|cpu| layout.cpus[&cpu]).unwrap_or_default();
        let in_node = free.iter().filter(|cpu| layout.cpus[cpu].node == place.node).count();
        let in_core = free.iter().filter(|cpu| layout.cpus[cpu].core == place.core).count();
        (in_node, in_core)
    };
    whole.sort_by_key(|group| (left(group), group.clone()));
    whole
}

#[cfg(test)]
mod tests {
    use super::super::topology::tests::two_sockets;
    use super::*;

    fn set(text: &str) -> NumberSet {
        NumberSet::parse(text).expect("a set")
    }

    #[test]
    fn cores_stay_whole_and_nodes_fill_up() {
        let layout = two_sockets();
        for (free, count, expected) in [
            ("0-7", 4, Some("0-1,4-5")),
            ("0-7", 2, Some("0,4")),
            ("0-7", 1, Some("0")),
            // The sibling of a half used core goes first.
            ("1-7", 1, Some("4")),
            // The first node is fuller, so the next core comes from it.
            ("1-3,5-7", 2, Some("1,5")),
            ("1-3,5-7", 6, Some("1-3,5-7")),
            ("0-7", 3, Some("0-1,4")),
            ("0-1", 3, None),
        ] {
            let picked = pick(&layout, &set(free), count).map(|set| set.to_string());
            assert_eq!(picked.as_deref(), expected, "{count} of {free}");
        }
    }

    #[test]
    fn near_comes_first_and_far_fills_up() {
        let layout = two_sockets();
        let near = |count, node: &str| {
            pick_near(&layout, &set("0-7"), count, Some(&set(node))).map(|set| set.to_string()).unwrap_or_default()
        };
        assert_eq!((near(2, "1"), near(6, "1")), ("2,6".to_string(), "0,2-4,6-7".to_string()));
    }

    #[test]
    fn one_node_is_preferred_where_it_could_do() {
        let layout = two_sockets();
        let shown = |free: &str, count| -> Vec<(String, bool)> {
            let hints = offers(&layout, &set(free), count).unwrap_or_default();
            hints.into_iter().map(|hint| (hint.nodes.unwrap_or_default().to_string(), hint.preferred)).collect()
        };
        assert_eq!(shown("0-7", 4), [("0".into(), true), ("1".into(), true), ("0-1".into(), false)]);
        assert_eq!(shown("0-3,6-7", 4), [("1".into(), true), ("0-1".into(), false)]);
        assert_eq!(shown("0-7", 6), [("0-1".into(), true)]);
    }

    #[test]
    fn only_whole_cpus_of_guaranteed_pods_are_exclusive() {
        let pod = |cpu: &str| {
            let amounts = serde_json::json!({ "cpu": cpu, "memory": "1Mi" });
            let container = serde_json::json!({ "name": "c", "resources": { "limits": amounts, "requests": amounts } });
            serde_json::from_value::<Pod>(serde_json::json!({ "spec": { "containers": [container] } })).expect("a pod")
        };
        let count = |cpu: &str| exclusive(&pod(cpu), &pod::spec(&pod(cpu)).containers[0]);
        assert_eq!((count("2"), count("1500m"), count("2000m")), (2, 0, 2));
    }
}
