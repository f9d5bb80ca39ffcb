//! The default plugins, one file each, in the order in which filters run.

pub mod balanced_allocation;
pub mod dynamic_resources;
pub mod image_locality;
pub mod inter_pod_affinity;
pub mod node_affinity;
pub mod node_declared_features;
pub mod node_name;
pub mod node_ports;
pub mod node_unschedulable;
pub mod resources_fit;
pub mod taint_toleration;
pub mod topology_spread;
pub mod volume_binding;
pub mod volume_limits;
pub mod volume_restrictions;
pub mod volume_zone;

pub use inter_pod_affinity::InterPodAffinity;
pub use resources_fit::{ResourcesFit, Strategy, StrategyKind};
pub use topology_spread::{SpreadDefaults, TopologySpread};

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
    ("DynamicResources", 2),
    ("NodeResourcesBalancedAllocation", 1),
    ("ImageLocality", 1),
    ("NodeDeclaredFeatures", 0),
];
