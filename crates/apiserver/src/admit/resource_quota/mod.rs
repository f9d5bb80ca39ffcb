//! ResourceQuota: what a namespace uses stays within its quotas. A write is charged to every quota it matches before it is
//! stored, by compare-and-set on the quota's status, so that writes side by side cannot exceed it together.

mod check;
mod scope;
mod usage;

use std::sync::Arc;

use async_trait::async_trait;
use knarr_api::status::Status;
use knarr_api::value::Read;
use serde_json::Value;

use super::{Operation, Plugin, Write};
use crate::objects::Objects;
use check::{Charge, charge};

/// A charge is tried again so often when others charge the same quota.
const TRIES: usize = 16;

/// Writes what a quota has used.
#[async_trait]
pub trait QuotaWriter: Send + Sync {
    /// Stores the quota with `status.used` replaced; false when it has changed since it was read.
    async fn write_used(&self, quota: &Value, used: Value) -> Result<bool, Status>;
}

pub struct ResourceQuota {
    writer: Arc<dyn QuotaWriter>,
}

impl ResourceQuota {
    pub fn new(writer: Arc<dyn QuotaWriter>) -> Self {
        ResourceQuota { writer }
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
            _ => false,
        };
        counted && !write.namespace.is_empty()
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn Objects) -> Result<(), Status> {
        // Quotas charged in an earlier round are not charged again.
        let mut charged: Vec<String> = Vec::new();
        for _ in 0..TRIES {
            let quotas = objects.read_all("", "resourcequotas", write.namespace)?;
            let mut contested = false;
            for Charge { quota, used } in charge(write, &quotas)? {
                let name = quota.text(&["metadata", "name"]).to_owned();
                if write.dry_run || charged.contains(&name) {
                    continue;
                }
                if self.writer.write_used(&quota, used).await? {
                    charged.push(name);
                } else {
                    contested = true;
                }
            }
            if !contested {
                return Ok(());
            }
        }
        Err(Status::conflict(
            knarr_api::status::Named { group: "", name: "resourcequotas" },
            "",
            "the quota is being charged by too many others; please try again",
        ))
    }
}
