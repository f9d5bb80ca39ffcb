//! How many pods match a selector on each node and under each topology value, kept up to date for the selectors that
//! pods use.
//!
//! The first pod with a selector has it counted over all sets of labels; from then on each pod that comes or goes
//! changes the counts it matches. Selectors that have not been used for long are dropped.

use std::collections::HashMap;
use std::sync::Arc;

use knarr_client::selector::Selector;

use super::affinity::{Term, TermKey};
use super::counts::Counts;
use super::label_sets::{LabelSets, PodCount};
use super::labels::{Labels, Namespaces};
use super::node::NodeState;
use super::placed::PlacedPod;
use super::{Cluster, NodeIndex};

/// At most this many selectors are kept; a cluster uses few at the same time.
const MAX_GROUPS: usize = 512;

#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    /// Pods of one namespace, as spread constraints count them.
    Spread { namespace: Arc<str>, selector: Arc<str> },
    /// Pods that an affinity term selects.
    Term(Arc<TermKey>),
}

#[derive(Default)]
pub struct Groups {
    groups: HashMap<Key, Group>,
    label_sets: LabelSets,
    queries: u64,
}

struct Group {
    member: Member,
    /// Shared with the filters of the current decision; nothing changes before they are dropped.
    per_node: Arc<PerNode>,
    by_topology: HashMap<String, Arc<Counts>>,
    last_used: u64,
    /// The version of the namespaces' labels that it was counted with.
    namespaces: u64,
}

enum Member {
    Spread { namespace: Arc<str>, selector: Arc<Selector> },
    Term(Term),
}

impl Member {
    fn has(&self, pod: &PlacedPod, namespaces: &Namespaces) -> bool {
        (self.has_terminating() || !pod.is_terminating())
            && self.covers(pod.namespace(), namespaces)
            && self.selects(pod.labels())
    }

    /// A terminating pod does not count for spreading.
    fn has_terminating(&self) -> bool {
        matches!(self, Member::Term(_))
    }

    fn covers(&self, namespace: &str, namespaces: &Namespaces) -> bool {
        match self {
            Member::Spread { namespace: own, .. } => namespace == &**own,
            Member::Term(term) => term.covers(namespace, namespaces),
        }
    }

    fn selects(&self, labels: Option<&Labels>) -> bool {
        match self {
            // An empty selector matches no pod.
            Member::Spread { selector, .. } => !selector.is_everything() && selector.matches(labels),
            Member::Term(term) => term.selector.matches(labels),
        }
    }

    fn count(&self, sets: &LabelSets, namespaces: &Namespaces) -> PerNode {
        let mut per_node = PerNode::new();
        for namespace in self.namespaces(sets, namespaces) {
            for (_, counts) in sets.of_namespace(namespace).filter(|(labels, _)| self.selects(*labels)) {
                for (index, PodCount { all, terminating }) in counts {
                    let count = if self.has_terminating() { *all } else { all - terminating };
                    if count > 0 {
                        *per_node.entry(*index).or_default() += count;
                    }
                }
            }
        }
        per_node
    }

    /// The namespaces it covers, of those that have pods.
    fn namespaces<'a>(&'a self, sets: &'a LabelSets, namespaces: &Namespaces) -> Vec<&'a str> {
        match self {
            Member::Spread { namespace, .. } => vec![namespace],
            Member::Term(_) => sets.namespaces().filter(|namespace| self.covers(namespace, namespaces)).collect(),
        }
    }
}

/// Counts by node; nodes without a matching pod are absent.
pub type PerNode = HashMap<NodeIndex, i64>;

impl Cluster {
    /// Pods of the namespace that match the selector, by value of the topology label.
    pub fn spread_counts(
        &mut self,
        namespace: &str,
        selector: &Arc<Selector>,
        text: &Arc<str>,
        key: &str,
    ) -> Arc<Counts> {
        let group = self.spread_group(namespace, selector, text);
        self.counts_of(&group, key)
    }

    /// Pods of the namespace that match the selector, by node.
    pub fn spread_per_node(&mut self, namespace: &str, selector: &Arc<Selector>, text: &Arc<str>) -> Arc<PerNode> {
        let group = self.spread_group(namespace, selector, text);
        Arc::clone(&self.groups.groups[&group].per_node)
    }

    /// Pods that the term selects, by value of its topology label.
    pub fn term_counts(&mut self, term: &Term) -> Arc<Counts> {
        let group = self.term_group(term);
        self.counts_of(&group, &term.key.topology_key)
    }

