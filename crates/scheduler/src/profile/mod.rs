//! A profile: which plugins run, in which order, with which weights and arguments; and the plugin instances built from it.

use std::time::Duration;

use k8s_openapi::api::core::v1::NodeAffinity;

use crate::framework::Plugin;
use crate::plugins::{
    DEFAULTS, InterPodAffinity, ResourcesFit, SpreadDefaults, Strategy, TopologySpread, balanced_allocation,
    dynamic_resources, image_locality, node_affinity, node_declared_features, node_name, node_ports,
    node_unschedulable, taint_toleration, volume_binding, volume_limits, volume_restrictions, volume_zone,
};

/// The settings of one scheduler name.
#[derive(Clone, Debug)]
pub struct Profile {
    pub scheduler_name: String,
    pub percentage_of_nodes_to_score: Option<u32>,
    pub fit: Strategy,
    pub added_affinity: Option<NodeAffinity>,
    pub spread_defaults: SpreadDefaults,
    pub hard_pod_affinity_weight: i64,
    pub ignores_preferred_of_others: bool,
    pub balanced_resources: Vec<String>,
    /// The plugins that filter, in their order.
    pub filters: Vec<String>,
    /// The plugins that score, with their weights.
    pub scores: Vec<(String, i64)>,
    /// Whether pods may displace others of lower priority.
    pub preempts: bool,
    /// Whether claims that keep a pod from fitting may be deallocated.
    pub frees_claims: bool,
    /// How long the search for devices on a node may take; zero is no limit.
    pub device_search_timeout: Duration,
    /// How long devices may take to become ready for a pod.
    pub device_binding_timeout: Duration,
}

impl Profile {
    /// The default profile under a scheduler name.
    pub fn named(name: &str) -> Self {
        Profile {
            scheduler_name: name.to_owned(),
            percentage_of_nodes_to_score: None,
            fit: Strategy::default(),
            added_affinity: None,
            spread_defaults: SpreadDefaults::System,
            hard_pod_affinity_weight: 1,
            ignores_preferred_of_others: false,
            balanced_resources: vec!["cpu".into(), "memory".into()],
            filters: DEFAULTS.iter().map(|(name, _)| (*name).to_owned()).collect(),
            scores: DEFAULTS.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect(),
            preempts: true,
            frees_claims: true,
            device_search_timeout: dynamic_resources::FILTER_TIMEOUT,
            device_binding_timeout: dynamic_resources::BINDING_TIMEOUT,
        }
    }
}

/// A plugin with its settings from a profile.
pub struct Enabled {
    pub plugin: Box<dyn Plugin>,
    pub filters: bool,
    /// 0 when it does not score.
    pub weight: i64,
}

/// Builds a profile's plugins: those that filter in their order, then those that only score.
pub fn build_plugins(profile: &Profile) -> Vec<Enabled> {
    let score_only = profile.scores.iter().map(|(name, _)| name).filter(|name| !profile.filters.contains(*name));
    let names = profile.filters.iter().chain(score_only);
    let enable = |name: &String| {
        let weight = profile.scores.iter().find(|(own, _)| own == name).map_or(0, |(_, weight)| *weight);
        Some(Enabled { plugin: plugin(name, profile)?, filters: profile.filters.contains(name), weight })
    };
    names.filter_map(enable).collect()
}

fn plugin(name: &str, profile: &Profile) -> Option<Box<dyn Plugin>> {
    Some(match name {
        "NodeUnschedulable" => Box::new(node_unschedulable::NodeUnschedulable),
        "NodeName" => Box::new(node_name::NodeName),
        "TaintToleration" => Box::new(taint_toleration::TaintToleration),
        "NodeAffinity" => Box::new(node_affinity::NodeAffinity { added: profile.added_affinity.clone() }),
        "NodePorts" => Box::new(node_ports::NodePorts),
        "NodeResourcesFit" => Box::new(ResourcesFit { strategy: profile.fit.clone() }),
        "VolumeRestrictions" => Box::new(volume_restrictions::VolumeRestrictions),
        "NodeVolumeLimits" => Box::new(volume_limits::VolumeLimits),
        "VolumeBinding" => Box::new(volume_binding::VolumeBinding),
        "VolumeZone" => Box::new(volume_zone::VolumeZone),
        "DynamicResources" => Box::new(dynamic_resources::DynamicResources {
            search_timeout: profile.device_search_timeout,
            binding_timeout: profile.device_binding_timeout,
        }),
        "NodeDeclaredFeatures" => Box::new(node_declared_features::NodeDeclaredFeatures),
        "PodTopologySpread" => Box::new(TopologySpread { defaults: profile.spread_defaults.clone() }),
        "InterPodAffinity" => Box::new(InterPodAffinity {
            hard_weight: profile.hard_pod_affinity_weight,
            ignores_preferred_of_others: profile.ignores_preferred_of_others,
        }),
        "NodeResourcesBalancedAllocation" => {
            Box::new(balanced_allocation::BalancedAllocation { resources: profile.balanced_resources.clone() })
        }
        "ImageLocality" => Box::new(image_locality::ImageLocality),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
