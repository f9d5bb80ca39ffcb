//! Devices: what drivers offer in ResourceSlices, what claims hold, and which devices a claim gets on a node.
//!
//! [`Inventory`] holds the slices, [`InUse`] what is allocated; [`Allocator::allocate`] is a pure function of both, the
//! claims and a node. It is a search with backtracking, so it gets a function that says when to stop.

mod allocator;
mod budget;
mod capacity;
mod constraint;
mod counters;
mod in_use;
mod inventory;
mod node_selector;
mod outcome;
mod pool;
mod request;
mod search;
mod selectors;
mod slice;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

pub use allocator::{AllocationError, Allocator};
pub use budget::Budget;
pub use in_use::InUse;
pub use inventory::Inventory;
pub use selectors::Selectors;

/// A pool of a driver.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId {
    pub driver: Arc<str>,
    pub pool: Arc<str>,
}

impl fmt::Display for PoolId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.driver, self.pool)
    }
}

/// A device of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    pub pool: PoolId,
    pub device: Arc<str>,
}

impl DeviceId {
    pub fn new(driver: &str, pool: &str, device: &str) -> Self {
        DeviceId { pool: PoolId { driver: driver.into(), pool: pool.into() }, device: device.into() }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.pool, self.device)
    }
}
