//! Preemption: which pods of lower priority could be evicted so that a pod fits.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use knarr_client::selector::{self, Selector};

use crate::cluster::node::NodeState;
use crate::cluster::placed::PlacedPod;
use crate::cluster::pod::PodState;
use crate::cluster::{Cluster, NodeIndex};
use crate::cycle::{NoFit, check_view};
use crate::diagnosis::nodes_message;
use crate::framework::{Rejection, View};
use crate::nominations::Nominations;

/// Of many candidate nodes, this many are evaluated: a tenth, and at least a hundred.
const MIN_CANDIDATES: usize = 100;
const CANDIDATE_PERCENTAGE: usize = 10;

pub struct Victims {
    pub node: NodeIndex,
    pub pods: Vec<Arc<PlacedPod>>,
    /// How many of them a disruption budget would protect.
    pub violations: usize,
}

pub enum Outcome {
    /// Each of these nodes has victims whose eviction makes the pod fit.
    Candidates(Vec<Victims>),
    /// Preemption does not help; the text goes into the pod's condition.
    Nothing(String),
}

/// The fields of a disruption budget that preemption reads.
pub struct Budget {
    namespace: String,
    selector: Selector,
    allowed: i32,
    disrupted: Vec<String>,
}

impl Budget {
    pub fn of(budget: &PodDisruptionBudget) -> Self {
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let status = budget.status.as_ref();
        Budget {
            namespace: budget.metadata.namespace.clone().unwrap_or_default(),
            selector: selector::of_option(selector).unwrap_or_else(|_| Selector::nothing()),
            allowed: status.map_or(0, |status| status.disruptions_allowed.unwrap_or(0)),
            disrupted: status
                .and_then(|status| status.disrupted_pods.as_ref())
                .map(|pods| pods.keys().cloned().collect())
                .unwrap_or_default(),
        }
    }

    fn protects(&self, pod: &PlacedPod) -> bool {
        pod.namespace() == self.namespace
            && pod.labels().is_some_and(|labels| !labels.is_empty())
            && !self.selector.is_everything()
            && self.selector.matches(pod.labels())
            && !self.disrupted.iter().any(|name| name == pod.name())
    }
}

/// Whether a pod may not preempt others, and why.
pub fn is_ineligible(
    pod: &PodState,
    nominated: Option<&str>,
    no_fit: &NoFit,
    cluster: &Cluster,
) -> Option<&'static str> {
    let policy = pod.object.spec.as_ref().and_then(|spec| spec.preemption_policy.as_deref());
    if policy == Some("Never") {
        return Some("not eligible due to preemptionPolicy=Never.");
    }
    // Preemption is in progress: its victims are terminating. Unless the node would not fit even then.
    let index = cluster.index_of(nominated?)?;
    let is_victim = |placed: &Arc<PlacedPod>| placed.priority() < pod.priority() && placed.leaves_by_preemption();
    let waits = no_fit.resolvable.contains(&index) && cluster.node(index).pods.iter().any(is_victim);
    waits.then_some("not eligible due to a terminating pod on the nominated node.")
}

/// The victims, among the nodes where eviction can help.
pub fn find_victims(
    pod: &Arc<PodState>,
    no_fit: &NoFit,
    cluster: &Cluster,
    nominations: &Nominations,
    budgets: &[Budget],
) -> Outcome {
    let all = cluster.node_count();
    let unhelpful = all - no_fit.resolvable.len();
    let mut candidates = Vec::new();
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let max = (all * CANDIDATE_PERCENTAGE / 100).max(MIN_CANDIDATES);
    for index in &no_fit.resolvable {
        match victims_on(pod, *index, cluster, no_fit, nominations, budgets) {
            Ok(victims) => candidates.push(victims),
            Err(rejection) => {
                for reason in rejection.reasons {
                    *reasons.entry(reason).or_default() += 1;
                }
            }
        }
        // A node that violates no budget is worth a longer search.
        if candidates.len() >= max && candidates.iter().any(|victims| victims.violations == 0) {
            break;
        }
    }
    if !candidates.is_empty() {
        return Outcome::Candidates(candidates);
    }
    if unhelpful > 0 {
        reasons.insert("Preemption is not helpful for scheduling".to_owned(), unhelpful);
    }
    Outcome::Nothing(nodes_message(all, &reasons, None))
}

