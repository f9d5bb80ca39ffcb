//! The devices that a search chooses from.

use std::sync::Arc;

use k8s_openapi::api::resource::v1 as api;

use crate::devices::slice::{Device, Slice};

/// A device of a usable pool.
#[derive(Clone, Copy)]
pub struct Candidate<'a> {
    pub pool: usize,
    pub slice: &'a Arc<Slice>,
    index: usize,
}

impl<'a> Candidate<'a> {
    pub fn new(pool: usize, slice: &'a Arc<Slice>, index: usize) -> Self {
        Candidate { pool, slice, index }
    }

    pub fn device(&self) -> &'a Device {
        &self.slice.devices[self.index]
    }

    pub fn api(&self) -> &'a api::Device {
        self.slice.device(self.index)
    }

    pub fn is_shareable(&self) -> bool {
        self.api().allow_multiple_allocations == Some(true)
    }

    /// Whether the other differs only in its name. Shares of a device differ in what is left of it.
    pub fn is_like(&self, other: &Candidate<'_>) -> bool {
        self.device().likeness == other.device().likeness
            && self.pool == other.pool
            && !self.is_shareable()
            && self.slice.object.spec.node_name == other.slice.object.spec.node_name
            && self.slice.object.spec.node_selector == other.slice.object.spec.node_selector
    }
}
