//! Deployments: rollout, rollback, pause, scaling and deadlines.

use std::time::Duration;

use serde_json::{Value, json};

use super::support::kubelet::{Kubelet, Outcome};
use super::support::{Cluster, condition, name_of, template, text};

const CONTROLLERS: &[&str] = &["deployment-controller", "replicaset-controller"];

fn deployment(replicas: u32, more: Value) -> Value {
    let mut spec =
        json!({"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template("web")});
    for (key, value) in more.as_object().expect("fields") {
        spec[key] = value.clone();
    }
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec})
}

fn image(tag: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": format!("image:{tag}")}]}}}})
}

fn image_of(object: &Value) -> &str {
    let template = &object["spec"]["template"]["spec"];
    let pod = if template.is_null() { &object["spec"] } else { template };
    text(&pod["containers"][0]["image"])
}

/// Whether all pods are of the newest template and ready, and the status says so.
fn is_complete(deployment: &Value) -> bool {
    let (status, replicas) = (&deployment["status"], &deployment["spec"]["replicas"]);
    status["observedGeneration"] == deployment["metadata"]["generation"]
        && status["updatedReplicas"] == *replicas
        && status["replicas"] == *replicas
        && status["availableReplicas"] == *replicas
}

async fn started(replicas: u32, more: Value) -> Cluster {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.create(deployment(replicas, more)).await;
    cluster.until("Deployment", "web", is_complete).await;
    cluster
}

