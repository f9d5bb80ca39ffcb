//! Rules of the core group.

mod component_status;
mod config_map;
pub mod endpoints;
pub mod event;
mod limit_range;
mod namespace;
mod node;
pub mod persistent_volume;
pub mod persistent_volume_claim;
pub mod pod;
pub mod pod_template;
mod replication_controller;
mod resource_quota;
mod secret;
pub mod service;
mod service_account;
pub mod volume;

use crate::KindRules;

/// The rules of a kind of this group.
pub fn rules_of(kind: &str) -> Option<&'static dyn KindRules> {
    Some(match kind {
        "ComponentStatus" => &component_status::ComponentStatus,
        "ConfigMap" => &config_map::ConfigMap,
        "Endpoints" => &endpoints::Endpoints,
        "Event" => &event::Event,
        "LimitRange" => &limit_range::LimitRange,
        "Namespace" => &namespace::Namespace,
        "Node" => &node::Node,
        "PersistentVolume" => &persistent_volume::PersistentVolume,
        "PersistentVolumeClaim" => &persistent_volume_claim::PersistentVolumeClaim,
        "Pod" => &pod::Pod,
        "PodTemplate" => &pod_template::PodTemplate,
        "ReplicationController" => &replication_controller::ReplicationController,
        "ResourceQuota" => &resource_quota::ResourceQuota,
        "Secret" => &secret::Secret,
        "Service" => &service::Service,
        "ServiceAccount" => &service_account::ServiceAccount,
        _ => return None,
    })
}
