//! DynamicResources: pods run where their claims are allocated, or where their claims and extended resources can be
//! allocated. What was found for a node is kept for the decision (`cluster::claims::Cycle`), and written when the
//! pod is bound.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::ResourceClaim;

use crate::cluster::affinity::term_matches;
use crate::cluster::claims::{
    BindingState, Cycle, ExtendedPlan, NodeAllocation, allocation, binding_state, extended, is_overdue,
};
use crate::cluster::node::NodeState;
use crate::cluster::pod::PodState;
use crate::cluster::{Cluster, NodeIndex};
use crate::devices::AllocationError;
use crate::framework::{Filter, Plugin, Prepared, Rejection, Scorer, View, stretch};

const NAME: &str = "DynamicResources";

/// Searches for one node end after this long, unless the configuration says otherwise.
pub const FILTER_TIMEOUT: Duration = Duration::from_secs(10);
/// Devices may take this long to be attached to a node.
pub const BINDING_TIMEOUT: Duration = Duration::from_secs(600);

pub struct DynamicResources {
    /// How long the search on one node may take; zero is no limit.
    pub search_timeout: Duration,
    pub binding_timeout: Duration,
}

struct ClaimFilter {
    cycle: Arc<Cycle>,
    search_timeout: Duration,
    binding_timeout: Duration,
}

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self, pod: &Arc<PodState>, cluster: &mut Cluster) -> Prepared {
        cluster.resource_claims.cycle = None;
        let claims = match cluster.resource_claims.of_pod(&pod.object) {
            Ok(claims) => claims,
            Err(reason) => return Prepared::Reject(Rejection::unresolvable(NAME, reason)),
        };
        let extended = extended::of_pod(pod, &cluster.resource_claims);
        if claims.is_empty() && extended.is_none() {
            return Prepared::Nothing;
        }
        let mut waiting = claims.iter().filter(|claim| allocation(claim).is_none());
        if let Some(reason) = waiting.find_map(|claim| cluster.resource_claims.obstacle(claim)) {
            return Prepared::Reject(Rejection::unresolvable(NAME, reason));
        }
        let cycle = Arc::new(Cycle::new(Arc::clone(pod), claims, extended));
        cluster.resource_claims.cycle = Some(Arc::clone(&cycle));
        let (search_timeout, binding_timeout) = (self.search_timeout, self.binding_timeout);
        Prepared::Filter(Box::new(ClaimFilter { cycle, search_timeout, binding_timeout }))
    }

    fn scorer(&self, pod: &Arc<PodState>, cluster: &mut Cluster, _feasible: &[NodeIndex]) -> Option<Box<dyn Scorer>> {
        let cycle = cluster.resource_claims.cycle.as_ref().filter(|cycle| cycle.is_for(pod))?;
        cycle.has_alternatives().then(|| Box::new(AlternativeScore(Arc::clone(cycle))) as Box<dyn Scorer>)
    }
}

/// Nodes where a claim gets a device that it prefers score higher.
struct AlternativeScore(Arc<Cycle>);

impl Scorer for AlternativeScore {
    fn score(&self, index: NodeIndex, _node: &NodeState) -> i64 {
        self.0.preference(index)
    }

    fn normalize(&self, scores: &mut [i64]) {
        stretch(scores, false);
    }
}

impl Filter for ClaimFilter {
    fn check(&self, view: &View<'_>) -> Option<Rejection> {
        // Pods on the node do not matter, so the outcome is the same for every view of it.
        if let Some(known) = self.cycle.outcome(view.index) {
            return known.err();
        }
        let outcome = self.evaluate(view);
        let rejection = outcome.as_ref().err().cloned();
        self.cycle.remember(view.index, outcome);
        rejection
    }
}

impl ClaimFilter {
    fn evaluate(&self, view: &View<'_>) -> Result<NodeAllocation, Rejection> {
        let reject = |reason: &str| Rejection::unresolvable(NAME, reason);
        let claims = &view.cluster.resource_claims;
        let extended = match &self.cycle.extended {
            Some(extended) => extended.on_node(&self.cycle.pod, view.node, claims).map_err(reject)?,
            None => None,
        };
        let mut unavailable = Vec::new();
        for (index, claim) in self.cycle.claims.iter().enumerate() {
            let Some(allocation) = allocation(claim) else { continue };
            let is_here =
                |selector: &NodeSelector| selector.node_selector_terms.iter().any(|term| term_matches(term, view.node));
            let is_usable = allocation.node_selector.as_ref().is_none_or(is_here);
            let is_ready = match binding_state(claim) {
                BindingState::Ready => true,
                BindingState::Waiting => !is_overdue(claim, self.binding_timeout, claims.now),
                BindingState::Failed(_) => false,
            };
            if !is_usable || !is_ready {
                unavailable.push(index);
            }
        }
        let own = extended.as_ref().map(|extended| &extended.claim);
        let wanted: Vec<&ResourceClaim> = self.cycle.unallocated().map(|claim| &**claim).chain(own).collect();
        let mut found = if wanted.is_empty() { Vec::new() } else { self.allocate(view, &wanted)? };
        if !unavailable.is_empty() {
            self.cycle.add_unavailable(unavailable);
            return Err(reject("resourceclaim not available on the node"));
        }
        let extended = extended.and_then(|extended| {
            let allocation = found.pop()?;
            Some(ExtendedPlan { claim: extended.claim, mappings: extended.mappings, allocation })
        });
        Ok(NodeAllocation { results: found, extended })
    }

    fn allocate(
        &self,
        view: &View<'_>,
        claims: &[&ResourceClaim],
    ) -> Result<Vec<k8s_openapi::api::resource::v1::AllocationResult>, Rejection> {
        let budget = &view.cluster.resource_claims.budget;
        let started = Instant::now();
        let limit = budget.limit(self.search_timeout, started);
        let stop = || limit.is_some_and(|limit| started.elapsed() >= limit);
        let mut share_id = || uuid::Uuid::new_v4().to_string();
        let found = view.cluster.resource_claims.allocator().allocate(view.node.object(), claims, &stop, &mut share_id);
        budget.spend(started.elapsed());
        match found {
            Ok(Some(found)) => Ok(found),
            Ok(None) => Err(Rejection::unresolvable(NAME, "cannot allocate all claims")),
            Err(error @ AllocationError::InvalidPools) => Err(Rejection::unresolvable(NAME, error.to_string())),
            Err(error @ AllocationError::TimedOut) => {
                let node = view.node.name();
                Err(Rejection::error(NAME, format!("running \"{NAME}\" filter plugin: node {node}: {error}")))
            }
            Err(AllocationError::Fatal(what)) => {
                Err(Rejection::error(NAME, format!("running \"{NAME}\" filter plugin: {what}")))
            }
        }
    }
}
