//! Sets the annotation that defines how long kubelets cache secrets and config maps: longer in larger clusters.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use knarr_client::{Change, WorkQueue, run_workers};
use kube::Api;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;

use crate::Context;
use crate::common::key::name;
use crate::error::{Error, ignore_not_found};

const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";
/// Range of cluster sizes, and the seconds; ranges overlap so that one node more or less does not flip them.
const STEPS: [(usize, usize, u32); 5] =
    [(0, 100, 0), (90, 500, 15), (450, 1000, 30), (900, 2000, 60), (1800, usize::MAX, 300)];

pub async fn run(context: Context) {
    let nodes = context.informers.of::<Node>();
    nodes.synced().await;
    let step = Arc::new(Mutex::new(step_for(0, nodes.len())));
    let queue: Arc<WorkQueue<String>> = WorkQueue::new();
    let (on_node, all, current) = (queue.clone(), Arc::downgrade(&nodes), step.clone());
    nodes.on_change(move |change| {
        let Some(all) = all.upgrade() else { return };
        {
            // Other nodes are updated when they next change, which is often: a growing cluster does not rewrite all its nodes.
            let mut step = current.lock();
            *step = step_for(*step, all.len());
        }
        if !matches!(change, Change::Deleted(_)) {
            on_node.add(name(&**change.latest()).to_owned());
        }
    });
    run_workers(queue, 2, move |key: String| {
        let (context, node, seconds) = (context.clone(), nodes.get("", &key), STEPS[*step.lock()].2.to_string());
        async move {
            let annotations = node.as_ref().and_then(|node| node.metadata.annotations.as_ref());
            if node.is_none() || annotations.and_then(|all| all.get(ANNOTATION)) == Some(&seconds) {
                return Ok::<(), Error>(());
            }
            let api: Api<Node> = Api::all(context.client.clone());
            let patch = Patch::Strategic(json!({"metadata": {"annotations": {ANNOTATION: seconds}}}));
            ignore_not_found(api.patch(&key, &PatchParams::default(), &patch).await)?;
            Ok(())
        }
    })
    .await;
}

fn step_for(current: usize, nodes: usize) -> usize {
    let mut step = current;
    while nodes > STEPS[step].1 {
        step += 1;
    }
    while nodes < STEPS[step].0 {
        step -= 1;
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_overlap() {
        for (current, nodes, expected) in
            [(0, 5, 0), (0, 100, 0), (0, 101, 1), (1, 95, 1), (1, 89, 0), (0, 5000, 4), (4, 1700, 3)]
        {
            assert_eq!(step_for(current, nodes), expected, "{nodes}");
        }
    }
}
