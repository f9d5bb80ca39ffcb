//! What can help a pod that fits nowhere.

use k8s_openapi::api::core::v1::Taint;

use crate::cluster::affinity::{Term, tolerates, untolerated};
use crate::cluster::labels::Namespaces;
use crate::cluster::node::NodeState;
use crate::cluster::pod::{PodState, Spread};
use crate::plugins::volume_restrictions;

/// What happened in the cluster that might make room for a waiting pod.
pub enum Happened<'a> {
    NodeAdded(&'a NodeState),
    NodeChanged {
        old: &'a NodeState,
        new: &'a NodeState,
    },
    NodeRemoved(&'a NodeState),
    /// A placed pod came, left, has other labels or asks for less.
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
        /// It is new, or for other zones than before.
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
    ResourceClaims,
}

/// Plugins that look at no taints, and whose pods are tried again all the same when a node loses or gets one: the node was
/// perhaps not fit to be looked at before.
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

/// Whether the event can help a pod that the plugin rejected. Plugins that are not named here may be helped by anything.
pub fn helps(plugin: &str, pod: &PodState, happened: &Happened<'_>, namespaces: &Namespaces) -> bool {
    if let Happened::NodeChanged { old, new } = happened
        && (old.taints() != new.taints() || old.is_unschedulable() && !new.is_unschedulable())
        && WOKEN_BY_TAINTS.contains(&plugin)
    {
        return true;
    }
    match plugin {
        "NodeUnschedulable" => helps_cordoned(pod, happened),
        "TaintToleration" => helps_tainted(pod, happened),
        "NodeName" => matches!(happened, Happened::NodeAdded(_)),
        "NodeAffinity" => helps_affinity(pod, happened),
        "NodePorts" => match happened {
            Happened::NodeAdded(_) => true,
            Happened::PodRemoved(gone) => gone.host_ports.iter().any(|used| {
                let conflicts = |wanted| used.conflicts(wanted);
                pod.host_ports.iter().any(conflicts)
            }),
            _ => false,
        },
        "NodeResourcesFit" => helps_fit(pod, happened),
        "PodTopologySpread" => helps_spread(pod, happened),
        "InterPodAffinity" => helps_inter_pod(pod, happened, namespaces),
        "VolumeRestrictions" => match happened {
            Happened::NodeAdded(_) | Happened::Claim { is_new: true } => true,
            Happened::PodRemoved(gone) => volume_restrictions::held_back_by(pod, gone),
            _ => false,
        },
        "NodeVolumeLimits" => match happened {
            Happened::PodRemoved(gone) => !gone.claims.is_empty(),
            Happened::AttachmentRemoved => pod.claims.iter().any(|claim| !claim.is_ephemeral),
            Happened::CsiNode { is_new, limit_grew } => *is_new || *limit_grew,
            other => matches!(other, Happened::Claim { is_new: true }),
        },
        "VolumeBinding" => match happened {
            Happened::NodeAdded(_) | Happened::Claim { .. } | Happened::Volume { .. } | Happened::CsiDriver => true,
            Happened::NodeChanged { old, new } => old.labels() != new.labels(),
            Happened::StorageClass { is_new, topologies_changed, .. } => *is_new || *topologies_changed,
            Happened::StorageCapacity { grew } => *grew,
            other => matches!(other, Happened::CsiNode { is_new: true, .. }),
        },
        "VolumeZone" => match happened {
            Happened::NodeAdded(_) | Happened::Claim { .. } => true,
            Happened::NodeChanged { old, new } => old.labels() != new.labels(),
            Happened::StorageClass { is_new, waits_for_consumer, .. } => *is_new && *waits_for_consumer,
            other => matches!(other, Happened::Volume { moved: true }),
        },
        "DynamicResources" => match happened {
            Happened::NodeChanged { old, new } => old.labels() != new.labels(),
            other => matches!(other, Happened::NodeAdded(_) | Happened::ResourceClaims | Happened::PodRemoved(_)),
        },
        _ => true,
    }
}

fn helps_cordoned(pod: &PodState, happened: &Happened<'_>) -> bool {
    match happened {
        Happened::NodeAdded(node) => !node.is_unschedulable(),
        Happened::NodeChanged { old, new } => old.is_unschedulable() && !new.is_unschedulable(),
        Happened::Itself { old, new } if tolerations_changed(old, new) => {
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

fn helps_tainted(pod: &PodState, happened: &Happened<'_>) -> bool {
    let keeps_out =
        |node: &NodeState| untolerated(node.taints(), pod.tolerations(), &["NoSchedule", "NoExecute"]).is_some();
    match happened {
        Happened::NodeAdded(node) => !keeps_out(node),
        Happened::NodeChanged { old, new } => keeps_out(old) && !keeps_out(new),
        Happened::Itself { old, new } => tolerations_changed(old, new),
        _ => false,
    }
}

fn tolerations_changed(old: &PodState, new: &PodState) -> bool {
    old.tolerations().len() != new.tolerations().len()
}

fn helps_affinity(pod: &PodState, happened: &Happened<'_>) -> bool {
    match happened {
        Happened::NodeAdded(node) => pod.node_requirement.matches(node),
        Happened::NodeChanged { old, new } => {
            pod.node_requirement.matches(new) && (pod.node_requirement.is_empty() || !pod.node_requirement.matches(old))
        }
        _ => false,
    }
}

fn helps_fit(pod: &PodState, happened: &Happened<'_>) -> bool {
    let wanted = &pod.requests;
    match happened {
        Happened::PodRemoved(_) => true,
        Happened::PodShrank { old, new } => wanted.any(|name| old.requests.get(name) > new.requests.get(name)),
        Happened::Itself { old, new } => new.requests.is_less_somewhere(&old.requests),
        Happened::NodeAdded(node) => fits_empty(pod, node),
        Happened::NodeChanged { old, new } => {
            let grew = new.allocatable.pods > old.allocatable.pods
                || wanted.any(|name| new.allocatable.get(name) > old.allocatable.get(name));
            fits_empty(pod, new) && grew
        }
        _ => false,
    }
}

/// Whether the node would have room if no other pod was on it.
fn fits_empty(pod: &PodState, node: &NodeState) -> bool {
    node.allocatable.pods > 0 && !pod.requests.any(|name| pod.requests.get(name) > node.allocatable.get(name))
}

fn helps_spread(pod: &PodState, happened: &Happened<'_>) -> bool {
    if pod.spread.is_empty() {
        // It was rejected by defaults that its workload decides.
        return !matches!(happened, Happened::Claim { .. } | Happened::Volume { .. });
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
    match happened {
        Happened::PodAdded(other) | Happened::PodRemoved(other) => counts(other),
        Happened::PodRelabelled { old, new } => new.namespace() == pod.namespace() && counts_otherwise(old, new),
        Happened::Itself { old, new } => {
            let honors_taints = hard().any(|constraint| constraint.honors_taints);
            tolerations_changed(old, new) && honors_taints || counts_otherwise(old, new)
        }
        Happened::NodeAdded(node) | Happened::NodeRemoved(node) => has_keys(node),
        Happened::NodeChanged { old, new } => {
            let value = |node: &NodeState, constraint: &Spread| node.labels().get(&constraint.topology_key).cloned();
            let moved = || hard().any(|constraint| value(old, constraint) != value(new, constraint));
            has_keys(old) != has_keys(new) || has_keys(new) && (moved() || old.taints() != new.taints())
        }
        _ => false,
    }
}

fn helps_inter_pod(pod: &PodState, happened: &Happened<'_>, namespaces: &Namespaces) -> bool {
    let all = |terms: &[Term], of: &PodState| {
        !terms.is_empty() && terms.iter().all(|term| term.matches(of.namespace(), of.labels(), namespaces))
    };
    let (near, apart) = (&pod.required_affinity, &pod.required_anti_affinity);
    match happened {
        Happened::NamespaceRelabelled => true,
        Happened::Itself { old, new } => old.labels() != new.labels(),
        Happened::PodAdded(other) => all(near, other),
        Happened::PodRelabelled { old, new } => {
            !all(near, old) && all(near, new) || all(apart, old) && !all(apart, new)
        }
        Happened::PodRemoved(other) => all(apart, other) || all(&other.required_anti_affinity, pod),
        Happened::NodeAdded(node) => {
            !apart.is_empty() || near.iter().any(|term| node.labels().contains_key(&term.key.topology_key))
        }
        Happened::NodeChanged { old, new } => {
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
mod tests {
    use std::sync::Arc;

    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: Value) -> PodState {
        let labels = json!({"app": "x"});
        let mut object =
            json!({"metadata": {"name": "p", "namespace": "n", "labels": labels}, "spec": {"containers": []}});
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        PodState::new(Arc::new(serde_json::from_value(object).unwrap()))
    }

    fn node(labels: Value, spec: Value, cpu: &str) -> NodeState {
        let allocatable = json!({"cpu": cpu, "memory": "1Gi", "pods": "10"});
        let object =
            json!({"metadata": {"name": "n", "labels": labels}, "spec": spec, "status": {"allocatable": allocatable}});
        NodeState::new(Arc::new(serde_json::from_value(object).unwrap()))
    }

    fn container(cpu: &str, port: i32) -> Value {
        let resources = json!({"requests": {"cpu": cpu}});
        json!({"containers": [{"name": "c", "resources": resources, "ports": [{"containerPort": 1, "hostPort": port}]}]})
    }

    #[test]
    fn only_what_can_help_wakes() {
        let (plain, tainted) = (json!({}), json!({"taints": [{"key": "k", "effect": "NoSchedule"}]}));
        let empty = node(json!({}), plain.clone(), "1");
        let ssd = node(json!({"disk": "ssd", "zone": "a"}), plain.clone(), "4");
        let kept = node(json!({"zone": "b"}), tainted, "4");
        let cordoned = node(json!({}), json!({"unschedulable": true}), "4");
        let term = |labels: Value| json!([{"topologyKey": "zone", "labelSelector": {"matchLabels": labels}}]);
        let required = |kind: &str, labels: Value| json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": term(labels)}}});
        let selects = pod(json!({"nodeSelector": {"disk": "ssd"}}));
        let (two, port) = (pod(container("2", 80)), pod(container("0", 81)));
        let near = pod(required("podAffinity", json!({"app": "x"})));
        let apart = pod(required("podAntiAffinity", json!({"app": "x"})));
        let near_none = pod(required("podAffinity", json!({"app": "none"})));
        let any = pod(plain);
        let namespaces = Namespaces::default();
        for (at, (plugin, waiting, happened, wakes)) in [
            ("NodeAffinity", &selects, Happened::NodeAdded(&empty), false),
            ("NodeAffinity", &selects, Happened::NodeAdded(&ssd), true),
            ("NodeAffinity", &selects, Happened::NodeChanged { old: &empty, new: &ssd }, true),
            ("NodeAffinity", &selects, Happened::NodeChanged { old: &ssd, new: &ssd }, false),
            ("TaintToleration", &any, Happened::NodeAdded(&kept), false),
            ("TaintToleration", &any, Happened::NodeChanged { old: &kept, new: &ssd }, true),
            ("NodeUnschedulable", &any, Happened::NodeChanged { old: &cordoned, new: &ssd }, true),
            ("NodeUnschedulable", &any, Happened::NodeAdded(&cordoned), false),
            ("NodeResourcesFit", &two, Happened::NodeAdded(&empty), false),
            ("NodeResourcesFit", &two, Happened::NodeAdded(&ssd), true),
            ("NodeResourcesFit", &two, Happened::NodeChanged { old: &ssd, new: &ssd }, false),
            ("NodeResourcesFit", &two, Happened::NodeChanged { old: &kept, new: &ssd }, true),
            ("NodeResourcesFit", &two, Happened::PodRemoved(&any), true),
            ("NodePorts", &two, Happened::PodRemoved(&port), false),
            ("NodePorts", &two, Happened::PodRemoved(&two), true),
            ("InterPodAffinity", &near, Happened::PodAdded(&any), true),
            ("InterPodAffinity", &near_none, Happened::PodAdded(&any), false),
            ("InterPodAffinity", &apart, Happened::PodRemoved(&any), true),
            ("InterPodAffinity", &any, Happened::PodRemoved(&apart), true),
            ("InterPodAffinity", &any, Happened::PodRemoved(&near), false),
            ("InterPodAffinity", &near, Happened::NodeAdded(&empty), false),
            ("InterPodAffinity", &near, Happened::NodeChanged { old: &empty, new: &ssd }, true),
            ("VolumeBinding", &any, Happened::PodRemoved(&any), false),
            ("Something", &any, Happened::PodRemoved(&any), true),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(helps(plugin, waiting, &happened, &namespaces), wakes, "{plugin}, row {at}");
        }
    }
}
