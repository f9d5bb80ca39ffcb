//! One scheduling cycle: which node for this pod.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::cluster::pod::PodState;
use crate::cluster::{Cluster, NodeIndex};
use crate::diagnosis::Diagnosis;
use crate::framework::{Filter, Prepared, Rejection, View};
use crate::metrics::PLUGIN_EVALUATIONS;
use crate::nominations::Nominations;
use crate::profile::{Enabled, Profile, build_plugins};

/// In a large cluster the search stops when enough nodes fit; below this many, all are checked.
const MIN_FEASIBLE: usize = 100;
const MIN_PERCENTAGE: usize = 5;

/// A profile with its plugin instances.
pub struct ProfilePlugins {
    pub profile: Profile,
    plugins: Vec<Enabled>,
    percentage: u32,
}

/// Where the next search starts, so that all nodes get their turn.
#[derive(Default)]
pub struct Rotation {
    next: usize,
    random: u64,
}

pub struct Chosen {
    pub node: NodeIndex,
    pub evaluated: usize,
    pub feasible: usize,
    /// The scores of the best nodes, the chosen first; empty where there was no choice.
    pub scores: Vec<(NodeIndex, i64)>,
}

/// How many nodes' scores are recorded.
const REMEMBERED_SCORES: usize = 3;

/// Nodes that fit, at least one; and the diagnosis, should none of them be left.
pub struct Candidates {
    pub feasible: Vec<NodeIndex>,
    pub evaluated: usize,
    pub no_fit: Box<NoFit>,
}

impl Candidates {
    /// Rejects a node afterwards.
    pub fn reject(&mut self, index: NodeIndex, rejection: &Rejection) {
        self.feasible.retain(|own| *own != index);
        self.no_fit.diagnosis.add(rejection);
        if !rejection.unresolvable {
            self.no_fit.resolvable.push(index);
        }
    }
}

/// No node fits. The filters are kept to evaluate preemption.
pub struct NoFit {
    pub diagnosis: Diagnosis,
    pub filters: Vec<Box<dyn Filter>>,
    /// Nodes where removing pods might help.
    pub resolvable: Vec<NodeIndex>,
    /// Why the decision failed: it says nothing about the nodes.
    pub error: Option<String>,
}

impl ProfilePlugins {
    pub fn new(profile: Profile, percentage: u32) -> Self {
        let percentage = profile.percentage_of_nodes_to_score.unwrap_or(percentage);
        ProfilePlugins { plugins: build_plugins(&profile), profile, percentage }
    }

    pub fn decide(
        &self,
        pod: &Arc<PodState>,
        cluster: &mut Cluster,
        nominations: &Nominations,
        rotation: &mut Rotation,
    ) -> Result<Chosen, Box<NoFit>> {
        let candidates = self.candidates(pod, cluster, nominations, rotation)?;
        Ok(self.choose(pod, cluster, &candidates, &HashMap::new(), rotation))
    }

    /// The nodes that fit.
    pub fn candidates(
        &self,
        pod: &Arc<PodState>,
        cluster: &mut Cluster,
        nominations: &Nominations,
        rotation: &mut Rotation,
    ) -> Result<Candidates, Box<NoFit>> {
        let (filters, only) = match self.prepare(pod, cluster) {
            Ok(prepared) => prepared,
            Err(rejection) => return Err(rejected(cluster, rejection)),
        };
        cluster.update_order();
        let found = self.search(pod, cluster, nominations, rotation, &filters, only.as_ref());
        let SearchState { feasible, resolvable, evaluated, diagnosis, error } = found;
        let no_fit = Box::new(NoFit { diagnosis, filters, resolvable, error });
        if feasible.is_empty() || no_fit.error.is_some() {
            Err(no_fit)
        } else {
            Ok(Candidates { feasible, evaluated, no_fit })
        }
    }

    /// The best of the nodes that fit; `points` are added to the plugins' scores.
    pub fn choose(
        &self,
        pod: &Arc<PodState>,
        cluster: &mut Cluster,
        candidates: &Candidates,
        points: &HashMap<NodeIndex, i64>,
        rotation: &mut Rotation,
    ) -> Chosen {
        let feasible = &candidates.feasible;
        let (node, scores) = match feasible.as_slice() {
            [one] => (*one, Vec::new()),
            many => self.best(pod, cluster, many, points, rotation),
        };
        Chosen { node, evaluated: candidates.evaluated, feasible: feasible.len(), scores }
    }

