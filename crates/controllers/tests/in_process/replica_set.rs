//! ReplicaSets and ReplicationControllers: counts, adoption, release, and which pods are deleted first.

use serde_json::{Value, json};

use super::support::kubelet::{Kubelet, Outcome};
use super::support::{Cluster, condition, is_controlled_by, name_of, names, template};

const CONTROLLERS: &[&str] = &["replicaset-controller", "replicationcontroller-controller"];

fn replica_set(replicas: u32) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template("web")}})
}

fn pod(name: &str) -> Value {
    let mut pod = template("web");
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["name"] = name.into();
    pod
}

async fn started(replicas: u32) -> Cluster {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.create(replica_set(replicas)).await;
    cluster.until("ReplicaSet", "web", |web| web["status"]["readyReplicas"] == replicas).await;
    cluster
}

#[tokio::test(start_paused = true)]
async fn deleted_and_failed_pods_are_replaced() {
    let cluster = started(2).await;
    let pods = cluster.list("Pod").await;
    let (deleted, failed) = (name_of(&pods[0]).to_owned(), name_of(&pods[1]).to_owned());
    cluster.delete("Pod", &deleted, "Background").await;
    cluster.patch_status("Pod", &failed, json!({"phase": "Failed"})).await;
    let ready = |pods: &[Value]| pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
    let pods =
        cluster.until_list("Pod", |pods| ready(pods) == 2 && !pods.iter().any(|pod| name_of(pod) == deleted)).await;
    assert!(names(&pods).contains(&failed.as_str()), "it is kept for those who want to know why");
    cluster.until("ReplicaSet", "web", |web| web["status"]["readyReplicas"] == 2).await;
}

#[tokio::test(start_paused = true)]
async fn matching_orphans_are_adopted_and_relabelled_pods_released() {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.create(pod("orphan")).await;
    cluster.create(replica_set(2)).await;
    let pods =
        cluster.until_list("Pod", |pods| pods.iter().filter(|pod| is_controlled_by(pod, "web")).count() == 2).await;
    assert!(names(&pods).contains(&"orphan"), "{:?}", names(&pods));
    cluster.patch("Pod", "orphan", json!({"metadata": {"labels": {"app": "debug"}}})).await;
    let released = cluster.until("Pod", "orphan", |pod| !is_controlled_by(pod, "web")).await;
    assert!(released["metadata"]["deletionTimestamp"].is_null());
    cluster.until_list("Pod", |pods| pods.iter().filter(|pod| is_controlled_by(pod, "web")).count() == 2).await;
}

/// The pods that a smaller set keeps, by what distinguishes them.
#[tokio::test(start_paused = true)]
async fn a_smaller_set_deletes_the_least_useful_pods() {
    const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
    for (what, kept) in [(json!({"cost": 10}), true), (json!({"cost": -10}), false), (json!({"unready": true}), false)]
    {
        let cluster = started(4).await;
        let chosen = name_of(&cluster.list("Pod").await[1]).to_owned();
        if let Some(cost) = what["cost"].as_i64() {
            let annotation = json!({"metadata": {"annotations": {COST: cost.to_string()}}});
            cluster.patch("Pod", &chosen, annotation).await;
        } else {
            let unready = chosen.clone();
            cluster.set_kubelet(Kubelet::deciding(move |pod| {
                if name_of(pod) == unready { Outcome::Running } else { Outcome::Ready }
            }));
            cluster.until("ReplicaSet", "web", |web| web["status"]["readyReplicas"] == 3).await;
        }
        cluster.until_quiet().await;
        let remaining = if kept { 1 } else { 3 };
        cluster.patch("ReplicaSet", "web", json!({"spec": {"replicas": remaining}})).await;
        let pods = cluster.until_list("Pod", |pods| pods.len() == remaining).await;
        assert_eq!(names(&pods).contains(&chosen.as_str()), kept, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_pods_are_reported_and_created_once_they_are_allowed() {
    let cluster = Cluster::start(CONTROLLERS).await;
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "quota"},
        "spec": {"hard": {"pods": "1"}}});
    cluster.create(quota).await;
    cluster.patch_status("ResourceQuota", "quota", json!({"hard": {"pods": "1"}, "used": {"pods": "0"}})).await;
    cluster.create(replica_set(3)).await;
    let failing = cluster.until("ReplicaSet", "web", |web| condition(web, "ReplicaFailure")["status"] == "True").await;
    assert_eq!(condition(&failing, "ReplicaFailure")["reason"], "FailedCreate");
    cluster.until_quiet().await;
    assert_eq!(cluster.list("Pod").await.len(), 1);
    cluster.delete("ResourceQuota", "quota", "Background").await;
    let whole = cluster.until("ReplicaSet", "web", |web| web["status"]["readyReplicas"] == 3).await;
    assert!(condition(&whole, "ReplicaFailure").is_null(), "{whole}");
}

#[tokio::test(start_paused = true)]
async fn a_replication_controller_keeps_its_pods() {
    let cluster = Cluster::start(CONTROLLERS).await;
    let controller = json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "old"},
        "spec": {"replicas": 2, "selector": {"app": "old"}, "template": template("old")}});
    cluster.create(controller).await;
    cluster.until("ReplicationController", "old", |old| old["status"]["readyReplicas"] == 2).await;
    cluster.patch("ReplicationController", "old", json!({"spec": {"replicas": 1}})).await;
    cluster.until("ReplicationController", "old", |old| old["status"]["replicas"] == 1).await;
    // The pod that stops is no longer counted before it is gone.
    cluster.until_list("Pod", |pods| pods.len() == 1).await;
}
