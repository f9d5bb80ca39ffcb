//! DynamicResources: pods with device claims run where their claims are allocated. Unallocated claims keep
//! their pod waiting: this plugin does not allocate devices.

use std::sync::Arc;

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::ResourceClaim;

use crate::cluster::Cluster;
use crate::cluster::affinity::term_matches;
use crate::cluster::pod::PodState;
use crate::framework::{Filter, Plugin, Prepared, Rejection, View};

const NAME: &str = "DynamicResources";

pub struct DynamicResources;

struct Claimed {
    /// Where each allocated claim can be used; `None` is everywhere.
    allocated: Vec<Option<NodeSelector>>,
    has_unallocated: bool,
}

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self, pod: &Arc<PodState>, cluster: &mut Cluster) -> Prepared {
        let claims = match cluster.resource_claims.of_pod(&pod.object) {
            Ok(claims) if claims.is_empty() => return Prepared::Nothing,
            Ok(claims) => claims,
            Err(reason) => return Prepared::Reject(Rejection::unresolvable(NAME, reason)),
        };
        let is_allocated =
            |claim: &ResourceClaim| claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
        let mut waiting = claims.iter().filter(|claim| !is_allocated(claim));
        if let Some(reason) = waiting.find_map(|claim| cluster.resource_claims.obstacle(claim)) {
            return Prepared::Reject(Rejection::unresolvable(NAME, reason));
        }
        let allocations =
            claims.iter().map(|claim| claim.status.as_ref().and_then(|status| status.allocation.as_ref()));
        let mut claimed = Claimed { allocated: Vec::new(), has_unallocated: false };
        for allocation in allocations {
            match allocation {
                Some(allocation) => claimed.allocated.push(allocation.node_selector.clone()),
                None => claimed.has_unallocated = true,
            }
        }
        Prepared::Filter(Box::new(claimed))
    }
}

impl Filter for Claimed {
    fn check(&self, view: &View<'_>) -> Option<Rejection> {
        let is_here =
            |selector: &NodeSelector| selector.node_selector_terms.iter().any(|term| term_matches(term, view.node));
        if !self.allocated.iter().flatten().all(is_here) {
            return Some(Rejection::unresolvable(NAME, "resourceclaim not available on the node"));
        }
        self.has_unallocated.then(|| Rejection::unresolvable(NAME, "cannot allocate all claims"))
    }
}