    fn prepare(&self, pod: &Arc<PodState>, cluster: &mut Cluster) -> Result<PreparedFilters, Rejection> {
        let mut filters = Vec::new();
        let mut only: Option<BTreeSet<String>> = None;
        for enabled in self.plugins.iter().filter(|enabled| enabled.filters) {
            let prepared = enabled.plugin.filter(pod, cluster);
            if !matches!(prepared, Prepared::Nothing) {
                PLUGIN_EVALUATIONS.add(&["Filter", enabled.plugin.name(), &self.profile.scheduler_name], 1);
            }
            match prepared {
                Prepared::Nothing => {}
                Prepared::Filter(filter) => filters.push(filter),
                Prepared::Only(names, filter) => {
                    only = Some(match only {
                        Some(before) => before.intersection(&names).cloned().collect(),
                        None => names,
                    });
                    filters.extend(filter);
                }
                Prepared::Reject(rejection) => return Err(rejection),
            }
        }
        Ok((filters, only))
    }

    fn search(
        &self,
        pod: &Arc<PodState>,
        cluster: &Cluster,
        nominations: &Nominations,
        rotation: &mut Rotation,
        filters: &[Box<dyn Filter>],
        only: Option<&BTreeSet<String>>,
    ) -> SearchState {
        let all = cluster.node_count();
        let mut found = SearchState::new(all);
        // A nominated node is tried first.
        if let Some(index) = nominations.node_of(&pod.key).and_then(|name| cluster.index_of(name))
            && check(index, cluster, nominations, pod, filters).is_none()
        {
            found.feasible.push(index);
            found.evaluated = 1;
            return found;
        }
        let (searched, ruled_out) = match only {
            Some(only) => {
                let known: Vec<NodeIndex> = only.iter().filter_map(|name| cluster.index_of(name)).collect();
                let ruled_out = all - known.len();
                (Cow::Owned(known), ruled_out)
            }
            None => (Cow::Borrowed(cluster.order()), 0),
        };
        let enough = self.enough(searched.len());
        let start = rotation.next.checked_rem(searched.len()).unwrap_or(0);
        for index in searched[start..].iter().chain(&searched[..start]) {
            found.record(*index, check(*index, cluster, nominations, pod, filters));
            if found.feasible.len() >= enough || found.error.is_some() {
                break;
            }
        }
        rotation.next = (rotation.next + found.evaluated) % all.max(1);
        found.diagnosis.add_reason("node(s) didn't satisfy plugin(s) [NodeAffinity]", ruled_out);
        found
    }

    /// How many fitting nodes are enough to choose from.
    fn enough(&self, all: usize) -> usize {
        if all < MIN_FEASIBLE {
            return all.max(1);
        }
        let percentage = match usize::try_from(self.percentage).unwrap_or(0) {
            0 => 50usize.saturating_sub(all / 125).max(MIN_PERCENTAGE),
            given => given.min(100),
        };
        (all * percentage / 100).max(MIN_FEASIBLE)
    }

    fn best(
        &self,
        pod: &Arc<PodState>,
        cluster: &mut Cluster,
        feasible: &[NodeIndex],
        points: &HashMap<NodeIndex, i64>,
        rotation: &mut Rotation,
    ) -> (NodeIndex, Vec<(NodeIndex, i64)>) {
        let mut totals: Vec<i64> = feasible.iter().map(|index| points.get(index).copied().unwrap_or(0)).collect();
        let mut scores = vec![0i64; feasible.len()];
        for enabled in self.plugins.iter().filter(|enabled| enabled.weight > 0) {
            let Some(scorer) = enabled.plugin.scorer(pod, cluster, feasible) else { continue };
            PLUGIN_EVALUATIONS.add(&["Score", enabled.plugin.name(), &self.profile.scheduler_name], 1);
            for (score, index) in scores.iter_mut().zip(feasible) {
                *score = scorer.score(*index, cluster.node(*index));
            }
            scorer.normalize(&mut scores);
            trace_scores(pod, cluster, enabled, feasible, &scores);
            for (total, score) in totals.iter_mut().zip(&scores) {
                *total += score * enabled.weight;
            }
        }
        let top_score = totals.iter().copied().max().unwrap_or(0);
        let best: Vec<NodeIndex> =
            feasible.iter().zip(&totals).filter(|(_, total)| **total == top_score).map(|(index, _)| *index).collect();
        let chosen = best[rotation.pick(best.len())];
        let scored = feasible.iter().copied().zip(totals.iter().copied());
        (chosen, leading(chosen, top_score, scored))
    }
}

