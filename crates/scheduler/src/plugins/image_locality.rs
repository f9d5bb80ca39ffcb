//! ImageLocality: prefers nodes that have the pod's images, the larger the better, unless few nodes have them.

use std::sync::Arc;

use crate::cluster::images::normalized;
use crate::cluster::node::NodeState;
use crate::cluster::pod::PodState;
use crate::cluster::{Cluster, NodeIndex};
use crate::framework::{MAX_SCORE, Plugin, Scorer};

const MEGABYTE: i64 = 1024 * 1024;
const MIN_SIZE: i64 = 23 * MEGABYTE;
const MAX_SIZE_PER_CONTAINER: i64 = 1000 * MEGABYTE;

pub struct ImageLocality;

struct Locality {
    /// The pod's images with the score of each for a node that has it: its size, scaled by the share of nodes that have it.
    images: Vec<(String, i64)>,
    max: i64,
}

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    fn scorer(&self, pod: &Arc<PodState>, cluster: &mut Cluster, _feasible: &[NodeIndex]) -> Option<Box<dyn Scorer>> {
        let spec = pod.object.spec.as_ref()?;
        let containers = || spec.init_containers.iter().flatten().chain(&spec.containers);
        let of_containers = containers().filter_map(|container| container.image.as_deref());
        let volumes = spec.volumes.iter().flatten();
        let of_volumes =
            volumes.filter_map(|volume| volume.image.as_ref().and_then(|image| image.reference.as_deref()));
        let all = cluster.node_count() as f64;
        let images: Vec<(String, i64)> = of_containers
            .chain(of_volumes)
            .map(normalized)
            .filter_map(|name| {
                let known = cluster.images.get(&name)?;
                Some((name, (known.size as f64 * (known.nodes as f64 / all)) as i64))
            })
            .collect();
        if images.is_empty() {
            // No node has any of them: all would have the same score.
            return None;
        }
        let count = i64::try_from(containers().count()).unwrap_or(1);
        Some(Box::new(Locality { images, max: MAX_SIZE_PER_CONTAINER * count }))
    }
}

impl Scorer for Locality {
    fn score(&self, _index: NodeIndex, node: &NodeState) -> i64 {
        let images = node.images();
        let sum: i64 = self.images.iter().filter(|(name, _)| images.contains(name)).map(|(_, worth)| worth).sum();
        MAX_SCORE * (sum.clamp(MIN_SIZE, self.max) - MIN_SIZE) / (self.max - MIN_SIZE)
    }
}