#[tokio::test(start_paused = true)]
async fn a_rollout_replaces_all_pods_and_keeps_the_old_replica_set() {
    let cluster = started(3, json!({})).await;
    cluster.patch("Deployment", "web", image("2")).await;
    let complete = cluster.until("Deployment", "web", is_complete).await;
    assert_eq!(condition(&complete, "Progressing")["reason"], "NewReplicaSetAvailable");
    assert_eq!(complete["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "2");
    let pods = cluster.until_list("Pod", |pods| pods.len() == 3).await;
    assert!(pods.iter().all(|pod| image_of(pod) == "image:2"), "{pods:?}");
    let mut sets: Vec<(String, u64)> = cluster
        .list("ReplicaSet")
        .await
        .iter()
        .map(|set| (image_of(set).to_owned(), set["spec"]["replicas"].as_u64().unwrap()))
        .collect();
    sets.sort();
    assert_eq!(sets, [("image:1".to_owned(), 0), ("image:2".to_owned(), 3)]);
}

/// A rollback is a write of the old template: the old ReplicaSet is used again, with a new revision.
#[tokio::test(start_paused = true)]
async fn a_rollback_scales_the_old_replica_set_up_again() {
    let cluster = started(2, json!({})).await;
    let first = name_of(&cluster.list("ReplicaSet").await[0]).to_owned();
    cluster.patch("Deployment", "web", image("2")).await;
    cluster.until("Deployment", "web", is_complete).await;
    cluster.patch("Deployment", "web", image("1")).await;
    cluster.until("Deployment", "web", is_complete).await;
    let old = cluster.until("ReplicaSet", &first, |set| set["spec"]["replicas"] == 2).await;
    let annotations = &old["metadata"]["annotations"];
    assert_eq!(annotations["deployment.kubernetes.io/revision"], "3");
    assert_eq!(annotations["deployment.kubernetes.io/revision-history"], "1");
    assert_eq!(cluster.list("ReplicaSet").await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_paused_deployment_is_scaled_but_not_rolled_out() {
    let cluster = started(2, json!({})).await;
    cluster.patch("Deployment", "web", json!({"spec": {"paused": true}})).await;
    cluster.patch("Deployment", "web", image("2")).await;
    cluster.patch("Deployment", "web", json!({"spec": {"replicas": 4}})).await;
    let paused = cluster.until("Deployment", "web", |web| web["status"]["readyReplicas"] == 4).await;
    assert_eq!(condition(&paused, "Progressing")["reason"], "DeploymentPaused");
    cluster.until_quiet().await;
    let pods = cluster.list("Pod").await;
    assert!(pods.iter().all(|pod| image_of(pod) == "image:1"), "{pods:?}");
    assert_eq!(cluster.list("ReplicaSet").await.len(), 1);
    cluster.patch("Deployment", "web", json!({"spec": {"paused": false}})).await;
    cluster.until("Deployment", "web", is_complete).await;
    cluster.until_list("Pod", |pods| pods.len() == 4 && pods.iter().all(|pod| image_of(pod) == "image:2")).await;
}

/// Pods that never become ready: how many old ones stay, by strategy.
#[tokio::test(start_paused = true)]
async fn a_stuck_rollout_keeps_as_many_old_pods_as_the_strategy_says() {
    let rolling = |surge: Value, unavailable: Value| {
        json!({"strategy": {"type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}})
    };
    for (strategy, old, new) in [
        (rolling(json!(1), json!(0)), 4, 1),
        (rolling(json!(0), json!(1)), 3, 1),
        (rolling(json!("50%"), json!("25%")), 3, 3),
        (rolling(json!("100%"), json!(0)), 4, 4),
        (json!({"strategy": {"type": "Recreate"}}), 0, 4),
    ] {
        let cluster = started(4, strategy.clone()).await;
        cluster.set_kubelet(Kubelet::deciding(|pod| match image_of(pod) {
            "image:2" => Outcome::Running,
            _ => Outcome::Ready,
        }));
        cluster.patch("Deployment", "web", image("2")).await;
        let counts = |pods: &[Value]| {
            let count = |image: &str| pods.iter().filter(|pod| image_of(pod) == image).count();
            (count("image:1"), count("image:2"))
        };
        cluster.until_list("Pod", |pods| counts(pods) == (old, new)).await;
        cluster.until_quiet().await;
        assert_eq!(counts(&cluster.list("Pod").await), (old, new), "{strategy}");
    }
}

/// Recreate never runs pods of two templates at once, also while the old ones take their time to end.
#[tokio::test(start_paused = true)]
async fn recreate_waits_for_the_end_of_all_old_pods() {
    let cluster = started(3, json!({"strategy": {"type": "Recreate"}})).await;
    cluster.set_kubelet(Kubelet::absent());
    cluster.patch("Deployment", "web", image("2")).await;
    cluster.until_list("Pod", |pods| pods.iter().all(|pod| pod["metadata"]["deletionTimestamp"].is_string())).await;
    cluster.advance(Duration::from_secs(20)).await;
    assert!(cluster.list("Pod").await.iter().all(|pod| image_of(pod) == "image:1"));
    cluster.set_kubelet(Kubelet::ready());
    cluster.until("Deployment", "web", is_complete).await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_passes_is_reported_and_a_late_pod_still_counts() {
    let cluster = started(1, json!({"progressDeadlineSeconds": 60})).await;
    cluster.set_kubelet(Kubelet::deciding(|pod| match image_of(pod) {
        "image:2" => Outcome::Running,
        _ => Outcome::Ready,
    }));
    cluster.patch("Deployment", "web", image("2")).await;
    cluster.until_list("Pod", |pods| pods.len() == 2).await;
    cluster.advance(Duration::from_secs(50)).await;
    let early = cluster.get("Deployment", "web").await.unwrap();
    assert_eq!(condition(&early, "Progressing")["status"], "True", "{early}");
    cluster.advance(Duration::from_secs(20)).await;
    let late = cluster.until("Deployment", "web", |web| condition(web, "Progressing")["status"] == "False").await;
    assert_eq!(condition(&late, "Progressing")["reason"], "ProgressDeadlineExceeded");
    cluster.set_kubelet(Kubelet::ready());
    let done = cluster.until("Deployment", "web", is_complete).await;
    assert_eq!(condition(&done, "Progressing")["reason"], "NewReplicaSetAvailable");
}

#[tokio::test(start_paused = true)]
async fn pods_count_as_available_after_they_were_ready_long_enough() {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.create(deployment(2, json!({"minReadySeconds": 30}))).await;
    let ready = cluster.until("Deployment", "web", |web| web["status"]["readyReplicas"] == 2).await;
    assert_eq!(ready["status"]["availableReplicas"], Value::Null);
    cluster.advance(Duration::from_secs(20)).await;
    let waiting = cluster.get("Deployment", "web").await.unwrap();
    assert_eq!(waiting["status"]["unavailableReplicas"], 2);
    cluster.advance(Duration::from_secs(12)).await;
    cluster.until("Deployment", "web", is_complete).await;
}

#[tokio::test(start_paused = true)]
async fn old_replica_sets_beyond_the_history_limit_are_deleted() {
    let cluster = started(1, json!({"revisionHistoryLimit": 1})).await;
    for tag in ["2", "3", "4"] {
        cluster.patch("Deployment", "web", image(tag)).await;
        cluster.until("Deployment", "web", is_complete).await;
    }
    let sets = cluster.until_list("ReplicaSet", |sets| sets.len() == 2).await;
    let mut images: Vec<&str> = sets.iter().map(image_of).collect();
    images.sort_unstable();
    assert_eq!(images, ["image:3", "image:4"]);
}
