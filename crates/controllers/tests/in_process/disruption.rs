//! PodDisruptionBudgets: what they allow, and what evictions take from them.

use serde_json::{Value, json};

use super::support::kubelet::{Kubelet, Outcome};
use super::support::{Cluster, condition, name_of, path, template};

const CONTROLLERS: &[&str] = &["disruption-controller", "deployment-controller", "replicaset-controller"];

fn budget(spec: Value) -> Value {
    let mut spec = spec;
    spec["selector"] = json!({"matchLabels": {"app": "web"}});
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}, "spec": spec})
}

async fn with_replicas(replicas: u32, unready: usize) -> Cluster {
    let cluster = Cluster::start(CONTROLLERS).await;
    let spec = json!({"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template("web")});
    cluster
        .create(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}))
        .await;
    cluster.until("Deployment", "web", |web| web["status"]["readyReplicas"] == replicas).await;
    let chosen: Vec<String> =
        cluster.list("Pod").await.iter().take(unready).map(|pod| name_of(pod).to_owned()).collect();
    let ready = u64::from(replicas) - chosen.len() as u64;
    if !chosen.is_empty() {
        cluster.set_kubelet(Kubelet::deciding(move |pod| {
            if chosen.iter().any(|name| name == name_of(pod)) { Outcome::Running } else { Outcome::Ready }
        }));
        cluster.until("Deployment", "web", |web| web["status"]["readyReplicas"] == ready).await;
    }
    cluster
}

/// Allowed disruptions and desired healthy pods, of five replicas with some unready ones.
#[tokio::test(start_paused = true)]
async fn budgets_allow_what_they_say() {
    for (spec, unready, allowed, desired) in [
        (json!({"minAvailable": 3}), 0, 2, 3),
        (json!({"minAvailable": "50%"}), 0, 2, 3),
        (json!({"minAvailable": "100%"}), 0, 0, 5),
        (json!({"maxUnavailable": 1}), 0, 1, 4),
        (json!({"maxUnavailable": 1}), 1, 0, 4),
        (json!({"maxUnavailable": "40%"}), 1, 1, 3),
        (json!({"maxUnavailable": 0}), 0, 0, 5),
    ] {
        let cluster = with_replicas(5, unready).await;
        cluster.create(budget(spec.clone())).await;
        let found = cluster.until("PodDisruptionBudget", "web", |budget| budget["status"]["expectedPods"] == 5).await;
        let status = &found["status"];
        assert_eq!(
            (status["disruptionsAllowed"].as_u64(), status["desiredHealthy"].as_u64()),
            (Some(allowed), Some(desired)),
            "{spec}"
        );
        let reason = if allowed > 0 { "SufficientPods" } else { "InsufficientPods" };
        assert_eq!(condition(&found, "DisruptionAllowed")["reason"], reason, "{spec}");
    }
}

#[tokio::test(start_paused = true)]
async fn evictions_are_refused_once_the_budget_is_used_up() {
    let cluster = with_replicas(3, 0).await;
    cluster.create(budget(json!({"maxUnavailable": 1}))).await;
    cluster.until("PodDisruptionBudget", "web", |budget| budget["status"]["disruptionsAllowed"] == 1).await;
    // Replacements do not become ready.
    let first: Vec<String> = cluster.list("Pod").await.iter().map(|pod| name_of(pod).to_owned()).collect();
    let old = first.clone();
    cluster.set_kubelet(Kubelet::deciding(move |pod| {
        if old.iter().any(|name| name == name_of(pod)) { Outcome::Ready } else { Outcome::Running }
    }));
    let evict = async |name: &str| {
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
        let at = format!("{}/{name}/eviction", path("Pod", "default"));
        cluster.request("POST", &at, "application/json", &eviction).await.0
    };
    assert_eq!(evict(&first[0]).await, 201);
    assert_eq!(evict(&first[1]).await, 429);
    cluster.until_gone("Pod", &first[0]).await;
    cluster.until_quiet().await;
    assert_eq!(evict(&first[1]).await, 429, "the replacement is not ready");
    cluster.set_kubelet(Kubelet::ready());
    cluster.until("PodDisruptionBudget", "web", |budget| budget["status"]["disruptionsAllowed"] == 1).await;
    assert_eq!(evict(&first[1]).await, 201);
}
