//! Hooks of writes: allocations for a new or changed object of some kinds, and their release.

use async_trait::async_trait;
use knarr_api::status::Status;
use serde_json::Value;

use super::ResourceRequest;

/// What a write holds until it is stored. Dropping it releases everything.
pub trait Reservation: Send + Sync {
    /// Keeps what the stored object uses.
    fn commit(self: Box<Self>);
}

/// Called around writes of all kinds.
#[async_trait]
pub trait WriteHooks: Send + Sync {
    /// Called before a new object is validated.
    async fn before_create(
        &self,
        call: &ResourceRequest<'_>,
        object: &mut Value,
        dry_run: bool,
    ) -> Result<Option<Box<dyn Reservation>>, Status>;

    /// Called before a changed object is validated.
    async fn before_update(
        &self,
        call: &ResourceRequest<'_>,
        object: &mut Value,
        old: &Value,
        dry_run: bool,
    ) -> Result<Option<Box<dyn Reservation>>, Status>;

    /// Called after an object was removed from the store.
    async fn after_delete(&self, call: &ResourceRequest<'_>, object: &Value);
}
