//! What can help a pod that fits nowhere.

/// What happened in the cluster that might make room for a waiting pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    NodeAdded,
    NodeAllocatable,
    NodeLabels,
    NodeTaints,
    /// A placed pod left, or asks for less.
    PodRemoved,
    PodAdded,
    PodLabels,
    Storage,
    Claims,
    ResourceClaims,
    Namespace,
}

/// Whether the event can help a pod that the plugin rejected. Plugins that are not named here may be helped by anything.
pub fn helps(plugin: &str, happened: Happened) -> bool {
    use Happened::{
        Claims, Namespace, NodeAdded, NodeAllocatable, NodeLabels, NodeTaints, PodAdded, PodLabels, PodRemoved,
        ResourceClaims, Storage,
    };
    match plugin {
        "NodeUnschedulable" | "TaintToleration" => matches!(happened, NodeAdded | NodeTaints),
        "NodeName" => matches!(happened, NodeAdded),
        "NodeAffinity" => matches!(happened, NodeAdded | NodeLabels),
        "NodePorts" => matches!(happened, NodeAdded | PodRemoved),
        "NodeResourcesFit" => matches!(happened, NodeAdded | NodeAllocatable | PodRemoved),
        "PodTopologySpread" => {
            matches!(happened, NodeAdded | NodeLabels | NodeTaints | PodRemoved | PodAdded | PodLabels)
        }
        "InterPodAffinity" => {
            matches!(happened, NodeAdded | NodeLabels | PodRemoved | PodAdded | PodLabels | Namespace)
        }
        "VolumeRestrictions" => matches!(happened, NodeAdded | PodRemoved | Claims),
        "NodeVolumeLimits" => matches!(happened, NodeAdded | PodRemoved | Claims | Storage),
        "VolumeBinding" | "VolumeZone" => matches!(happened, NodeAdded | NodeLabels | Claims | Storage),
        "DynamicResources" => matches!(happened, NodeAdded | NodeLabels | ResourceClaims | PodRemoved),
        _ => true,
    }
}
