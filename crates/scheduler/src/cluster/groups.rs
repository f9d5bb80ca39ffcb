//! How many pods of a namespace match a selector on each node, kept up to date for the selectors that pods ask about.
//!
//! The first pod that asks about a selector has it counted over the pods of its namespace; from then on each pod that
//! comes or goes changes the counts it matches. Selectors nobody asks about any more are dropped.

use std::collections::HashMap;
use std::sync::Arc;

use knarr_client::selector::Selector;

use super::affinity::{Term, TermKey};
use super::labels::Namespaces;
use super::node::NodeState;
use super::pod::PodState;
use super::{Cluster, NodeIndex};

/// So many selectors are kept; a cluster has few that are asked about at the same time.
const MOST_GROUPS: usize = 512;

#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    /// Pods of one namespace, as spread constraints count them.
    Spread { namespace: Arc<str>, selector: Arc<str> },
    /// Pods that an affinity term means.
    Term(Arc<TermKey>),
}

#[derive(Default)]
pub struct Groups {
    groups: HashMap<Key, Group>,
    asked: u64,
}

struct Group {
    member: Member,
    per_node: HashMap<NodeIndex, i64>,
    last_asked: u64,
    /// The version of the namespaces' labels that it was counted with.
    namespaces: u64,
}

enum Member {
    Spread { namespace: Arc<str>, selector: Arc<Selector> },
    Term(Term),
}

impl Member {
    fn has(&self, pod: &PodState, namespaces: &Namespaces) -> bool {
        match self {
            // A pod on its way out no longer counts for spreading.
            Member::Spread { namespace, selector } => {
                pod.namespace() == &**namespace && !pod.is_terminating() && selector.matches(pod.labels())
            }
            Member::Term(term) => term.matches(pod.namespace(), pod.labels(), namespaces),
        }
    }
}

/// Counts by node; nodes without a matching pod are absent.
pub type PerNode = HashMap<NodeIndex, i64>;

impl Cluster {
    /// Pods of the namespace that match the selector, by node.
    pub fn spread_counts(&mut self, namespace: &str, selector: &Arc<Selector>, text: &Arc<str>) -> &PerNode {
        let namespace: Arc<str> = namespace.into();
        let key = Key::Spread { namespace: Arc::clone(&namespace), selector: Arc::clone(text) };
        self.counts(key, || Member::Spread { namespace, selector: Arc::clone(selector) })
    }

    /// Pods that the term means, by node.
    pub fn term_counts(&mut self, term: &Term) -> &PerNode {
        self.counts(Key::Term(Arc::clone(&term.key)), || Member::Term(term.clone()))
    }

    fn counts(&mut self, key: Key, member: impl FnOnce() -> Member) -> &PerNode {
        self.groups.asked += 1;
        let asked = self.groups.asked;
        let version = self.namespaces.version;
        let stale =
            self.groups.groups.get(&key).is_some_and(|group| group.selects_namespaces() && group.namespaces != version);
        if stale {
            self.groups.groups.remove(&key);
        }
        if !self.groups.groups.contains_key(&key) {
            self.groups.make_room();
            let member = member();
            let mut per_node = HashMap::new();
            for (index, node) in self.nodes.iter().enumerate() {
                let pods = node.iter().flat_map(|node| &node.pods);
                let count = pods.filter(|pod| member.has(pod, &self.namespaces)).count();
                if count > 0 {
                    per_node.insert(index, i64::try_from(count).unwrap_or(i64::MAX));
                }
            }
            let group = Group { member, per_node, last_asked: asked, namespaces: version };
            self.groups.groups.insert(key.clone(), group);
        }
        let group = self.groups.groups.get_mut(&key).expect("it was just put there");
        group.last_asked = asked;
        &group.per_node
    }
}

impl Group {
    fn selects_namespaces(&self) -> bool {
        matches!(&self.member, Member::Term(term) if term.namespace_selector.is_some())
    }
}

impl Groups {
    fn make_room(&mut self) {
        if self.groups.len() < MOST_GROUPS {
            return;
        }
        let mut ages: Vec<u64> = self.groups.values().map(|group| group.last_asked).collect();
        ages.sort_unstable();
        let middle = ages[ages.len() / 2];
        self.groups.retain(|_, group| group.last_asked > middle);
    }

    fn change(&mut self, index: NodeIndex, pod: &PodState, by: i64, namespaces: &Namespaces) {
        for group in self.groups.values_mut() {
            if group.member.has(pod, namespaces) {
                let count = group.per_node.entry(index).or_default();
                *count += by;
                if *count <= 0 {
                    group.per_node.remove(&index);
                }
            }
        }
    }

    pub(super) fn pod_joins(&mut self, index: NodeIndex, pod: &PodState, namespaces: &Namespaces) {
        self.change(index, pod, 1, namespaces);
    }

    pub(super) fn pod_leaves(&mut self, index: NodeIndex, pod: &PodState, namespaces: &Namespaces) {
        self.change(index, pod, -1, namespaces);
    }

    pub(super) fn node_joins(&mut self, index: NodeIndex, node: &NodeState, namespaces: &Namespaces) {
        for pod in &node.pods {
            self.change(index, pod, 1, namespaces);
        }
    }

    pub(super) fn node_leaves(&mut self, index: NodeIndex) {
        for group in self.groups.values_mut() {
            group.per_node.remove(&index);
        }
    }
}
