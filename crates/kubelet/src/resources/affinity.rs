//! NUMA affinity: merges the hints of all resources of a container under a topology policy.

use std::collections::BTreeSet;

use super::cpu_set::NumberSet;

/// With more nodes there are too many sets of them to compare; Kubernetes supports no more either.
pub const MAX_NODES: usize = 8;

/// The topology policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    #[default]
    None,
    BestEffort,
    Restricted,
    SingleNumaNode,
}

impl Policy {
    const NAMES: [(&'static str, Self); 4] = [
        ("none", Self::None),
        ("best-effort", Self::BestEffort),
        ("restricted", Self::Restricted),
        ("single-numa-node", Self::SingleNumaNode),
    ];

    /// The policy of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, policy)| *policy)
    }

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, policy)| *policy == self).map_or("none", |(name, _)| name)
    }
}

/// Whether resources are aligned per container or for the whole pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    #[default]
    Container,
    Pod,
}

impl Scope {
    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Pod => "pod",
        }
    }
}

/// NUMA nodes that could provide a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// None: any node.
    pub nodes: Option<NumberSet>,
    /// The resource fits on no smaller set of nodes.
    pub preferred: bool,
}

/// The hints of one resource: none if it has no preference, an empty list if it is unavailable.
pub type Offers = Option<Vec<Hint>>;

/// The best hint that all resources agree on, and whether the policy admits the pod with it.
pub fn agree(policy: Policy, offers: &[Offers], all_nodes: &NumberSet) -> (Hint, bool) {
    let anywhere = |preferred| Hint { nodes: None, preferred };
    if policy == Policy::None {
        return (anywhere(true), true);
    }
    let lists: Vec<Vec<Hint>> = offers.iter().map(|offer| candidates(policy, offer)).collect();
    let smallest_possible = lists.iter().filter_map(|list| narrowest(list)).max().unwrap_or(0);
    // Choices of one hint for each resource that have merged alike so far stay alike: their number is limited by that of the
    // sets of nodes, however many resources there are.
    let mut merged = BTreeSet::from([Merged { nodes: all_nodes.clone(), is_preferred: true, common: None }]);
    for list in &lists {
        merged = merged.iter().flat_map(|known| list.iter().map(move |hint| known.with(hint))).collect();
    }
    let mut best = None;
    for Merged { nodes, is_preferred, .. } in merged.into_iter().filter(|merged| !merged.nodes.is_empty()) {
        let merged = Hint { nodes: Some(nodes), preferred: is_preferred };
        if best.as_ref().is_none_or(|known| is_better(&merged, known, smallest_possible)) {
            best = Some(merged);
        }
    }
    let mut best = best.unwrap_or_else(|| anywhere(false));
    // Without any preference no node is better than another.
    if best.nodes.as_ref() == Some(all_nodes) && offers.iter().all(Option::is_none) {
        best.nodes = None;
    }
    let admitted = match policy {
        Policy::None | Policy::BestEffort => true,
        Policy::Restricted | Policy::SingleNumaNode => best.preferred,
    };
    (best, admitted)
}

fn candidates(policy: Policy, offer: &Offers) -> Vec<Hint> {
    let list = match offer {
        None => vec![Hint { nodes: None, preferred: true }],
        Some(list) if list.is_empty() => vec![Hint { nodes: None, preferred: false }],
        Some(list) => list.clone(),
    };
    if policy != Policy::SingleNumaNode {
        return list;
    }
    let single = |hint: &Hint| hint.preferred && hint.nodes.as_ref().is_none_or(|nodes| nodes.len() == 1);
    list.into_iter().filter(single).collect()
}

fn narrowest(list: &[Hint]) -> Option<usize> {
    list.iter().filter_map(|hint| hint.nodes.as_ref().map(NumberSet::len)).min()
}

/// The common nodes of hints for different resources.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Merged {
    nodes: NumberSet,
    /// All hints are preferred and equal.
    is_preferred: bool,
    /// What they are equal to.
    common: Option<NumberSet>,
}