/// The chosen node and the runners-up, with their scores.
fn leading(chosen: NodeIndex, top_score: i64, scored: impl Iterator<Item = (NodeIndex, i64)>) -> Vec<(NodeIndex, i64)> {
    let mut leading = vec![(chosen, top_score)];
    for (index, points) in scored.filter(|(index, _)| *index != chosen) {
        let place = 1 + leading[1..].partition_point(|(_, other)| *other >= points);
        if place < REMEMBERED_SCORES {
            leading.insert(place, (index, points));
            leading.truncate(REMEMBERED_SCORES);
        }
    }
    leading
}

impl Rotation {
    /// Picks one of several equals, a different one each time (a xorshift is random enough to spread pods).
    fn pick(&mut self, count: usize) -> usize {
        if count <= 1 {
            return 0;
        }
        let mut state = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state ^= state >> 30;
        state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state ^= state >> 27;
        self.random = state;
        usize::try_from(state % count as u64).unwrap_or(0)
    }
}

/// Records which plugin gave a node which score, to explain the decision later.
fn trace_scores(pod: &PodState, cluster: &Cluster, by: &Enabled, feasible: &[NodeIndex], scores: &[i64]) {
    if tracing::enabled!(tracing::Level::TRACE) {
        let (plugin, weight) = (by.plugin.name(), by.weight);
        for (index, score) in feasible.iter().zip(scores) {
            let node = cluster.node(*index).name();
            tracing::trace!(pod = &*pod.key, node, plugin, score = score * weight, "a plugin scored a node");
        }
    }
}

/// The filters for a pod, and the only nodes to check where some plugin knows them.
type PreparedFilters = (Vec<Box<dyn Filter>>, Option<BTreeSet<String>>);

struct SearchState {
    feasible: Vec<NodeIndex>,
    resolvable: Vec<NodeIndex>,
    evaluated: usize,
    diagnosis: Diagnosis,
    error: Option<String>,
}

impl SearchState {
    fn new(all: usize) -> Self {
        SearchState {
            feasible: Vec::new(),
            resolvable: Vec::new(),
            evaluated: 0,
            diagnosis: Diagnosis::new(all),
            error: None,
        }
    }

    fn record(&mut self, index: NodeIndex, rejection: Option<Rejection>) {
        self.evaluated += 1;
        match rejection {
            None => self.feasible.push(index),
            Some(rejection) if rejection.is_error => self.error = Some(rejection.reasons.join(", ")),
            Some(rejection) => {
                self.diagnosis.add(&rejection);
                if !rejection.unresolvable {
                    self.resolvable.push(index);
                }
            }
        }
    }
}

/// Checks a node as it is.
fn check(
    index: NodeIndex,
    cluster: &Cluster,
    nominations: &Nominations,
    pod: &Arc<PodState>,
    filters: &[Box<dyn Filter>],
) -> Option<Rejection> {
    let node = cluster.node(index);
    check_view(&View { cluster, index, node, removed: &[], added: &[] }, nominations, pod, filters)
}

/// Checks a node with the view's changes and, where pods of the same or higher priority are nominated for it, as it would
/// be with them too: they may come, or may not.
pub fn check_view(
    view: &View<'_>,
    nominations: &Nominations,
    pod: &PodState,
    filters: &[Box<dyn Filter>],
) -> Option<Rejection> {
    if nominations.is_empty() {
        return first_rejection(filters, view);
    }
    let promised = nominations.on(view.node.name(), pod);
    if !promised.is_empty() {
        let mut with = view.node.clone();
        for pod in &promised {
            with.add(Arc::clone(pod));
        }
        let with = View { node: &with, added: &promised, ..*view };
        if let Some(rejection) = first_rejection(filters, &with) {
            return Some(rejection);
        }
    }
    first_rejection(filters, view)
}

fn first_rejection(filters: &[Box<dyn Filter>], view: &View<'_>) -> Option<Rejection> {
    filters.iter().find_map(|filter| filter.check(view))
}

fn rejected(cluster: &Cluster, rejection: Rejection) -> Box<NoFit> {
    let mut diagnosis = Diagnosis::new(cluster.node_count());
    diagnosis.rejected = Some(rejection.reasons.join(", "));
    diagnosis.add_plugin(rejection.plugin);
    Box::new(NoFit { diagnosis, filters: Vec::new(), resolvable: Vec::new(), error: None })
}
