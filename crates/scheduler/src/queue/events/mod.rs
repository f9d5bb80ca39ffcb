//! Events that can make an unschedulable pod schedulable.

use k8s_openapi::api::core::v1::Taint;
use knarr_client::node_fit::{tolerates, untolerated};

use crate::cluster::affinity::Term;
use crate::cluster::labels::Namespaces;
use crate::cluster::node::NodeState;
use crate::cluster::pod::{PodState, Spread};
use crate::plugins::node_declared_features::{declared_features, required_features};
use crate::plugins::volume_restrictions;

/// An event in the cluster that might make room for a waiting pod.
pub enum ClusterEvent<'a> {
    NodeAdded(&'a NodeState),
    NodeChanged {
        old: &'a NodeState,
        new: &'a NodeState,
    },
    NodeRemoved(&'a NodeState),
    /// A placed pod was added or deleted, its labels changed or its requests shrank.
    PodAdded(&'a PodState),
    PodRemoved(&'a PodState),
    PodRelabelled {
        old: &'a PodState,
        new: &'a PodState,
    },
    PodShrank {
        old: &'a PodState,
        new: &'a PodState,
    },
    /// The waiting pod itself was changed.
    Itself {
        old: &'a PodState,
        new: &'a PodState,
    },
    NamespaceRelabelled,
    /// A claim that the waiting pod uses.
    Claim {
        is_new: bool,
    },
    Volume {
        /// It is new, or its topology changed.
        moved: bool,
    },
    StorageClass {
        is_new: bool,
        waits_for_consumer: bool,
        topologies_changed: bool,
    },
    CsiNode {
        is_new: bool,
        limit_grew: bool,
    },
    CsiDriver,
    StorageCapacity {
        grew: bool,
    },
    AttachmentRemoved,
    /// A claim that the waiting pod uses, or devices that were deallocated.
    ResourceClaim {
        is_new: bool,
    },
    ResourceSlice {
        is_new: bool,
    },
    DeviceClass {
        is_new: bool,
        /// The extended resources that the class satisfies or satisfied.
        resources: &'a [String],
    },
}

impl ClusterEvent<'_> {
    /// Its name in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            ClusterEvent::NodeAdded(_) => "NodeAdd",
            ClusterEvent::NodeChanged { .. } => "NodeUpdate",
            ClusterEvent::NodeRemoved(_) => "NodeDelete",
            ClusterEvent::PodAdded(_) => "AssignedPodAdd",
            ClusterEvent::PodRemoved(_) => "AssignedPodDelete",
            ClusterEvent::PodRelabelled { .. } | ClusterEvent::PodShrank { .. } => "AssignedPodUpdate",
            ClusterEvent::Itself { .. } => "PodUpdate",
            ClusterEvent::NamespaceRelabelled => "NamespaceUpdate",
            ClusterEvent::Claim { is_new: true } => "PersistentVolumeClaimAdd",
            ClusterEvent::Claim { is_new: false } => "PersistentVolumeClaimUpdate",
            ClusterEvent::Volume { .. } => "PersistentVolumeUpdate",
            ClusterEvent::StorageClass { is_new: true, .. } => "StorageClassAdd",
            ClusterEvent::StorageClass { is_new: false, .. } => "StorageClassUpdate",
            ClusterEvent::CsiNode { is_new: true, .. } => "CSINodeAdd",
            ClusterEvent::CsiNode { is_new: false, .. } => "CSINodeUpdate",
            ClusterEvent::CsiDriver => "CSIDriverUpdate",
            ClusterEvent::StorageCapacity { .. } => "CSIStorageCapacityUpdate",
            ClusterEvent::AttachmentRemoved => "VolumeAttachmentDelete",
            ClusterEvent::ResourceClaim { is_new: true } => "ResourceClaimAdd",
            ClusterEvent::ResourceClaim { is_new: false } => "ResourceClaimUpdate",
            ClusterEvent::ResourceSlice { is_new: true } => "ResourceSliceAdd",
            ClusterEvent::ResourceSlice { is_new: false } => "ResourceSliceUpdate",
            ClusterEvent::DeviceClass { is_new: true, .. } => "DeviceClassAdd",
            ClusterEvent::DeviceClass { is_new: false, .. } => "DeviceClassUpdate",
        }
    }
}

/// Plugins that ignore taints, but whose pods are retried when a node's taints change: the node
/// may not have been checked before because of them.
const WOKEN_BY_TAINTS: [&str; 9] = [
    "NodeName",
    "NodeAffinity",
    "NodePorts",
    "NodeResourcesFit",
    "InterPodAffinity",
    "VolumeRestrictions",
    "VolumeBinding",
    "VolumeZone",
    "DynamicResources",
];

