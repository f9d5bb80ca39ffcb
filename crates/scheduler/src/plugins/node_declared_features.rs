//! NodeDeclaredFeatures: pods that need a feature of the kubelet run on nodes that declare it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, PodSpec};

use crate::cluster::Cluster;
use crate::cluster::node::NodeState;
use crate::cluster::pod::PodState;
use crate::framework::{Filter, Plugin, Prepared, Rejection, View};

const NAME: &str = "NodeDeclaredFeatures";

pub struct NodeDeclaredFeatures;

struct Required(Vec<&'static str>);

impl Plugin for NodeDeclaredFeatures {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self, pod: &Arc<PodState>, _cluster: &mut Cluster) -> Prepared {
        let required = required_features(pod);
        if required.is_empty() { Prepared::Nothing } else { Prepared::Filter(Box::new(Required(required))) }
    }
}

impl Filter for Required {
    fn check(&self, view: &View<'_>) -> Option<Rejection> {
        let declared = declared_features(view.node);
        let is_declared = |feature: &&str| declared.iter().any(|own| own == feature);
        let fits = self.0.iter().all(is_declared);
        (!fits).then(|| Rejection::unresolvable(NAME, "node(s) didn't match Pod's required features"))
    }
}

pub fn declared_features(node: &NodeState) -> &[String] {
    let status = node.object().status.as_ref();
    status.and_then(|status| status.declared_features.as_deref()).unwrap_or_default()
}

/// The features that a pod needs on its node.
pub fn required_features(pod: &PodState) -> Vec<&'static str> {
    let Some(spec) = &pod.object.spec else { return Vec::new() };
    let features = [
        ("RestartAllContainersOnContainerExits", restarts_all(spec)),
        ("UserNamespacesHostNetworkSupport", spec.host_network == Some(true) && spec.host_users == Some(false)),
    ];
    features.into_iter().filter(|(_, is_needed)| *is_needed).map(|(feature, _)| feature).collect()
}

fn restarts_all(spec: &PodSpec) -> bool {
    let restarts = |container: &Container| {
        container.restart_policy_rules.iter().flatten().any(|rule| rule.action == "RestartAllContainers")
    };
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(restarts)
}
