//! A trait over the two kinds that replicate a pod template.

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{
    PodTemplateSpec, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
};
use knarr_client::selector::{self, Selector};

use super::plan::Status;
use crate::ConcurrentSyncs;
use crate::common::requests::{Namespaced, unless_zero};

pub(super) trait Replicated: Namespaced {
    const COMPONENT: &'static str;
    /// As it is named in paths.
    const PLURAL: &'static str;
    const REPORTS_TERMINATING: bool;

    /// How many are synced at once.
    fn syncs(concurrent_syncs: &ConcurrentSyncs) -> usize;

    fn replicas(&self) -> i32;
    fn min_ready_seconds(&self) -> i32;
    fn selector(&self) -> Selector;
    fn template(&self) -> Option<&PodTemplateSpec>;
    fn status(&self) -> Status;
    fn with_status(&self, status: Status) -> Self;
}

impl Replicated for ReplicaSet {
    const COMPONENT: &'static str = "replicaset-controller";
    const PLURAL: &'static str = "replicasets";
    const REPORTS_TERMINATING: bool = true;

    fn syncs(concurrent_syncs: &ConcurrentSyncs) -> usize {
        concurrent_syncs.of("concurrent-replicaset-syncs")
    }

    fn replicas(&self) -> i32 {
        self.spec.as_ref().map_or(1, |spec| spec.replicas.unwrap_or(1))
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().map_or(0, |spec| spec.min_ready_seconds.unwrap_or(0))
    }

    fn selector(&self) -> Selector {
        // The API server accepts no invalid selector.
        self.spec.as_ref().and_then(|spec| selector::of(&spec.selector).ok()).unwrap_or_else(Selector::nothing)
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn status(&self) -> Status {
        let status = self.status.clone().unwrap_or_default();
        Status {
            replicas: status.replicas,
            fully_labeled: status.fully_labeled_replicas.unwrap_or(0),
            ready: status.ready_replicas.unwrap_or(0),
            available: status.available_replicas.unwrap_or(0),
            terminating: status.terminating_replicas,
            observed_generation: status.observed_generation.unwrap_or(0),
            conditions: status.conditions.unwrap_or_default(),
        }
    }

    fn with_status(&self, status: Status) -> Self {
        let status = ReplicaSetStatus {
            replicas: status.replicas,
            fully_labeled_replicas: unless_zero(status.fully_labeled),
            ready_replicas: unless_zero(status.ready),
            available_replicas: unless_zero(status.available),
            terminating_replicas: status.terminating,
            observed_generation: Some(status.observed_generation),
            conditions: (!status.conditions.is_empty()).then_some(status.conditions),
        };
        Self { status: Some(status), ..self.clone() }
    }
}

impl Replicated for ReplicationController {
    const COMPONENT: &'static str = "replication-controller";
    const PLURAL: &'static str = "replicationcontrollers";
    const REPORTS_TERMINATING: bool = false;

    fn syncs(concurrent_syncs: &ConcurrentSyncs) -> usize {
        concurrent_syncs.of("concurrent-rc-syncs")
    }

    fn replicas(&self) -> i32 {
        self.spec.as_ref().map_or(1, |spec| spec.replicas.unwrap_or(1))
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().map_or(0, |spec| spec.min_ready_seconds.unwrap_or(0))
    }

    fn selector(&self) -> Selector {
        self.spec.as_ref().and_then(|spec| spec.selector.as_ref()).map_or_else(Selector::nothing, Selector::from_labels)
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn status(&self) -> Status {
        let status = self.status.clone().unwrap_or_default();
        let condition = |condition: ReplicationControllerCondition| ReplicaSetCondition {
            type_: condition.type_,
            status: condition.status,
            last_transition_time: condition.last_transition_time,
            reason: condition.reason,
            message: condition.message,
        };
        Status {
            replicas: status.replicas,
            fully_labeled: status.fully_labeled_replicas.unwrap_or(0),
            ready: status.ready_replicas.unwrap_or(0),
            available: status.available_replicas.unwrap_or(0),
            terminating: None,
            observed_generation: status.observed_generation.unwrap_or(0),
            conditions: status.conditions.unwrap_or_default().into_iter().map(condition).collect(),
        }
    }

    fn with_status(&self, status: Status) -> Self {
        let condition = |condition: ReplicaSetCondition| ReplicationControllerCondition {
            type_: condition.type_,
            status: condition.status,
            last_transition_time: condition.last_transition_time,
            reason: condition.reason,
            message: condition.message,
        };
        let conditions: Vec<_> = status.conditions.into_iter().map(condition).collect();
        let status = ReplicationControllerStatus {
            replicas: status.replicas,
            fully_labeled_replicas: unless_zero(status.fully_labeled),
            ready_replicas: unless_zero(status.ready),
            available_replicas: unless_zero(status.available),
            observed_generation: Some(status.observed_generation),
            conditions: (!conditions.is_empty()).then_some(conditions),
        };
        Self { status: Some(status), ..self.clone() }
    }
}
