//! Deleted namespaces are emptied, report what is left, and wait for finalizers. New ones get their account and authorities.

use std::time::Duration;

use serde_json::{Value, json};

use super::support::{Cluster, condition, template};

async fn with_namespace(controllers: &[&str]) -> Cluster {
    let cluster = Cluster::with_settings(
        controllers,
        knarr_controllers::Settings { root_ca: Some("authority".to_owned()), ..Default::default() },
    )
    .await;
    cluster.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})).await;
    cluster
}

fn map(name: &str, finalizers: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "team", "finalizers": finalizers}})
}

#[tokio::test(start_paused = true)]
async fn a_deleted_namespace_takes_everything_along() {
    let cluster = with_namespace(&["namespace-controller"]).await;
    cluster.create(map("m", Value::Null)).await;
    cluster
        .create(
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "team"}}),
        )
        .await;
    let mut pod = template("p");
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"] = json!({"name": "p", "namespace": "team"});
    cluster.create(pod).await;
    cluster.create(map("other", Value::Null)).await;
    cluster.until_quiet().await;
    cluster.delete("Namespace", "team", "Background").await;
    cluster.until_gone("Namespace", "team").await;
    for kind in ["ConfigMap", "Pod", "ServiceAccount"] {
        assert!(cluster.list_in("team", kind).await.is_empty(), "{kind}");
    }
    assert!(cluster.get("Namespace", "default").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn finalizers_hold_a_namespace_and_its_status_says_so() {
    let cluster = with_namespace(&["namespace-controller"]).await;
    cluster.create(map("held", json!(["example.com/hold"]))).await;
    cluster.delete("Namespace", "team", "Background").await;
    let waiting = cluster
        .until("Namespace", "team", |team| condition(team, "NamespaceFinalizersRemaining")["status"] == "True")
        .await;
    let message = "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances";
    assert_eq!(condition(&waiting, "NamespaceFinalizersRemaining")["message"], message);
    assert_eq!(condition(&waiting, "NamespaceContentRemaining")["reason"], "SomeResourcesRemain");
    let (code, _) = cluster
        .request("POST", "/api/v1/namespaces/team/configmaps", "application/json", &map("late", Value::Null))
        .await;
    assert_eq!(code, 403, "nothing new is created in it");
    cluster.advance(Duration::from_secs(60)).await;
    assert!(cluster.get("Namespace", "team").await.is_some());
    cluster.patch_at("/api/v1/namespaces/team/configmaps/held", json!({"metadata": {"finalizers": null}})).await;
    cluster.advance(Duration::from_secs(20)).await;
    cluster.until_gone("Namespace", "team").await;
}

#[tokio::test(start_paused = true)]
async fn every_namespace_has_its_account_and_the_authorities() {
    let cluster = with_namespace(&["serviceaccount-controller", "root-ca-certificate-publisher-controller"]).await;
    let has = async |kind: &str, name: &str, is_right: &dyn Fn(&Value) -> bool| {
        let started = std::time::Instant::now();
        loop {
            if cluster.get_in("team", kind, name).await.is_some_and(|found| is_right(&found)) {
                return;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "no {kind} {name}");
            cluster.until_quiet().await;
        }
    };
    let is_published = |map: &Value| map["data"]["ca.crt"] == "authority";
    has("ServiceAccount", "default", &|_| true).await;
    has("ConfigMap", "kube-root-ca.crt", &is_published).await;
    // What users change or delete comes back.
    let at = "/api/v1/namespaces/team/configmaps/kube-root-ca.crt";
    cluster.patch_at(at, json!({"data": {"ca.crt": "forged"}})).await;
    has("ConfigMap", "kube-root-ca.crt", &is_published).await;
    let account = cluster.get_in("team", "ServiceAccount", "default").await.unwrap();
    let path = "/api/v1/namespaces/team/serviceaccounts/default";
    cluster.request("DELETE", path, "application/json", &Value::Null).await;
    has("ServiceAccount", "default", &|new| new["metadata"]["uid"] != account["metadata"]["uid"]).await;
}
