//! Indexes of pods, and creating and deleting pods in batches.

use std::future::Future;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use knarr_client::{EventRecorder, Informer, owner};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, Resource};

use super::key::{name, namespace};
use crate::error::{Error, is_not_found, message, namespace_terminating};

/// Index of pods by the uid of their controller.
pub const BY_CONTROLLER: &str = "controller";
/// Index of pods without a controller by namespace.
pub const ORPHANS: &str = "orphans";
/// Index of pods by node.
pub const BY_NODE: &str = "node";

const PARALLEL: usize = 64;

pub fn index_by_controller(pods: &Informer<Pod>) {
    pods.add_index(BY_CONTROLLER, |pod| owner::controller_uid(&pod.metadata).map(str::to_owned).into_iter().collect());
    pods.add_index(ORPHANS, |pod| {
        let orphan = owner::controller_of(&pod.metadata).is_none();
        orphan.then(|| namespace(pod).to_owned()).into_iter().collect()
    });
}

pub fn index_by_node(pods: &Informer<Pod>) {
    pods.add_index(BY_NODE, |pod| knarr_client::pod::node_name(pod).map(str::to_owned).into_iter().collect());
}

/// Creates and deletes pods on behalf of their controllers, and records events about it.
#[derive(Clone)]
pub struct PodControl {
    pub client: Client,
    pub recorder: EventRecorder,
}

impl PodControl {
    pub async fn create<K: Resource<DynamicType = ()>>(&self, owner: &K, pod: &Pod) -> kube::Result<Pod> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), owner.meta().namespace.as_deref().unwrap_or(""));
        let result = api.create(&PostParams::default(), pod).await;
        match &result {
            Ok(created) => self.recorder.normal(owner, "SuccessfulCreate", format!("Created pod: {}", name(created))),
            // In a terminating namespace the event would only be noise.
            Err(error) if namespace_terminating(error) => {}
            Err(error) => self.recorder.warning(owner, "FailedCreate", format!("Error creating: {}", message(error))),
        }
        result
    }

    /// Returns an error when the pod is gone already, since no watch event will come for it.
    pub async fn delete<K: Resource<DynamicType = ()>>(&self, owner: &K, pod: &Pod) -> kube::Result<()> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace(pod));
        match api.delete(name(pod), &DeleteParams::default()).await {
            Ok(_) => {
                self.recorder.normal(owner, "SuccessfulDelete", format!("Deleted pod: {}", name(pod)));
                Ok(())
            }
            Err(error) => {
                if !is_not_found(&error) {
                    self.recorder.warning(owner, "FailedDelete", format!("Error deleting: {}", message(&error)));
                }
                Err(error)
            }
        }
    }
}

/// After a creation failed because the namespace is terminating, no further one is tried.
pub fn creation<T>(result: kube::Result<T>) -> Result<(), Error> {
    match result {
        Ok(_) => Ok(()),
        Err(error) if namespace_terminating(&error) => Err(Error::NamespaceTerminating),
        Err(error) => Err(error.into()),
    }
}

/// The error to report and retry.
pub fn retryable(error: Option<Error>) -> Option<Error> {
    error.filter(|error| !matches!(error, Error::NamespaceTerminating))
}

/// Runs `count` operations in batches of 1, 2, 4, …, so that what fails for all fails early. Returns how many succeeded and
/// the first failure; after a batch with a failure no further batch starts.
pub async fn slow_start<F, W, E>(count: usize, first_batch: usize, act: F) -> (usize, Option<E>)
where
    F: Fn(usize) -> W,
    W: Future<Output = Result<(), E>>,
{
    let mut done = 0;
    let mut succeeded = 0;
    let mut batch = first_batch.max(1).min(count);
    while batch > 0 {
        let results: Vec<Result<(), E>> =
            futures::stream::iter((done..done + batch).map(&act)).buffer_unordered(PARALLEL).collect().await;
        succeeded += results.iter().filter(|result| result.is_ok()).count();
        if let Some(error) = results.into_iter().find_map(Result::err) {
            return (succeeded, Some(error));
        }
        done += batch;
        batch = (batch * 2).min(count - done);
    }
    (succeeded, None)
}

/// Runs the operation on each item concurrently and returns the first failure.
pub async fn each<T, F, W, E>(items: Vec<T>, act: F) -> Result<(), E>
where
    F: Fn(T) -> W,
    W: Future<Output = Result<(), E>>,
{
    let results: Vec<Result<(), E>> =
        futures::stream::iter(items.into_iter().map(act)).buffer_unordered(PARALLEL).collect().await;
    results.into_iter().collect()
}