/// Whether the event can help a pod that the plugin rejected. Plugins not listed here may be helped by anything.
pub fn helps(plugin: &str, pod: &PodState, on_event: &ClusterEvent<'_>, namespaces: &Namespaces) -> bool {
    if let ClusterEvent::NodeChanged { old, new } = on_event
        && (old.taints() != new.taints() || old.is_unschedulable() && !new.is_unschedulable())
        && WOKEN_BY_TAINTS.contains(&plugin)
    {
        return true;
    }
    match plugin {
        "NodeUnschedulable" => helps_cordoned(pod, on_event),
        "TaintToleration" => helps_tainted(pod, on_event),
        "NodeName" => matches!(on_event, ClusterEvent::NodeAdded(_)),
        "NodeAffinity" => helps_affinity(pod, on_event),
        "NodePorts" => match on_event {
            ClusterEvent::NodeAdded(_) => true,
            ClusterEvent::PodRemoved(gone) => gone.host_ports.iter().any(|used| {
                let conflicts = |required| used.conflicts(required);
                pod.host_ports.iter().any(conflicts)
            }),
            _ => false,
        },
        "NodeResourcesFit" => helps_fit(pod, on_event),
        "PodTopologySpread" => helps_spread(pod, on_event),
        "InterPodAffinity" => helps_inter_pod(pod, on_event, namespaces),
        "VolumeRestrictions" => match on_event {
            ClusterEvent::NodeAdded(_) | ClusterEvent::Claim { is_new: true } => true,
            ClusterEvent::PodRemoved(gone) => volume_restrictions::is_blocked_by(pod, gone),
            _ => false,
        },
        "NodeVolumeLimits" => match on_event {
            ClusterEvent::PodRemoved(gone) => !gone.claims.is_empty(),
            ClusterEvent::AttachmentRemoved => pod.claims.iter().any(|claim| !claim.is_ephemeral),
            ClusterEvent::CsiNode { is_new, limit_grew } => *is_new || *limit_grew,
            other => matches!(other, ClusterEvent::Claim { is_new: true }),
        },
        "VolumeBinding" => match on_event {
            ClusterEvent::NodeAdded(_)
            | ClusterEvent::Claim { .. }
            | ClusterEvent::Volume { .. }
            | ClusterEvent::CsiDriver => true,
            ClusterEvent::NodeChanged { old, new } => old.labels() != new.labels(),
            ClusterEvent::StorageClass { is_new, topologies_changed, .. } => *is_new || *topologies_changed,
            ClusterEvent::StorageCapacity { grew } => *grew,
            other => matches!(other, ClusterEvent::CsiNode { is_new: true, .. }),
        },
        "VolumeZone" => match on_event {
            ClusterEvent::NodeAdded(_) | ClusterEvent::Claim { .. } => true,
            ClusterEvent::NodeChanged { old, new } => old.labels() != new.labels(),
            ClusterEvent::StorageClass { is_new, waits_for_consumer, .. } => *is_new && *waits_for_consumer,
            other => matches!(other, ClusterEvent::Volume { moved: true }),
        },
        "DynamicResources" => match on_event {
            ClusterEvent::NodeAdded(_)
            | ClusterEvent::ResourceClaim { .. }
            | ClusterEvent::ResourceSlice { .. }
            | ClusterEvent::DeviceClass { .. } => true,
            ClusterEvent::NodeChanged { old, new } => {
                old.labels() != new.labels() || old.allocatable != new.allocatable
            }
            ClusterEvent::Itself { old, new } => {
                let claims = |pod: &PodState| pod.object.status.as_ref()?.resource_claim_statuses.clone();
                claims(old) != claims(new)
            }
            _ => false,
        },
        "NodeDeclaredFeatures" => match on_event {
            ClusterEvent::NodeAdded(_) => true,
            ClusterEvent::NodeChanged { old, new } => declared_features(old) != declared_features(new),
            ClusterEvent::Itself { old, new } => required_features(old) != required_features(new),
            _ => false,
        },
        _ => true,
    }
}

fn helps_cordoned(pod: &PodState, on_event: &ClusterEvent<'_>) -> bool {
    match on_event {
        ClusterEvent::NodeAdded(node) => !node.is_unschedulable(),
        ClusterEvent::NodeChanged { old, new } => old.is_unschedulable() && !new.is_unschedulable(),
        ClusterEvent::Itself { old, new } if tolerations_changed(old, new) => {
            let taint = Taint {
                key: "node.kubernetes.io/unschedulable".to_owned(),
                effect: "NoSchedule".to_owned(),
                ..Taint::default()
            };
            pod.tolerations().iter().any(|toleration| tolerates(toleration, &taint))
        }
        _ => false,
    }
}

fn helps_tainted(pod: &PodState, on_event: &ClusterEvent<'_>) -> bool {
    let keeps_out =
        |node: &NodeState| untolerated(node.taints(), pod.tolerations(), &["NoSchedule", "NoExecute"]).is_some();
    match on_event {
        ClusterEvent::NodeAdded(node) => !keeps_out(node),
        ClusterEvent::NodeChanged { old, new } => keeps_out(old) && !keeps_out(new),
        ClusterEvent::Itself { old, new } => tolerations_changed(old, new),
        _ => false,
    }
}

fn tolerations_changed(old: &PodState, new: &PodState) -> bool {
    old.tolerations().len() != new.tolerations().len()
}

