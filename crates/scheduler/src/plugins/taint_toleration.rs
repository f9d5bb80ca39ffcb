//! TaintToleration: pods avoid nodes whose taints they do not tolerate, and prefer nodes with fewer PreferNoSchedule taints.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Toleration;
use knarr_client::node_fit::{tolerates, untolerated};

use crate::cluster::node::NodeState;
use crate::cluster::pod::PodState;
use crate::cluster::{Cluster, NodeIndex};
use crate::framework::{Filter, Plugin, Prepared, Rejection, Scorer, View, stretch};

const NAME: &str = "TaintToleration";

pub struct TaintToleration;

struct Tolerations(Vec<Toleration>);

fn tolerations(pod: &PodState) -> Vec<Toleration> {
    pod.object.spec.as_ref().and_then(|spec| spec.tolerations.clone()).unwrap_or_default()
}

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self, pod: &Arc<PodState>, _cluster: &mut Cluster) -> Prepared {
        Prepared::Filter(Box::new(Tolerations(tolerations(pod))))
    }

    fn scorer(&self, pod: &Arc<PodState>, cluster: &mut Cluster, feasible: &[NodeIndex]) -> Option<Box<dyn Scorer>> {
        let mild =
            |index: &NodeIndex| cluster.node(*index).taints().iter().any(|taint| taint.effect == "PreferNoSchedule");
        if !feasible.iter().any(mild) {
            // Every node gets the same full score: it cannot change the choice.
            return None;
        }
        let mut own = tolerations(pod);
        own.retain(|toleration| matches!(toleration.effect.as_deref().unwrap_or_default(), "" | "PreferNoSchedule"));
        Some(Box::new(Tolerations(own)))
    }
}

impl Filter for Tolerations {
    fn check(&self, view: &View<'_>) -> Option<Rejection> {
        let taints = view.node.taints();
        if taints.is_empty() {
            return None;
        }
        untolerated(taints, &self.0, &["NoSchedule", "NoExecute"])
            .map(|_| Rejection::unresolvable(NAME, "node(s) had untolerated taint(s)"))
    }
}

impl Scorer for Tolerations {
    fn score(&self, _index: NodeIndex, node: &NodeState) -> i64 {
        let mild = node.taints().iter().filter(|taint| taint.effect == "PreferNoSchedule");
        let count = mild.filter(|taint| !self.0.iter().any(|own| tolerates(own, taint))).count();
        i64::try_from(count).unwrap_or(i64::MAX)
    }

    fn normalize(&self, scores: &mut [i64]) {
        stretch(scores, true);
    }
}
