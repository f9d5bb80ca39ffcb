//! Allocates claims on one node.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};

use super::in_use::InUse;
use super::inventory::Inventory;
use super::outcome;
use super::pool::{PoolState, pools_for};
use super::request::{Claim, Classes, Count, MAX_DEVICES, Request, key};
use super::search::Search;
use super::selectors::Selectors;

/// What allocations are decided by.
pub struct Allocator<'a> {
    pub inventory: &'a Inventory,
    pub in_use: &'a InUse,
    pub classes: &'a Classes,
    pub selectors: &'a Selectors,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    #[error("timed out trying to allocate devices")]
    TimedOut,
    /// The node's pools contradict themselves; those of other nodes may be usable.
    #[error("invalid resource pools were encountered")]
    InvalidPools,
    /// Something is wrong with the claim or its class, on every node.
    #[error("{0}")]
    Fatal(String),
}

impl Allocator<'_> {
    /// The devices of each claim, or none if the node does not have them. `stop` ends a search that takes too long;
    /// `share_id` makes the names of shares.
    pub fn allocate(
        &self,
        node: &Node,
        claims: &[&ResourceClaim],
        stop: &dyn Fn() -> bool,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Option<Vec<AllocationResult>>, AllocationError> {
        let pools = pools_for(self.inventory, node);
        let read = claims.iter().map(|claim| Claim::read(claim, self.classes));
        let claims = read.collect::<Result<Vec<_>, _>>().map_err(AllocationError::Fatal)?;
        let mut search = Search::new(node, claims, &pools, (self.in_use, self.selectors), stop);
        for claim in 0..search.claims.len() {
            find_all_devices(&mut search, claim)?;
            let requests = &search.claims[claim].requests;
            let smallest = |alternatives: &Vec<Request<'_>>| {
                alternatives.iter().map(|request| request.count.number()).min().unwrap_or(0)
            };
            let needed = requests.iter().map(smallest).fold(0usize, usize::saturating_add);
            if needed > MAX_DEVICES {
                let key = key(search.claims[claim].object);
                return Err(AllocationError::Fatal(format!(
                    "claim {key}: number of requested devices {needed} exceeds the claim limit of {MAX_DEVICES}"
                )));
            }
        }
        if search.run()? {
            return outcome::results(&search, share_id).map(Some);
        }
        if pools.iter().any(|pool| pool.state == PoolState::Invalid) {
            return Err(AllocationError::InvalidPools);
        }
        Ok(None)
    }
}

/// Determines the devices of requests for all. They are known only if no pool is being updated.
fn find_all_devices(search: &mut Search<'_>, claim: usize) -> Result<(), AllocationError> {
    for request in 0..search.claims[claim].requests.len() {
        for alternative in 0..search.claims[claim].requests[request].len() {
            let asked = &search.claims[claim].requests[request][alternative];
            if !matches!(asked.count, Count::All(_)) {
                continue;
            }
            if let Some(pool) = search.pools.iter().find(|pool| pool.state != PoolState::Usable) {
                let (claim, request) = (key(search.claims[claim].object), asked.own_name());
                let what = if pool.state == PoolState::Invalid { "invalid" } else { "being updated" };
                return Err(AllocationError::Fatal(format!(
                    "claim {claim}, request {request}: asks for all devices, but resource pool {} is currently {what}",
                    pool.id
                )));
            }
            let mut devices = Vec::new();
            for candidate in 0..search.candidates.len() {
                if search.is_selected(claim, request, alternative, candidate)?
                    && search.has_capacity(&search.claims[claim].requests[request][alternative], candidate)
                {
                    devices.push(candidate);
                }
            }
            search.claims[claim].requests[request][alternative].count = Count::All(devices);
        }
    }
    Ok(())
}