fn helps_affinity(pod: &PodState, on_event: &ClusterEvent<'_>) -> bool {
    match on_event {
        ClusterEvent::NodeAdded(node) => pod.node_requirement.matches(node),
        ClusterEvent::NodeChanged { old, new } => {
            pod.node_requirement.matches(new) && (pod.node_requirement.is_empty() || !pod.node_requirement.matches(old))
        }
        _ => false,
    }
}

fn helps_fit(pod: &PodState, on_event: &ClusterEvent<'_>) -> bool {
    let required = &pod.requests;
    match on_event {
        ClusterEvent::PodRemoved(_) => true,
        ClusterEvent::PodShrank { old, new } => required.any(|name| old.requests.get(name) > new.requests.get(name)),
        ClusterEvent::Itself { old, new } => new.requests.is_less_somewhere(&old.requests),
        ClusterEvent::NodeAdded(node) => fits_empty(pod, node),
        ClusterEvent::NodeChanged { old, new } => {
            let grew = new.allocatable.pods > old.allocatable.pods
                || required.any(|name| new.allocatable.get(name) > old.allocatable.get(name));
            fits_empty(pod, new) && grew
        }
        ClusterEvent::DeviceClass { resources, .. } => resources.iter().any(|name| required.get(name) > 0),
        _ => false,
    }
}

/// Whether the node would have room if no other pod was on it.
fn fits_empty(pod: &PodState, node: &NodeState) -> bool {
    // Extended resources that the node does not have at all may be satisfied by devices of a class.
    let lacks = |name: &str| pod.requests.get(name) > node.allocatable.get(name);
    let may_be_device = |name: &str| name.contains('/') && node.allocatable.get(name) == 0;
    node.allocatable.pods > 0 && !pod.requests.any(|name| lacks(name) && !may_be_device(name))
}

fn helps_spread(pod: &PodState, on_event: &ClusterEvent<'_>) -> bool {
    if pod.spread.is_empty() {
        // It was rejected by default constraints, which its workload defines.
        return !matches!(on_event, ClusterEvent::Claim { .. } | ClusterEvent::Volume { .. });
    }
    let hard = || pod.spread.iter().filter(|constraint| constraint.hard);
    let counts = |other: &PodState| {
        other.namespace() == pod.namespace() && hard().all(|constraint| constraint.selector.matches(other.labels()))
    };
    let counts_otherwise = |old: &PodState, new: &PodState| {
        let differs = |constraint: &Spread| {
            constraint.selector.matches(old.labels()) != constraint.selector.matches(new.labels())
        };
        old.labels() != new.labels() && hard().any(differs)
    };
    let has_keys = |node: &NodeState| hard().all(|constraint| node.labels().contains_key(&constraint.topology_key));
    match on_event {
        ClusterEvent::PodAdded(other) | ClusterEvent::PodRemoved(other) => counts(other),
        ClusterEvent::PodRelabelled { old, new } => new.namespace() == pod.namespace() && counts_otherwise(old, new),
        ClusterEvent::Itself { old, new } => {
            let honors_taints = hard().any(|constraint| constraint.honors_taints);
            tolerations_changed(old, new) && honors_taints || counts_otherwise(old, new)
        }
        ClusterEvent::NodeAdded(node) | ClusterEvent::NodeRemoved(node) => has_keys(node),
        ClusterEvent::NodeChanged { old, new } => {
            let value = |node: &NodeState, constraint: &Spread| node.labels().get(&constraint.topology_key).cloned();
            let moved = || hard().any(|constraint| value(old, constraint) != value(new, constraint));
            has_keys(old) != has_keys(new) || has_keys(new) && (moved() || old.taints() != new.taints())
        }
        _ => false,
    }
}

fn helps_inter_pod(pod: &PodState, on_event: &ClusterEvent<'_>, namespaces: &Namespaces) -> bool {
    let all = |terms: &[Term], of: &PodState| {
        !terms.is_empty() && terms.iter().all(|term| term.matches(of.namespace(), of.labels(), namespaces))
    };
    let (near, apart) = (&pod.required_affinity, &pod.required_anti_affinity);
    match on_event {
        ClusterEvent::NamespaceRelabelled => true,
        ClusterEvent::Itself { old, new } => old.labels() != new.labels(),
        ClusterEvent::PodAdded(other) => all(near, other),
        ClusterEvent::PodRelabelled { old, new } => {
            !all(near, old) && all(near, new) || all(apart, old) && !all(apart, new)
        }
        ClusterEvent::PodRemoved(other) => all(apart, other) || all(&other.required_anti_affinity, pod),
        ClusterEvent::NodeAdded(node) => {
            !apart.is_empty() || near.iter().any(|term| node.labels().contains_key(&term.key.topology_key))
        }
        ClusterEvent::NodeChanged { old, new } => {
            let values = |term: &Term| {
                let value = |node: &NodeState| node.labels().get(&term.key.topology_key).cloned();
                (value(old), value(new))
            };
            let joined = |term: &Term| matches!(values(term), (was, Some(is)) if was.as_ref() != Some(&is));
            let left = |term: &Term| matches!(values(term), (Some(was), is) if is.as_ref() != Some(&was));
            near.iter().any(joined) || apart.iter().any(left)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
