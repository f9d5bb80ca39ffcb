//! Whole CPUs for containers that may have them to themselves.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_client::quantity::milli_value;

use super::affinity::{Hint, Offers, subsets};
use super::cpu_set::NumberSet;
use super::topology::Layout;
use crate::cgroup::qos::{QosClass, qos_class};
use crate::pod;

/// How many CPUs a container gets for itself: those of guaranteed pods that ask for whole ones.
pub fn exclusive(pod: &Pod, container: &Container) -> usize {
    if qos_class(pod) != QosClass::Guaranteed {
        return 0;
    }
    let request = pod::requests(container).as_ref().and_then(|requests| requests.get("cpu"));
    let limit = pod::limits(container).as_ref().and_then(|limits| limits.get("cpu"));
    let milli = request.or(limit).map_or(0, milli_value);
    if milli % 1000 == 0 { usize::try_from(milli / 1000).unwrap_or(0) } else { 0 }
}

/// CPUs that are never given away: as many as are reserved, chosen as any others would be.
pub fn reserved(layout: &Layout, milli: i64) -> NumberSet {
    let count = usize::try_from((milli + 999) / 1000).unwrap_or(0);
    take(layout, &layout.all(), count).unwrap_or_default()
}

/// Where so many CPUs could come from.
pub fn offers(layout: &Layout, available: &NumberSet, count: usize) -> Offers {
    let of = |nodes: &NumberSet| -> NumberSet {
        layout.cpus.iter().filter(|(_, place)| nodes.contains(place.node)).map(|(cpu, _)| *cpu).collect()
    };
    let all = subsets(&layout.nodes());
    // The fewest nodes that could ever have so many, whoever has them now.
    let fewest = all.iter().filter(|nodes| of(nodes).len() >= count).map(NumberSet::len).min()?;
    let possible = all.into_iter().filter(|nodes| of(nodes).common(available).len() >= count);
    Some(possible.map(|nodes| Hint { preferred: nodes.len() == fewest, nodes: Some(nodes) }).collect())
}

/// So many of the available CPUs, from the wanted nodes first; none if there are too few.
pub fn take_near(layout: &Layout, available: &NumberSet, count: usize, near: Option<&NumberSet>) -> Option<NumberSet> {
    let Some(near) = near else { return take(layout, available, count) };
    let local: NumberSet = available.iter().filter(|cpu| near.contains(layout.cpus[cpu].node)).collect();
    let first = take(layout, &local, count.min(local.len()))?;
    let rest = take(layout, &available.without(&first), count - first.len())?;
    Some(first.union(&rest))
}

/// So many CPUs that share as much as possible with each other and as little as possible with others: whole NUMA nodes,
/// then whole cores, then single threads, each from where the least is left.
pub fn take(layout: &Layout, available: &NumberSet, count: usize) -> Option<NumberSet> {
    if available.len() < count {
        return None;
    }
    let mut taken = NumberSet::default();
    for level in [Level::Node, Level::Core, Level::Thread] {
        for group in free_groups(layout, &available.without(&taken), level) {
            if taken.len() + group.len() <= count {
                taken = taken.union(&group);
            }
        }
    }
    (taken.len() == count).then_some(taken)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Node,
    Core,
    Thread,
}

/// The groups of a level of which nothing is in use, those in the fullest surroundings first.
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
            let taken = take(&layout, &set(free), count).map(|set| set.to_string());
            assert_eq!(taken.as_deref(), expected, "{count} of {free}");
        }
    }

    #[test]
    fn near_comes_first_and_far_fills_up() {
        let layout = two_sockets();
        let near = |count, node: &str| {
            take_near(&layout, &set("0-7"), count, Some(&set(node))).map(|set| set.to_string()).unwrap_or_default()
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
