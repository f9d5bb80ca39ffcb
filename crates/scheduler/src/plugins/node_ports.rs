//! NodePorts: a host port is used by one pod at a time.

use std::sync::Arc;

use crate::cluster::Cluster;
use crate::cluster::pod::PodState;
use crate::framework::{Filter, Plugin, Prepared, Rejection, View};

const NAME: &str = "NodePorts";

pub struct NodePorts;

struct PortsFilter(Arc<PodState>);

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        NAME
    }

    fn filter(&self, pod: &Arc<PodState>, _cluster: &mut Cluster) -> Prepared {
        if pod.host_ports.is_empty() {
            return Prepared::Nothing;
        }
        Prepared::Filter(Box::new(PortsFilter(Arc::clone(pod))))
    }
}

impl Filter for PortsFilter {
    fn check(&self, view: &View<'_>) -> Option<Rejection> {
        view.node
            .ports
            .conflict(&self.0.host_ports)
            .then(|| Rejection::resolvable(NAME, "node(s) didn't have free ports for the requested pod ports"))
    }
}
