//! Horizontal pod autoscalers: proportional scaling, stabilization, and targets without metrics or replicas.

use std::time::Duration;

use serde_json::{Value, json};

use super::support::{Cluster, condition, template};

const CONTROLLERS: &[&str] =
    &["horizontal-pod-autoscaler-controller", "deployment-controller", "replicaset-controller"];

/// A Deployment whose pods request 100m, and an autoscaler that aims at 50 % of that with two to six replicas.
async fn with_replicas(replicas: u32) -> Cluster {
    let cluster = Cluster::start(CONTROLLERS).await;
    let mut template = template("web");
    template["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "100m"}});
    let spec = json!({"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template});
    cluster
        .create(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}))
        .await;
    cluster
        .until("Deployment", "web", |web| web["status"]["readyReplicas"].as_u64().unwrap_or(0) == u64::from(replicas))
        .await;
    // Pods are measured once they have been ready for a while.
    cluster.advance(Duration::from_secs(30)).await;
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let metric = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}});
    let spec = json!({"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 6, "metrics": [metric]});
    cluster
        .create(json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"}, "spec": spec}))
        .await;
    cluster
}

async fn replicas(cluster: &Cluster) -> u64 {
    cluster.get("Deployment", "web").await.unwrap()["spec"]["replicas"].as_u64().unwrap()
}

/// The replicas some syncs after a change of usage, from three.
#[tokio::test(start_paused = true)]
async fn replicas_follow_the_usage_within_limits_and_tolerance() {
    for (usage, expected) in [(50, 3), (54, 3), (65, 4), (100, 6), (900, 6)] {
        let cluster = with_replicas(3).await;
        cluster.set_usage(Some(usage));
        cluster.advance(Duration::from_secs(20)).await;
        let found = cluster
            .until("HorizontalPodAutoscaler", "web", |hpa| {
                condition(hpa, "ScalingActive")["status"] == "True" && hpa["status"]["desiredReplicas"] == expected
            })
            .await;
        cluster.until("Deployment", "web", |web| web["spec"]["replicas"] == expected).await;
        let is_limited = if usage == 900 { "True" } else { "False" };
        assert_eq!(condition(&found, "ScalingLimited")["status"], is_limited, "{usage}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_drop_of_usage_is_followed_after_the_stabilization_window() {
    let cluster = with_replicas(5).await;
    cluster.set_usage(Some(50));
    cluster.advance(Duration::from_secs(60)).await;
    cluster.set_usage(Some(10));
    cluster.advance(Duration::from_secs(240)).await;
    assert_eq!(replicas(&cluster).await, 5, "the window is five minutes");
    cluster.advance(Duration::from_secs(120)).await;
    cluster.until("Deployment", "web", |web| web["spec"]["replicas"] == 2).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_changes_without_metrics() {
    let cluster = with_replicas(3).await;
    cluster.advance(Duration::from_secs(60)).await;
    let is_failing = |hpa: &Value| condition(hpa, "ScalingActive")["reason"] == "FailedGetResourceMetric";
    cluster.until("HorizontalPodAutoscaler", "web", is_failing).await;
    assert_eq!(replicas(&cluster).await, 3);
    cluster.set_usage(Some(100));
    cluster.advance(Duration::from_secs(20)).await;
    // It goes on once there are some.
    cluster.until("Deployment", "web", |web| web["spec"]["replicas"] == 6).await;
}

#[tokio::test(start_paused = true)]
async fn a_target_without_replicas_is_left_alone() {
    let cluster = with_replicas(3).await;
    cluster.set_usage(Some(100));
    cluster.patch("Deployment", "web", json!({"spec": {"replicas": 0}})).await;
    cluster.until_list("Pod", <[Value]>::is_empty).await;
    cluster.advance(Duration::from_secs(30)).await;
    let is_disabled = |hpa: &Value| condition(hpa, "ScalingActive")["reason"] == "ScalingDisabled";
    cluster.until("HorizontalPodAutoscaler", "web", is_disabled).await;
    assert_eq!(replicas(&cluster).await, 0);
}
