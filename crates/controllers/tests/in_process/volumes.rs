//! Claims and volumes: binding, release, protection and ephemeral claims.

use serde_json::{Value, json};

use super::support::{Cluster, names, text};

const CONTROLLERS: &[&str] = &[
    "persistentvolume-binder-controller",
    "persistentvolumeclaim-protection-controller",
    "persistentvolume-protection-controller",
    "ephemeral-volume-controller",
    "garbage-collector-controller",
];

fn volume(name: &str, size: &str, more: Value) -> Value {
    let mut spec = json!({"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "manual",
        "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/data"}});
    for (key, value) in more.as_object().expect("fields") {
        spec[key] = value.clone();
    }
    json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})
}

fn claim(name: &str, size: &str, more: Value) -> Value {
    let mut spec = json!({"resources": {"requests": {"storage": size}}, "accessModes": ["ReadWriteOnce"],
        "storageClassName": "manual"});
    for (key, value) in more.as_object().expect("fields") {
        spec[key] = value.clone();
    }
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec})
}

fn pod(volumes: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "image:1"}], "volumes": volumes}})
}

fn phase(expected: &'static str) -> impl Fn(&Value) -> bool {
    move |object| object["status"]["phase"] == expected
}

#[tokio::test(start_paused = true)]
async fn a_claim_gets_the_smallest_volume_that_fits() {
    for (request, more, bound) in [
        ("3Gi", json!({}), Some("medium")),
        ("5Gi", json!({}), Some("medium")),
        ("6Gi", json!({}), Some("large")),
        ("11Gi", json!({}), None),
        ("1Gi", json!({"accessModes": ["ReadWriteMany"]}), None),
        ("1Gi", json!({"storageClassName": "other"}), None),
        ("1Gi", json!({"volumeName": "large"}), Some("large")),
        ("1Gi", json!({"selector": {"matchLabels": {"disk": "ssd"}}}), Some("labelled")),
    ] {
        let cluster = Cluster::start(CONTROLLERS).await;
        for (name, size) in [("small", "2Gi"), ("medium", "5Gi"), ("large", "10Gi")] {
            cluster.create(volume(name, size, json!({}))).await;
        }
        let mut labelled = volume("labelled", "20Gi", json!({}));
        labelled["metadata"]["labels"] = json!({"disk": "ssd"});
        if bound == Some("labelled") {
            cluster.create(labelled).await;
        }
        cluster.until_quiet().await;
        cluster.create(claim("data", request, more.clone())).await;
        if bound.is_some() {
            cluster.until("PersistentVolumeClaim", "data", phase("Bound")).await;
        }
        cluster.until_quiet().await;
        let found = cluster.get("PersistentVolumeClaim", "data").await.unwrap();
        assert_eq!(found["spec"]["volumeName"].as_str(), bound, "{request} {more}");
        assert_eq!(text(&found["status"]["phase"]), if bound.is_some() { "Bound" } else { "Pending" });
        if let Some(bound) = bound {
            let taken = cluster.until("PersistentVolume", bound, phase("Bound")).await;
            assert_eq!(taken["spec"]["claimRef"]["uid"], found["metadata"]["uid"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_claims_never_share_a_volume() {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.create(volume("only", "5Gi", json!({}))).await;
    cluster.create(claim("first", "1Gi", json!({}))).await;
    cluster.create(claim("second", "1Gi", json!({}))).await;
    cluster.until("PersistentVolume", "only", phase("Bound")).await;
    cluster.until_quiet().await;
    let claims = cluster.list("PersistentVolumeClaim").await;
    let phases: Vec<&str> = claims.iter().map(|claim| text(&claim["status"]["phase"])).collect();
    assert!(phases.contains(&"Bound") && phases.contains(&"Pending"), "{phases:?}");
}

#[tokio::test(start_paused = true)]
async fn a_released_volume_is_kept_and_not_given_to_others() {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.create(volume("v", "5Gi", json!({}))).await;
    cluster.create(claim("data", "1Gi", json!({}))).await;
    cluster.until("PersistentVolumeClaim", "data", phase("Bound")).await;
    cluster.delete("PersistentVolumeClaim", "data", "Background").await;
    cluster.until_gone("PersistentVolumeClaim", "data").await;
    cluster.until("PersistentVolume", "v", phase("Released")).await;
    cluster.create(claim("data", "1Gi", json!({}))).await;
    cluster.until_quiet().await;
    let again = cluster.get("PersistentVolumeClaim", "data").await.unwrap();
    assert_eq!(again["status"]["phase"], "Pending", "another claim of the same name has no right to the data");
    cluster.patch("PersistentVolume", "v", json!({"spec": {"claimRef": null}})).await;
    cluster.until("PersistentVolumeClaim", "data", phase("Bound")).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_volume_is_gone_is_lost() {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.create(volume("v", "5Gi", json!({}))).await;
    cluster.create(claim("data", "1Gi", json!({}))).await;
    cluster.until("PersistentVolumeClaim", "data", phase("Bound")).await;
    cluster.until("PersistentVolume", "v", |v| v["metadata"]["finalizers"].is_array()).await;
    cluster.delete("PersistentVolume", "v", "Background").await;
    cluster.until_quiet().await;
    assert!(cluster.get("PersistentVolume", "v").await.is_some(), "a bound volume is protected");
    cluster.patch("PersistentVolume", "v", json!({"metadata": {"finalizers": null}})).await;
    cluster.until("PersistentVolumeClaim", "data", phase("Lost")).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_in_use_is_deleted_after_its_pod() {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.create(volume("v", "5Gi", json!({}))).await;
    cluster.create(claim("data", "1Gi", json!({}))).await;
    cluster.until("PersistentVolumeClaim", "data", phase("Bound")).await;
    cluster.create(pod(json!([{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]))).await;
    cluster.until("Pod", "p", phase("Running")).await;
    cluster.delete("PersistentVolumeClaim", "data", "Background").await;
    cluster.until_quiet().await;
    assert!(cluster.get("PersistentVolumeClaim", "data").await.is_some());
    cluster.delete("Pod", "p", "Background").await;
    cluster.until_gone("PersistentVolumeClaim", "data").await;
}

#[tokio::test(start_paused = true)]
async fn ephemeral_claims_come_and_go_with_their_pod() {
    let cluster = Cluster::start(CONTROLLERS).await;
    let spec = claim("x", "1Gi", json!({}))["spec"].clone();
    cluster.create(pod(json!([{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}]))).await;
    cluster.until_list("PersistentVolumeClaim", |claims| names(claims) == ["p-scratch"]).await;
    cluster.delete("Pod", "p", "Background").await;
    cluster.until_list("PersistentVolumeClaim", <[Value]>::is_empty).await;
}

/// Claims of a class that waits are bound when a pod that uses them has a node.
#[tokio::test(start_paused = true)]
async fn a_class_that_waits_for_a_consumer_binds_late() {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster
        .create(json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "manual"},
            "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}))
        .await;
    cluster.create(volume("v", "5Gi", json!({}))).await;
    cluster.create(claim("data", "1Gi", json!({}))).await;
    cluster.until_quiet().await;
    assert_eq!(cluster.get("PersistentVolumeClaim", "data").await.unwrap()["status"]["phase"], "Pending");
    // The scheduler reserves the volume for the claim.
    let uid = cluster.get("PersistentVolumeClaim", "data").await.unwrap()["metadata"]["uid"].clone();
    let reference = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": uid});
    cluster.patch("PersistentVolume", "v", json!({"spec": {"claimRef": reference}})).await;
    cluster.until("PersistentVolumeClaim", "data", phase("Bound")).await;
}
