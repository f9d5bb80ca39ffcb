//! NodeUnschedulable: cordoned nodes accept only pods that tolerate it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Taint;
use knarr_client::node_fit::tolerates;

use crate::cluster::Cluster;
use crate::cluster::pod::PodState;
use crate::framework::{Filter, Plugin, Prepared, Rejection, View};

const NAME: &str = "NodeUnschedulable";

pub struct NodeUnschedulable;

struct Cordoned;

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self, pod: &Arc<PodState>, _cluster: &mut Cluster) -> Prepared {
        let taint = Taint {
            key: "node.kubernetes.io/unschedulable".into(),
            value: None,
            effect: "NoSchedule".into(),
            time_added: None,
        };
        let tolerations = pod.object.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
        if tolerations.into_iter().any(|toleration| tolerates(toleration, &taint)) {
            return Prepared::Nothing;
        }
        Prepared::Filter(Box::new(Cordoned))
    }
}

impl Filter for Cordoned {
    fn check(&self, view: &View<'_>) -> Option<Rejection> {
        view.node.is_unschedulable().then(|| Rejection::unresolvable(NAME, "node(s) were unschedulable"))
    }
}