    /// Pods that the term selects, by node.
    pub fn term_per_node(&mut self, term: &Term) -> Arc<PerNode> {
        let group = self.term_group(term);
        Arc::clone(&self.groups.groups[&group].per_node)
    }

    fn spread_group(&mut self, namespace: &str, selector: &Arc<Selector>, text: &Arc<str>) -> Key {
        let namespace: Arc<str> = namespace.into();
        let key = Key::Spread { namespace: Arc::clone(&namespace), selector: Arc::clone(text) };
        self.ask(&key, || Member::Spread { namespace, selector: Arc::clone(selector) });
        key
    }

    fn term_group(&mut self, term: &Term) -> Key {
        let key = Key::Term(Arc::clone(&term.key));
        self.ask(&key, || Member::Term(term.clone()));
        key
    }

    /// Ensures that the group exists and is up to date.
    fn ask(&mut self, key: &Key, member: impl FnOnce() -> Member) {
        self.groups.queries += 1;
        let queries = self.groups.queries;
        let version = self.namespaces.version;
        if let Some(group) = self.groups.groups.get_mut(key)
            && (!group.selects_namespaces() || group.namespaces == version)
        {
            group.last_used = queries;
            return;
        }
        self.groups.groups.remove(key);
        self.groups.evict_unused();
        let member = member();
        let per_node = member.count(&self.groups.label_sets, &self.namespaces);
        let group = Group {
            member,
            per_node: Arc::new(per_node),
            by_topology: HashMap::new(),
            last_used: queries,
            namespaces: version,
        };
        self.groups.groups.insert(key.clone(), group);
    }

    fn counts_of(&mut self, group: &Key, topology_key: &str) -> Arc<Counts> {
        let known = &self.groups.groups[group];
        if let Some(counts) = known.by_topology.get(topology_key) {
            return Arc::clone(counts);
        }
        let mut counts = Counts::default();
        for (index, count) in known.per_node.iter() {
            if let Some(value) = self.node(*index).labels().get(topology_key) {
                counts.change(value, *count);
            }
        }
        let counts = Arc::new(counts);
        if let Some(group) = self.groups.groups.get_mut(group) {
            group.by_topology.insert(topology_key.to_owned(), Arc::clone(&counts));
        }
        counts
    }
}

impl Group {
    fn selects_namespaces(&self) -> bool {
        matches!(&self.member, Member::Term(term) if term.namespace_selector.is_some())
    }

    fn change(&mut self, index: NodeIndex, node: &NodeState, by: i64) {
        let per_node = Arc::make_mut(&mut self.per_node);
        let count = per_node.entry(index).or_default();
        *count += by;
        if *count <= 0 {
            per_node.remove(&index);
        }
        for (key, counts) in &mut self.by_topology {
            if let Some(value) = node.labels().get(key) {
                Arc::make_mut(counts).change(value, by);
            }
        }
    }
}

impl Groups {
    fn evict_unused(&mut self) {
        if self.groups.len() < MAX_GROUPS {
            return;
        }
        let mut ages: Vec<u64> = self.groups.values().map(|group| group.last_used).collect();
        ages.sort_unstable();
        let middle = ages[ages.len() / 2];
        self.groups.retain(|_, group| group.last_used > middle);
    }

    fn change(&mut self, index: NodeIndex, node: &NodeState, pod: &PlacedPod, by: i64, namespaces: &Namespaces) {
        for group in self.groups.values_mut() {
            if group.member.has(pod, namespaces) {
                group.change(index, node, by);
            }
        }
    }

    pub(super) fn pod_joins(&mut self, index: NodeIndex, node: &NodeState, pod: &PlacedPod, namespaces: &Namespaces) {
        self.label_sets.add(index, pod);
        self.change(index, node, pod, 1, namespaces);
    }

    pub(super) fn pod_leaves(&mut self, index: NodeIndex, node: &NodeState, pod: &PlacedPod, namespaces: &Namespaces) {
        self.label_sets.remove(index, pod);
        self.change(index, node, pod, -1, namespaces);
    }

    pub(super) fn node_joins(&mut self, index: NodeIndex, node: &NodeState, namespaces: &Namespaces) {
        for pod in &node.pods {
            self.pod_joins(index, node, pod, namespaces);
        }
    }

    /// `node` still has the labels that its pods were counted under.
    pub(super) fn node_leaves(&mut self, index: NodeIndex, node: &NodeState) {
        for pod in &node.pods {
            self.label_sets.remove(index, pod);
        }
        for group in self.groups.values_mut() {
            if let Some(count) = group.per_node.get(&index).copied() {
                group.change(index, node, -count);
            }
        }
    }
}
