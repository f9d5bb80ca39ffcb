//! ResourceQuota: limits what a namespace uses. A write is charged to every matching quota before it is stored, by
//! compare-and-set on the quota's status, so that concurrent writes cannot exceed it together. Writes that wait in one
//! namespace are charged together ([`queue`]).

mod check;
mod limited;
mod queue;
mod scope;
mod usage;

use std::sync::Arc;

use async_trait::async_trait;
use knarr_api::status::Status;
use serde_json::Value;

use super::{Operation, Plugin, Write};
use crate::object_reader::ObjectReader;
use check::{Demand, charge};
pub use limited::LimitedResources;
use queue::Queues;

/// Stores the usage of a quota.
#[async_trait]
pub trait QuotaWriter: Send + Sync {
    /// Stores the quota with `status.used` replaced; false when it has changed since it was read.
    async fn write_used(&self, quota: &Value, used: Value) -> Result<bool, Status>;
}

pub struct ResourceQuota {
    writer: Arc<dyn QuotaWriter>,
    queues: Queues,
    limited: LimitedResources,
}

impl ResourceQuota {
    pub fn new(writer: Arc<dyn QuotaWriter>, limited: LimitedResources) -> Self {
        ResourceQuota { writer, queues: Queues::default(), limited }
    }
}

#[async_trait]
impl Plugin for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        let counted = match (write.operation, write.subresource) {
            (Operation::Create | Operation::Update, "") => true,
            (Operation::Update, "resize") => write.is_part_of("", "pods"),
            (Operation::Update, "status") => write.is_part_of("", "persistentvolumeclaims"),
            _ => false,
        };
        counted && !write.namespace.is_empty()
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let quotas = objects.read_all("", "resourcequotas", write.namespace)?;
        if quotas.is_empty() && self.limited.is_empty() {
            return Ok(());
        }
        let Some(demand) = Demand::of(write) else { return Ok(()) };
        self.limited.check(write, &quotas)?;
        // A write that exceeds a quota or counts towards none need not wait.
        if charge(&demand, &quotas)?.is_empty() || write.dry_run {
            return Ok(());
        }
        self.queues.charge(write.namespace, demand, &*self.writer, objects).await
    }
}
