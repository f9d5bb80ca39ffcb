//! The default plugins, one file each, in the order in which filters run.

mod balanced_allocation;
mod dynamic_resources;
mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_name;
mod node_ports;
mod node_unschedulable;
mod resources_fit;
mod taint_toleration;
mod topology_spread;
pub mod volume_binding;
pub mod volume_limits;
pub mod volume_restrictions;
pub mod volume_zone;

use crate::config::Profile;
use crate::framework::Plugin;

pub use inter_pod_affinity::InterPodAffinity;
pub use resources_fit::{ResourcesFit, Strategy, StrategyKind};
pub use topology_spread::{SpreadDefaults, TopologySpread};

/// A plugin with its settings from a profile.
pub struct Enabled {
    pub plugin: Box<dyn Plugin>,
    pub filters: bool,
    /// 0 when it does not score.
    pub weight: i64,
}

/// Names and default score weights, in filter order.
pub const DEFAULTS: &[(&str, i64)] = &[
    ("NodeUnschedulable", 0),
    ("NodeName", 0),
    ("TaintToleration", 3),
    ("NodeAffinity", 2),
    ("NodePorts", 0),
    ("NodeResourcesFit", 1),
    ("VolumeRestrictions", 0),
    ("NodeVolumeLimits", 0),
    ("VolumeBinding", 0),
    ("VolumeZone", 0),
    ("PodTopologySpread", 2),
    ("InterPodAffinity", 2),
    ("DynamicResources", 0),
    ("NodeResourcesBalancedAllocation", 1),
    ("ImageLocality", 1),
];

/// Builds a profile's plugins: those that filter in their order, then those that only score.
pub fn make(profile: &Profile) -> Vec<Enabled> {
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
        "DynamicResources" => Box::new(dynamic_resources::DynamicResources),
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
