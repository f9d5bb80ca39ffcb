//! The garbage collector: background, foreground and orphaning deletions, cycles and owners that never existed.

use serde_json::{Value, json};

use super::support::{Cluster, names};

const CONTROLLERS: &[&str] = &["garbage-collector-controller"];

fn map(name: &str, owners: &[(&Value, bool)]) -> Value {
    let references: Vec<Value> = owners.iter().map(|(owner, blocks)| reference(owner, *blocks)).collect();
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": references}})
}

fn reference(owner: &Value, blocks: bool) -> Value {
    json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "blockOwnerDeletion": blocks})
}

async fn family() -> (Cluster, Value) {
    let cluster = Cluster::start(CONTROLLERS).await;
    let root = cluster.create(map("root", &[])).await;
    let child = cluster.create(map("child", &[(&root, true)])).await;
    cluster.create(map("grandchild", &[(&child, true)])).await;
    cluster.create(map("other", &[])).await;
    cluster.until_quiet().await;
    (cluster, root)
}

#[tokio::test(start_paused = true)]
async fn dependents_are_deleted_or_orphaned_as_asked() {
    for (propagation, remaining) in
        [("Background", &["other"][..]), ("Foreground", &["other"]), ("Orphan", &["child", "grandchild", "other"])]
    {
        let (cluster, _) = family().await;
        cluster.delete("ConfigMap", "root", propagation).await;
        cluster.until_list("ConfigMap", |maps| names(maps) == remaining).await;
        cluster.until_quiet().await;
        assert_eq!(names(&cluster.list("ConfigMap").await), remaining, "{propagation}");
        if propagation == "Orphan" {
            let child = cluster.get("ConfigMap", "child").await.unwrap();
            assert!(child["metadata"]["ownerReferences"].is_null(), "{child}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_foreground_deletion_waits_for_dependents_that_block_it() {
    for (blocks, waits) in [(true, true), (false, false)] {
        let cluster = Cluster::start(CONTROLLERS).await;
        let root = cluster.create(map("root", &[])).await;
        let mut held = map("held", &[(&root, blocks)]);
        held["metadata"]["finalizers"] = json!(["example.com/hold"]);
        cluster.create(held).await;
        cluster.until_quiet().await;
        cluster.delete("ConfigMap", "root", "Foreground").await;
        cluster.until("ConfigMap", "held", |map| map["metadata"]["deletionTimestamp"].is_string()).await;
        cluster.until_quiet().await;
        assert_eq!(cluster.get("ConfigMap", "root").await.is_some(), waits, "blocks: {blocks}");
        cluster.patch("ConfigMap", "held", json!({"metadata": {"finalizers": null}})).await;
        cluster.until_list("ConfigMap", <[Value]>::is_empty).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_lives_as_long_as_one_of_its_owners() {
    let cluster = Cluster::start(CONTROLLERS).await;
    let (first, second) = (cluster.create(map("first", &[])).await, cluster.create(map("second", &[])).await);
    cluster.create(map("shared", &[(&first, false), (&second, false)])).await;
    cluster.until_quiet().await;
    cluster.delete("ConfigMap", "first", "Background").await;
    let owners = |map: &Value| map["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len);
    cluster.until("ConfigMap", "shared", |map| owners(map) == 1).await;
    cluster.delete("ConfigMap", "second", "Background").await;
    cluster.until_list("ConfigMap", <[Value]>::is_empty).await;
}

/// No request is sent for an owner that no object can be: it would lead elsewhere, with the rights of the collector.
#[tokio::test(start_paused = true)]
async fn references_are_no_paths() {
    let cluster = Cluster::start(CONTROLLERS).await;
    let owner = |name: &str| {
        let reference = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "1"});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "ownerReferences": [reference]}})
    };
    cluster.create(owner("x:80/proxy/y")).await;
    cluster.until_quiet().await;
    assert!(cluster.get("ConfigMap", "m").await.is_some());
    cluster.patch("ConfigMap", "m", json!({"metadata": owner("x")["metadata"]})).await;
    cluster.until_list("ConfigMap", <[Value]>::is_empty).await;
}

/// Owners of each other hold nobody up, and nothing else is touched.
#[tokio::test(start_paused = true)]
async fn a_cycle_is_deleted_in_the_foreground_too() {
    for propagation in ["Background", "Foreground"] {
        let cluster = Cluster::start(CONTROLLERS).await;
        let first = cluster.create(map("first", &[])).await;
        let second = cluster.create(map("second", &[(&first, true)])).await;
        let owners = json!({"metadata": {"ownerReferences": [reference(&second, true)]}});
        cluster.patch("ConfigMap", "first", owners).await;
        cluster.create(map("other", &[])).await;
        cluster.until_quiet().await;
        cluster.delete("ConfigMap", "first", propagation).await;
        cluster.until_list("ConfigMap", |maps| names(maps) == ["other"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_of_another_identity_does_not_count() {
    let cluster = Cluster::start(CONTROLLERS).await;
    let mut owner = cluster.create(map("owner", &[])).await;
    owner["metadata"]["uid"] = "00000000-0000-4000-8000-000000000000".into();
    cluster.create(map("stray", &[(&owner, false)])).await;
    cluster.until_list("ConfigMap", |maps| names(maps) == ["owner"]).await;
}

/// Pods of a Job carry a finalizer of the job controller, which goes when the Job does.
#[tokio::test(start_paused = true)]
async fn a_job_is_deleted_with_or_without_its_pods() {
    for (propagation, remaining) in [("Background", 0), ("Foreground", 0), ("Orphan", 1)] {
        let cluster = Cluster::start(&["garbage-collector-controller", "job-controller"]).await;
        let containers = json!([{"name": "c", "image": "image:1"}]);
        let spec = json!({"template": {"spec": {"restartPolicy": "Never", "containers": containers}}});
        cluster
            .create(json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work"}, "spec": spec}))
            .await;
        cluster.until("Job", "work", |job| job["status"]["ready"] == 1).await;
        cluster.delete("Job", "work", propagation).await;
        cluster.until_gone("Job", "work").await;
        cluster.until_list("Pod", |pods| pods.len() == remaining).await;
        cluster.until_quiet().await;
        let pods = cluster.list("Pod").await;
        assert_eq!(pods.len(), remaining, "{propagation}");
        assert!(pods.iter().all(|pod| pod["metadata"]["ownerReferences"].is_null()), "{pods:?}");
    }
}

/// Objects of custom resources are collected as others are, once their kind is discovered.
#[tokio::test(start_paused = true)]
async fn custom_resources_own_and_are_owned() {
    let cluster = Cluster::start(CONTROLLERS).await;
    let widget = define_widgets(&cluster).await;
    cluster.create(map("part", &[(&widget, false)])).await;
    // The kinds are discovered every half minute.
    cluster.advance(std::time::Duration::from_secs(60)).await;
    assert!(cluster.get("ConfigMap", "part").await.is_some());
    let (code, _) = cluster.request("DELETE", &format!("{WIDGETS}/w"), "application/json", &Value::Null).await;
    assert_eq!(code, 200);
    cluster.until_list("ConfigMap", <[Value]>::is_empty).await;
}

/// Without its conversion webhook a kind cannot be listed; deletions of all others go on nevertheless.
#[tokio::test(start_paused = true)]
async fn a_kind_that_cannot_be_listed_holds_up_nothing_else() {
    for (propagation, remaining) in [("Foreground", &["other"][..]), ("Orphan", &["child", "grandchild", "other"])] {
        let (cluster, _) = family().await;
        define_widgets(&cluster).await;
        let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let webhook = json!({"clientConfig": {"url": "https://127.0.0.1:1/"}, "conversionReviewVersions": ["v1"]});
        let spec = json!({"conversion": {"strategy": "Webhook", "webhook": webhook}, "versions": [
            {"name": "v1", "served": true, "storage": true, "schema": schema},
            {"name": "v2", "served": true, "storage": false, "schema": schema}]});
        cluster.patch("CustomResourceDefinition", "widgets.example.com", json!({"spec": spec})).await;
        cluster.advance(std::time::Duration::from_secs(90)).await;
        let (code, _) = cluster.request("GET", &WIDGETS.replace("v1", "v2"), "application/json", &Value::Null).await;
        assert_eq!(code, 500);
        cluster.delete("ConfigMap", "root", propagation).await;
        cluster.until_list("ConfigMap", |maps| names(maps) == remaining).await;
    }
}

const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

/// Defines a custom resource and creates an object of it.
async fn define_widgets(cluster: &Cluster) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
    cluster.create(definition).await;
    let is_established = |definition: &Value| super::support::condition(definition, "Established")["status"] == "True";
    cluster.until("CustomResourceDefinition", "widgets.example.com", is_established).await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    let mut created = cluster.request("POST", WIDGETS, "application/json", &widget).await;
    // A kind is served a moment after it is established.
    for _ in 0..200 {
        if created.0 != 404 {
            break;
        }
        cluster.until_quiet().await;
        created = cluster.request("POST", WIDGETS, "application/json", &widget).await;
    }
    let (code, widget) = created;
    assert_eq!(code, 201, "{widget}");
    widget
}
