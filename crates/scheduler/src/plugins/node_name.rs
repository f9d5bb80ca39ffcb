//! NodeName: a pod that names its node runs there or nowhere.

use std::sync::Arc;

use crate::cluster::Cluster;
use crate::cluster::pod::PodState;
use crate::framework::{Filter, Plugin, Prepared, Rejection, View};

const NAME: &str = "NodeName";

pub struct NodeName;

struct Named(String);

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self, pod: &Arc<PodState>, _cluster: &mut Cluster) -> Prepared {
        match pod.object.spec.as_ref().and_then(|spec| spec.node_name.clone()).filter(|name| !name.is_empty()) {
            Some(name) => Prepared::Filter(Box::new(Named(name))),
            None => Prepared::Nothing,
        }
    }
}

impl Filter for Named {
    fn check(&self, view: &View<'_>) -> Option<Rejection> {
        (view.node.name() != self.0)
            .then(|| Rejection::unresolvable(NAME, "node(s) didn't match the requested node name"))
    }
}