impl Merged {
    fn with(&self, hint: &Hint) -> Self {
        let nodes = hint.nodes.as_ref().map_or_else(|| self.nodes.clone(), |own| self.nodes.common(own));
        let is_same = match (&self.common, &hint.nodes) {
            (Some(common), Some(own)) => common == own,
            _ => true,
        };
        let is_preferred = self.is_preferred && hint.preferred && is_same;
        let common = hint.nodes.as_ref().or(self.common.as_ref()).filter(|_| is_preferred).cloned();
        Self { nodes, is_preferred, common }
    }
}

fn is_better(new: &Hint, known: &Hint, smallest_possible: usize) -> bool {
    if new.preferred != known.preferred {
        return new.preferred;
    }
    let size = |hint: &Hint| hint.nodes.as_ref().map_or(usize::MAX, NumberSet::len);
    if new.preferred {
        return (size(new), &new.nodes) < (size(known), &known.nodes);
    }
    // Among hints that are not preferred, the one closest in size to the resource that needs most nodes.
    let distance = |hint: &Hint| {
        let size = size(hint);
        (size < smallest_possible, size.abs_diff(smallest_possible))
    };
    (distance(new), &new.nodes) < (distance(known), &known.nodes)
}

/// All subsets of the nodes, smallest first.
pub fn subsets(nodes: &NumberSet) -> Vec<NumberSet> {
    let numbers: Vec<u32> = nodes.iter().collect();
    let count = 1u64.checked_shl(u32::try_from(numbers.len()).unwrap_or(64)).unwrap_or(0);
    let pick = |mask: u64| numbers.iter().enumerate().filter(move |(at, _)| mask & (1 << at) != 0).map(|(_, n)| *n);
    let mut all: Vec<NumberSet> = (1..count).map(|mask| pick(mask).collect()).collect();
    all.sort_by_key(|set: &NumberSet| (set.len(), set.clone()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> NumberSet {
        NumberSet::parse(text).expect("a set")
    }

    fn hint(nodes: &str, preferred: bool) -> Hint {
        Hint { nodes: Some(set(nodes)), preferred }
    }

    #[test]
    fn resources_agree_on_the_narrowest_place() {
        let either = || Some(vec![hint("0", true), hint("1", true), hint("0-1", false)]);
        let second = || Some(vec![hint("1", true), hint("0-1", false)]);
        let both_only = || Some(vec![hint("0-1", false)]);
        let wide = || Some(vec![hint("0-1", true)]);
        let impossible = || Some(Vec::new());
        for (policy, offers, place, admitted) in [
            (Policy::None, vec![impossible()], None, true),
            (Policy::BestEffort, vec![None, None], None, true),
            (Policy::BestEffort, vec![either(), second()], Some("1"), true),
            (Policy::Restricted, vec![either(), second()], Some("1"), true),
            (Policy::SingleNumaNode, vec![either(), second()], Some("1"), true),
            (Policy::Restricted, vec![either(), both_only()], Some("0"), false),
            (Policy::BestEffort, vec![both_only()], Some("0-1"), true),
            (Policy::Restricted, vec![wide()], Some("0-1"), true),
            (Policy::SingleNumaNode, vec![wide()], None, false),
            (Policy::SingleNumaNode, vec![impossible()], None, false),
            (Policy::SingleNumaNode, vec![None], None, true),
        ] {
            let (best, let_in) = agree(policy, &offers, &set("0-1"));
            assert_eq!(let_in, admitted, "{policy:?} {offers:?}");
            if admitted {
                assert_eq!(best.nodes.map(|nodes| nodes.to_string()).as_deref(), place, "{policy:?} {offers:?}");
            }
        }
    }

    #[test]
    fn subsets_come_smallest_first() {
        let all: Vec<String> = subsets(&set("0-2")).iter().map(ToString::to_string).collect();
        assert_eq!(all, ["0", "1", "2", "0-1", "0,2", "1-2", "0-2"].map(String::from));
    }

    /// Each choice of their hints would be a trillion.
    #[test]
    fn many_resources_agree_without_comparing_all_choices() {
        let nodes = set("0-5");
        let hints = subsets(&nodes).into_iter().map(|nodes| Hint { preferred: nodes.len() == 2, nodes: Some(nodes) });
        let offers = vec![Some(hints.collect::<Vec<_>>()); 7];
        let (best, admitted) = agree(Policy::Restricted, &offers, &nodes);
        assert_eq!((best.nodes.map(|nodes| nodes.to_string()).as_deref(), admitted), (Some("0-1"), true));
    }
}
