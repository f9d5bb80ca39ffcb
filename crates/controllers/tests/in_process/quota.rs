//! Resource quotas: usage is counted, recounted and released.

use std::time::Duration;

use serde_json::{Value, json};

use super::support::kubelet::{Kubelet, Outcome};
use super::support::{Cluster, path};

const CONTROLLERS: &[&str] = &["resourcequota-controller"];

fn quota(hard: Value, more: Value) -> Value {
    let mut spec = json!({"hard": hard});
    for (key, value) in more.as_object().expect("fields") {
        spec[key] = value.clone();
    }
    json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "quota"}, "spec": spec})
}

fn pod(name: &str, requests: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [
        {"name": "c", "image": "image:1", "resources": {"requests": requests}}]}})
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

#[tokio::test(start_paused = true)]
async fn what_exists_is_counted_and_what_goes_is_released() {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.create(pod("a", json!({"cpu": "250m"}))).await;
    cluster.create(quota(json!({"requests.cpu": "1", "pods": "5", "count/configmaps": "3"}), json!({}))).await;
    let used = |cpu: &'static str, pods: &'static str, maps: &'static str| {
        move |quota: &Value| {
            quota["status"]["used"] == json!({"requests.cpu": cpu, "pods": pods, "count/configmaps": maps})
        }
    };
    cluster.until("ResourceQuota", "quota", used("250m", "1", "0")).await;
    cluster.create(pod("b", json!({"cpu": "750m"}))).await;
    cluster.create(map("m")).await;
    cluster.until("ResourceQuota", "quota", used("1", "2", "1")).await;
    let (code, refused) =
        cluster.request("POST", &path("Pod", "default"), "application/json", &pod("c", json!({"cpu": "1m"}))).await;
    assert_eq!(code, 403, "{refused}");
    cluster.delete("Pod", "a", "Background").await;
    cluster.delete("ConfigMap", "m", "Background").await;
    // Deleted objects are recounted at the next sync.
    cluster.advance(Duration::from_secs(330)).await;
    cluster.until("ResourceQuota", "quota", used("750m", "1", "0")).await;
}

#[tokio::test(start_paused = true)]
async fn finished_pods_use_nothing() {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.create(quota(json!({"pods": "1"}), json!({}))).await;
    cluster.until("ResourceQuota", "quota", |quota| quota["status"]["used"]["pods"] == "0").await;
    cluster.set_kubelet(Kubelet::deciding(|_| Outcome::Succeeded));
    cluster.create(pod("a", json!({}))).await;
    cluster.until("ResourceQuota", "quota", |quota| quota["status"]["used"]["pods"] == "0").await;
    cluster.create(pod("b", json!({}))).await;
}

#[tokio::test(start_paused = true)]
async fn scopes_choose_the_pods() {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.create(pod("small", json!({}))).await;
    cluster.create(pod("large", json!({"memory": "1Gi"}))).await;
    cluster.create(quota(json!({"pods": "9"}), json!({"scopes": ["BestEffort"]}))).await;
    cluster.until("ResourceQuota", "quota", |quota| quota["status"]["used"]["pods"] == "1").await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_limit_is_reported_at_once() {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.create(quota(json!({"pods": "1"}), json!({}))).await;
    cluster.until("ResourceQuota", "quota", |quota| quota["status"]["hard"]["pods"] == "1").await;
    cluster.patch("ResourceQuota", "quota", json!({"spec": {"hard": {"pods": "7", "secrets": "2"}}})).await;
    let changed = cluster.until("ResourceQuota", "quota", |quota| quota["status"]["hard"]["pods"] == "7").await;
    assert_eq!(changed["status"]["used"], json!({"pods": "0", "secrets": "0"}));
}

/// A kind that cannot be listed is reported as unknown, and the rest of the quota works.
#[tokio::test(start_paused = true)]
async fn one_unknown_count_holds_up_no_other() {
    let cluster = Cluster::start(CONTROLLERS).await;
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let webhook = json!({"clientConfig": {"url": "https://127.0.0.1:1/"}, "conversionReviewVersions": ["v1"]});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "conversion": {"strategy": "Webhook", "webhook": webhook},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema},
            {"name": "v2", "served": true, "storage": false, "schema": schema}]}});
    cluster.create(definition).await;
    let widgets = "/apis/example.com/v1/namespaces/default/widgets";
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    while cluster.request("POST", widgets, "application/json", &widget).await.0 == 404 {
        cluster.until_quiet().await;
    }
    cluster.create(pod("a", json!({}))).await;
    cluster.create(quota(json!({"pods": "5", "count/widgets.example.com": "3"}), json!({}))).await;
    let counted = cluster.until("ResourceQuota", "quota", |quota| quota["status"]["used"]["pods"] == "1").await;
    assert_eq!(counted["status"]["used"], json!({"pods": "1"}));
}
