//! What one decision finds out about a pod's claims, and the plan that results for the chosen node.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::ContainerExtendedResourceRequest;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceRequest, ResourceClaim};

use super::conditions::has_conditions;
use super::extended::Extended;
use super::{ResourceClaims, allocation, is_reserved_for};
use crate::cluster::NodeIndex;
use crate::cluster::pod::PodState;
use crate::rejection::Rejection;

/// A request has at most this many alternatives.
const MAX_ALTERNATIVES: usize = 8;

pub struct Cycle {
    pub pod: Arc<PodState>,
    pub claims: Vec<Arc<ResourceClaim>>,
    /// The extended resources of the pod that devices may satisfy.
    pub extended: Option<Extended>,
    nodes: Mutex<HashMap<NodeIndex, Result<NodeAllocation, Rejection>>>,
    /// Allocated claims that some node did not have.
    unavailable: Mutex<BTreeSet<usize>>,
}

/// The allocations on a node.
#[derive(Clone, Debug)]
pub struct NodeAllocation {
    /// Of the claims without an allocation, in their order.
    pub results: Vec<AllocationResult>,
    pub extended: Option<ExtendedPlan>,
}

/// A claim to be created for the extended resources of a pod.
#[derive(Clone, Debug)]
pub struct ExtendedPlan {
    pub claim: ResourceClaim,
    pub allocation: AllocationResult,
    /// Which container's resource is which request.
    pub mappings: Vec<ContainerExtendedResourceRequest>,
}

/// What is to be written before the pod is bound.
#[derive(Clone, Debug, Default)]
pub struct DevicePlan {
    pub claims: Vec<ClaimPlan>,
    pub extended: Option<ExtendedPlan>,
}

#[derive(Clone, Debug)]
pub struct ClaimPlan {
    pub claim: Arc<ResourceClaim>,
    /// None if it is allocated already.
    pub allocation: Option<AllocationResult>,
}

impl DevicePlan {
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.extended.is_none()
    }

    /// Whether the pod may have to wait for its devices before it is bound.
    pub fn waits(&self) -> bool {
        let binds = |result: &AllocationResult| {
            let devices = result.devices.iter().flat_map(|devices| devices.results.iter().flatten());
            devices.into_iter().any(|device| device.binding_conditions.is_some())
        };
        self.claims.iter().any(|plan| has_conditions(&plan.claim) || plan.allocation.as_ref().is_some_and(binds))
            || self.extended.as_ref().is_some_and(|plan| binds(&plan.allocation))
    }
}

impl Cycle {
    pub fn new(pod: Arc<PodState>, claims: Vec<Arc<ResourceClaim>>, extended: Option<Extended>) -> Self {
        Cycle { pod, claims, extended, nodes: Mutex::default(), unavailable: Mutex::default() }
    }

    pub fn is_for(&self, pod: &PodState) -> bool {
        self.pod.uid() == pod.uid()
    }

    pub fn unallocated(&self) -> impl Iterator<Item = &Arc<ResourceClaim>> {
        self.claims.iter().filter(|claim| allocation(claim).is_none())
    }

    pub fn outcome(&self, node: NodeIndex) -> Option<Result<(), Rejection>> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.get(&node).map(|outcome| outcome.as_ref().map(|_| ()).map_err(Clone::clone))
    }

    pub fn remember(&self, node: NodeIndex, outcome: Result<NodeAllocation, Rejection>) {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).insert(node, outcome);
    }

    pub fn add_unavailable(&self, claims: Vec<usize>) {
        self.unavailable.lock().unwrap_or_else(PoisonError::into_inner).extend(claims);
    }

    /// An allocated claim without other users that is not usable where the pod could run.
    pub fn to_deallocate(&self) -> Option<&Arc<ResourceClaim>> {
        let unavailable = self.unavailable.lock().unwrap_or_else(PoisonError::into_inner);
        let claims = unavailable.iter().map(|index| &self.claims[*index]);
        let mut unused = claims.filter(|claim| {
            let users = claim.status.as_ref().and_then(|status| status.reserved_for.as_deref()).unwrap_or_default();
            users.is_empty() || users.len() == 1 && is_reserved_for(claim, self.pod.uid())
        });
        unused.next()
    }

    pub fn has_alternatives(&self) -> bool {
        self.claims.iter().flat_map(|claim| requests(claim)).any(|request| request.first_available.is_some())
    }

    /// How far up in their lists the chosen alternatives are.
    pub fn preference(&self, node: NodeIndex) -> i64 {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Ok(found)) = nodes.get(&node) else { return 0 };
        let mut results = found.results.iter();
        let mut score = 0;
        for claim in &self.claims {
            let Some(allocation) = allocation(claim).or_else(|| results.next()) else { continue };
            let given = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
            let given: BTreeSet<&str> = given.map(|result| result.request.as_str()).collect();
            for request in requests(claim) {
                let alternatives = request.first_available.iter().flatten().enumerate();
                let chosen = alternatives
                    .filter(|(_, choice)| given.contains(format!("{}/{}", request.name, choice.name).as_str()));
                score += chosen.map(|(index, _)| MAX_ALTERNATIVES.saturating_sub(index) as i64).sum::<i64>();
            }
        }
        score
    }

    /// The plan for the chosen node.
    pub fn plan(&self, node: NodeIndex) -> DevicePlan {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let found = nodes.get(&node).and_then(|outcome| outcome.as_ref().ok());
        let mut results = found.iter().flat_map(|found| &found.results);
        let claims = self.claims.iter().map(|claim| ClaimPlan {
            claim: Arc::clone(claim),
            allocation: if allocation(claim).is_none() { results.next().cloned() } else { None },
        });
        DevicePlan { claims: claims.collect(), extended: found.and_then(|found| found.extended.clone()) }
    }
}

impl ResourceClaims {
    /// The plan for a pod on the chosen node. Its allocations count from now on.
    pub fn reserve(&mut self, pod: &PodState, node: NodeIndex) -> DevicePlan {
        let Some(cycle) = self.cycle.take().filter(|cycle| cycle.is_for(pod)) else { return DevicePlan::default() };
        let plan = cycle.plan(node);
        for (claim, allocation) in plan.claims.iter().filter_map(|plan| Some((&plan.claim, plan.allocation.as_ref()?)))
        {
            self.add_pending(claim.metadata.uid.as_deref().unwrap_or_default(), pod.uid(), allocation.clone());
        }
        if let Some(extended) = &plan.extended {
            // The claim gets its UID when it is created.
            self.add_pending(&format!("for {}", pod.uid()), pod.uid(), extended.allocation.clone());
        }
        plan
    }
}

fn requests(claim: &ResourceClaim) -> &[DeviceRequest] {
    claim.spec.devices.as_ref().and_then(|devices| devices.requests.as_deref()).unwrap_or_default()
}