/// The order in which surplus pods are deleted: the least useful first. `rank` counts the ready pods on the same node.
pub fn deletion_order(
    a: &Pod,
    rank_a: usize,
    b: &Pod,
    rank_b: usize,
    now: k8s_openapi::jiff::Timestamp,
) -> std::cmp::Ordering {
    use knarr_client::pod::{is_ready, max_restarts, node_name, phase, ready_since};
    let phase_order = |pod: &Pod| match phase(pod) {
        "Pending" | "" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    let cost = |pod: &Pod| -> i32 {
        let annotations = pod.metadata.annotations.as_ref();
        annotations
            .and_then(|all| all.get("controller.kubernetes.io/pod-deletion-cost"))
            .map_or(0, |text| text.parse().unwrap_or(0))
    };
    // Ages are compared by magnitude, so that which of many equally old pods goes is left to chance (their uids). Every step
    // compares a pod's own value, so that this is an order however many pods are sorted by it.
    let magnitude = |at: Option<k8s_openapi::jiff::Timestamp>| {
        at.map(|at| now.duration_since(at).as_nanos().max(0).checked_ilog2().map_or(0, |power| power + 1))
    };
    let ready_for = |pod: &Pod| if is_ready(pod) { magnitude(ready_since(pod).map(|at| at.0)) } else { None };
    let exists_for = |pod: &Pod| magnitude(pod.metadata.creation_timestamp.as_ref().map(|at| at.0));
    (node_name(a).is_some().cmp(&node_name(b).is_some()))
        .then_with(|| phase_order(a).cmp(&phase_order(b)))
        .then_with(|| is_ready(a).cmp(&is_ready(b)))
        .then_with(|| cost(a).cmp(&cost(b)))
        .then_with(|| rank_b.cmp(&rank_a))
        .then_with(|| ready_for(a).cmp(&ready_for(b)))
        .then_with(|| max_restarts(b).cmp(&max_restarts(a)))
        .then_with(|| exists_for(a).cmp(&exists_for(b)))
        .then_with(|| super::key::uid(a).cmp(super::key::uid(b)))
}

/// The `count` pods to delete first.
pub fn to_delete(
    pods: &[Arc<Pod>],
    related: &[Arc<Pod>],
    count: usize,
    now: k8s_openapi::jiff::Timestamp,
) -> Vec<Arc<Pod>> {
    use knarr_client::pod::{is_ready, node_name};
    if count >= pods.len() {
        return pods.to_vec();
    }
    let mut ready_on: std::collections::HashMap<&str, usize> = std::collections::HashMap::new();
    for pod in related.iter().filter(|pod| is_ready(pod)) {
        if let Some(node) = node_name(pod) {
            *ready_on.entry(node).or_default() += 1;
        }
    }
    let rank = |pod: &Pod| node_name(pod).and_then(|node| ready_on.get(node)).copied().unwrap_or(0);
    let mut ordered: Vec<Arc<Pod>> = pods.to_vec();
    ordered.sort_by(|a, b| deletion_order(a, rank(a), b, rank(b), now));
    ordered.truncate(count);
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;
    use std::sync::Mutex;

    #[tokio::test]
    async fn batches_double_and_stop_at_a_failure() {
        let tried = Mutex::new(0);
        let limit = |allowed: usize| {
            let tried = &tried;
            move |n: usize| async move {
                *tried.lock().unwrap() += 1;
                if n < allowed { Ok(()) } else { Err("quota") }
            }
        };
        assert_eq!(slow_start(10, 1, limit(100)).await, (10, None));
        *tried.lock().unwrap() = 0;
        assert_eq!(slow_start(1000, 1, limit(2)).await, (2, Some("quota")));
        assert_eq!(*tried.lock().unwrap(), 3, "batches of 1 and 2, then no more");
        assert_eq!(slow_start(0, 1, limit(2)).await, (0, None::<&str>));
    }

    fn pod(name: &str, node: &str, phase: &str, ready: bool, cost: &str) -> Arc<Pod> {
        let value = json!({
            "metadata": {"name": name, "uid": name, "annotations": {"controller.kubernetes.io/pod-deletion-cost": cost}},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}
        });
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn many_pods_that_became_ready_at_few_moments_are_sorted() {
        let pods: Vec<Arc<Pod>> = (0..5000u32)
            .map(|number| {
                let scattered = number.wrapping_mul(2_654_435_761);
                let value = json!({
                    "metadata": {"name": "p", "uid": format!("{scattered:08x}"),
                        "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", scattered % 20)},
                    "spec": {"nodeName": "n", "containers": []},
                    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True",
                        "lastTransitionTime": format!("2026-01-01T00:00:{:02}Z", 20 + scattered % 7)}]}
                });
                Arc::new(serde_json::from_value(value).unwrap())
            })
            .collect();
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        assert_eq!(to_delete(&pods, &pods, 2500, now).len(), 2500, "the order is one: sorting panics otherwise");
    }

    #[test]
    fn the_least_useful_pods_are_deleted_first() {
        let pods = [
            pod("ready-alone", "n1", "Running", true, "0"),
            pod("ready-crowded", "n2", "Running", true, "0"),
            pod("crowd", "n2", "Running", true, "5"),
            pod("cheap", "n3", "Running", true, "-1"),
            pod("unready", "n1", "Running", false, "0"),
            pod("pending", "n1", "Pending", false, "0"),
            pod("unassigned", "", "Pending", false, "0"),
        ];
        let order: Vec<String> = to_delete(&pods, &pods, 6, Timestamp::UNIX_EPOCH)
            .iter()
            .map(|pod| pod.metadata.name.clone().unwrap())
            .collect();
        assert_eq!(order, ["unassigned", "pending", "unready", "cheap", "ready-crowded", "ready-alone"]);
    }
}