/// The fewest pods that must be evicted from a node, those with the lowest priority first.
fn victims_on(
    pod: &Arc<PodState>,
    index: NodeIndex,
    cluster: &Cluster,
    no_fit: &NoFit,
    nominations: &Nominations,
    budgets: &[Budget],
) -> Result<Victims, Rejection> {
    let node = cluster.node(index);
    if !node.has_lower(pod.priority()) {
        return Err(Rejection::unresolvable("DefaultPreemption", "No preemption victims found for incoming pod"));
    }
    let mut lower: Vec<Arc<PlacedPod>> =
        node.pods.iter().filter(|placed| placed.priority() < pod.priority()).cloned().collect();
    let mut without: NodeState = node.clone();
    lower.iter().for_each(|pod| without.remove(pod));
    let rejection = |node: &NodeState, removed: &[Arc<PlacedPod>]| {
        check_view(&View { cluster, index, node, removed, added: &[] }, nominations, pod, &no_fit.filters)
    };
    if let Some(rejection) = rejection(&without, &lower) {
        return Err(rejection);
    }
    // The most important are reprieved first; those a budget protects before the others.
    by_importance(&mut lower);
    let (protected, free) = split_by_budget(&lower, budgets);
    let mut removed = lower;
    let mut victims = Vec::new();
    let mut violations = 0;
    for (pods, is_protected) in [(protected, true), (free, false)] {
        for candidate in pods {
            without.add(Arc::clone(&candidate));
            removed.retain(|pod| pod.key != candidate.key);
            if rejection(&without, &removed).is_some() {
                without.remove(&candidate);
                removed.push(Arc::clone(&candidate));
                violations += usize::from(is_protected);
                victims.push(candidate);
            }
        }
    }
    victims.sort_by_key(|pod| (Reverse(pod.priority()), pod.started()));
    Ok(Victims { node: index, pods: victims, violations })
}

/// Higher priority first, then the longer running. Of pods that have not started yet, the newest come first.
fn by_importance(pods: &mut Vec<Arc<PlacedPod>>) {
    let count = pods.len();
    let mut ranked: Vec<(usize, Arc<PlacedPod>)> = pods.drain(..).enumerate().collect();
    ranked.sort_by_key(|(place, pod)| {
        let since = pod.started();
        (Reverse(pod.priority()), since, if since == Timestamp::MAX { count - place } else { *place })
    });
    pods.extend(ranked.into_iter().map(|(_, pod)| pod));
}

fn split_by_budget(pods: &[Arc<PlacedPod>], budgets: &[Budget]) -> (Vec<Arc<PlacedPod>>, Vec<Arc<PlacedPod>>) {
    let mut allowed: Vec<i32> = budgets.iter().map(|budget| budget.allowed).collect();
    pods.iter().cloned().partition(|pod| {
        let mut violates = false;
        for (budget, left) in budgets.iter().zip(&mut allowed) {
            if budget.protects(pod) {
                *left -= 1;
                violates |= *left < 0;
            }
        }
        violates
    })
}

/// Fewest budget violations, then the lowest highest priority, then the smallest sum of priorities, then the fewest pods,
/// then the latest start of the most important one.
pub fn best(candidates: Vec<Victims>) -> Option<Victims> {
    candidates.into_iter().min_by_key(|victims| {
        let highest = victims.pods.iter().map(|pod| pod.priority()).max().unwrap_or(i32::MIN);
        let sum: i64 = victims.pods.iter().map(|pod| i64::from(pod.priority()) + i64::from(i32::MAX) + 1).sum();
        let earliest = victims.pods.iter().filter(|pod| pod.priority() == highest).map(|pod| pod.started()).min();
        (victims.violations, highest, sum, victims.pods.len(), Reverse(earliest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cycle::{ProfilePlugins, Rotation};
    use crate::profile::Profile;
    use serde_json::{Value, json};

    fn object<K: serde::de::DeserializeOwned>(value: Value) -> Arc<K> {
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn pod(name: &str, node: &str, priority: i32) -> Arc<k8s_openapi::api::core::v1::Pod> {
        object(json!({"metadata": {"name": name, "namespace": "n", "uid": name, "labels": {"node": node}},
            "spec": {"priority": priority, "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}))
    }

    #[test]
    fn the_search_goes_on_until_a_node_violates_no_budget() {
        let mut cluster = Cluster::default();
        for number in 0..=MIN_CANDIDATES {
            let node = format!("n{number:03}");
            cluster.set_node(object(
                json!({"metadata": {"name": node}, "status": {"allocatable": {"cpu": "1", "pods": "9"}}}),
            ));
            cluster.set_pod(&pod(&format!("on-{node}"), &node, 0), &node);
        }
        let ready = ProfilePlugins::new(Profile::named("default-scheduler"), 0);
        let (preemptor, nominations) = (Arc::new(PodState::new(pod("p", "", 10))), Nominations::default());
        let found = ready.candidates(&preemptor, &mut cluster, &nominations, &mut Rotation::default());
        let no_fit = found.err().expect("every node is full");
        let last = *no_fit.resolvable.last().unwrap();
        let others = json!({"key": "node", "operator": "NotIn", "values": [cluster.node(last).name()]});
        let budget: Arc<PodDisruptionBudget> = object(json!({"metadata": {"name": "b", "namespace": "n"},
            "spec": {"selector": {"matchExpressions": [others]}}, "status": {"disruptionsAllowed": 0, "currentHealthy": 0,
                "desiredHealthy": 0, "expectedPods": 0}}));
        let Outcome::Candidates(candidates) =
            find_victims(&preemptor, &no_fit, &cluster, &nominations, &[Budget::of(&budget)])
        else {
            panic!("preemption helps");
        };
        let best = best(candidates).unwrap();
        assert_eq!((best.node, best.violations), (last, 0));
    }
}
