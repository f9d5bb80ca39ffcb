//! StatefulSets: order, identity, partitions, claims and repairs.

use serde_json::{Value, json};

use super::support::kubelet::{Kubelet, Outcome};
use super::support::{Cluster, name_of, names, template, text};

const CONTROLLERS: &[&str] = &["statefulset-controller"];

fn stateful_set(replicas: u32, more: Value) -> Value {
    let mut spec = json!({"replicas": replicas, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
        "template": template("db")});
    for (key, value) in more.as_object().expect("fields") {
        spec[key] = value.clone();
    }
    json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": spec})
}

fn image(tag: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": format!("image:{tag}")}]}}}})
}

fn image_of(pod: &Value) -> &str {
    text(&pod["spec"]["containers"][0]["image"])
}

fn all_ready(replicas: u32) -> impl Fn(&Value) -> bool {
    move |set| set["status"]["readyReplicas"] == replicas && set["status"]["replicas"] == replicas
}

async fn started(replicas: u32, more: Value) -> Cluster {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.create(stateful_set(replicas, more)).await;
    cluster.until("StatefulSet", "db", all_ready(replicas)).await;
    cluster
}

/// The pods that exist while one of them does not become ready, by policy.
#[tokio::test(start_paused = true)]
async fn pods_start_in_order_unless_the_policy_is_parallel() {
    for (policy, expected) in [("OrderedReady", &["db-0", "db-1"][..]), ("Parallel", &["db-0", "db-1", "db-2"])] {
        let cluster = Cluster::start(CONTROLLERS).await;
        cluster.set_kubelet(Kubelet::deciding(
            |pod| {
                if name_of(pod) == "db-1" { Outcome::Running } else { Outcome::Ready }
            },
        ));
        cluster.create(stateful_set(3, json!({"podManagementPolicy": policy}))).await;
        cluster.until_list("Pod", |pods| pods.len() == expected.len()).await;
        cluster.until_quiet().await;
        assert_eq!(names(&cluster.list("Pod").await), expected, "{policy}");
        cluster.set_kubelet(Kubelet::ready());
        cluster.until("StatefulSet", "db", all_ready(3)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn pods_are_removed_in_reverse_order_one_at_a_time() {
    let cluster = started(3, json!({})).await;
    cluster.set_kubelet(Kubelet::absent());
    cluster.patch("StatefulSet", "db", json!({"spec": {"replicas": 0}})).await;
    cluster.until_list("Pod", |pods| pods.iter().any(|pod| pod["metadata"]["deletionTimestamp"].is_string())).await;
    cluster.until_quiet().await;
    let deleted: Vec<String> = cluster
        .list("Pod")
        .await
        .iter()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_string())
        .map(|pod| name_of(pod).to_owned())
        .collect();
    assert_eq!(deleted, ["db-2"]);
    cluster.set_kubelet(Kubelet::ready());
    cluster.until_list("Pod", <[Value]>::is_empty).await;
}

#[tokio::test(start_paused = true)]
async fn pods_below_the_partition_keep_their_template() {
    let partition =
        |number: u32| json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": number}}});
    let cluster = started(3, partition(2)).await;
    cluster.patch("StatefulSet", "db", image("2")).await;
    cluster.until("Pod", "db-2", |pod| image_of(pod) == "image:2").await;
    cluster.until("StatefulSet", "db", all_ready(3)).await;
    cluster.until_quiet().await;
    let images: Vec<String> = cluster.list("Pod").await.iter().map(|pod| image_of(pod).to_owned()).collect();
    assert_eq!(images, ["image:1", "image:1", "image:2"]);
    let set = cluster.get("StatefulSet", "db").await.unwrap();
    assert_ne!(set["status"]["currentRevision"], set["status"]["updateRevision"]);
    assert_eq!(set["status"]["updatedReplicas"], 1);
    // A pod below the partition that is replaced keeps the old template too.
    cluster.delete("Pod", "db-0", "Background").await;
    cluster.until("StatefulSet", "db", all_ready(3)).await;
    cluster.until_quiet().await;
    assert_eq!(image_of(&cluster.get("Pod", "db-0").await.unwrap()), "image:1");
    cluster.patch("StatefulSet", "db", json!({"spec": partition(0)})).await;
    let done = cluster
        .until("StatefulSet", "db", |set| {
            all_ready(3)(set) && set["status"]["currentRevision"] == set["status"]["updateRevision"]
        })
        .await;
    assert_eq!(done["status"]["currentReplicas"], 3);
    assert!(cluster.list("Pod").await.iter().all(|pod| image_of(pod) == "image:2"));
}

#[tokio::test(start_paused = true)]
async fn a_broken_update_stops_at_its_first_pod() {
    let cluster = started(3, json!({})).await;
    cluster.set_kubelet(Kubelet::deciding(|pod| match image_of(pod) {
        "image:2" => Outcome::Running,
        _ => Outcome::Ready,
    }));
    cluster.patch("StatefulSet", "db", image("2")).await;
    cluster.until("Pod", "db-2", |pod| image_of(pod) == "image:2").await;
    cluster.until_quiet().await;
    let images: Vec<String> = cluster.list("Pod").await.iter().map(|pod| image_of(pod).to_owned()).collect();
    assert_eq!(images, ["image:1", "image:1", "image:2"]);
}

#[tokio::test(start_paused = true)]
async fn on_delete_updates_only_what_is_deleted() {
    let cluster = started(2, json!({"updateStrategy": {"type": "OnDelete"}})).await;
    cluster.patch("StatefulSet", "db", image("2")).await;
    cluster.until("StatefulSet", "db", |set| set["status"]["observedGeneration"] == 2).await;
    cluster.until_quiet().await;
    assert!(cluster.list("Pod").await.iter().all(|pod| image_of(pod) == "image:1"));
    cluster.delete("Pod", "db-1", "Background").await;
    cluster.until("Pod", "db-1", |pod| image_of(pod) == "image:2").await;
    assert_eq!(image_of(&cluster.get("Pod", "db-0").await.unwrap()), "image:1");
}

#[tokio::test(start_paused = true)]
async fn failed_pods_are_replaced_under_the_same_name() {
    let cluster = started(2, json!({})).await;
    let old = cluster.get("Pod", "db-0").await.unwrap();
    cluster.patch_status("Pod", "db-0", json!({"phase": "Failed"})).await;
    cluster.until("Pod", "db-0", |pod| pod["metadata"]["uid"] != old["metadata"]["uid"]).await;
    cluster.until("StatefulSet", "db", all_ready(2)).await;
}

/// Which claims are left after the set was made smaller, and after it was deleted.
#[tokio::test(start_paused = true)]
async fn claims_are_kept_or_deleted_by_the_retention_policy() {
    let claims = json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}}]);
    for (scaled, deleted, after_scaling, after_deletion) in [
        ("Retain", "Retain", &["data-db-0", "data-db-1"][..], &["data-db-0", "data-db-1"][..]),
        ("Delete", "Retain", &["data-db-0"], &["data-db-0"]),
        ("Retain", "Delete", &["data-db-0", "data-db-1"], &[]),
    ] {
        let policy = json!({"whenScaled": scaled, "whenDeleted": deleted});
        let cluster = Cluster::start(&[
            "statefulset-controller",
            "garbage-collector-controller",
            "persistentvolumeclaim-protection-controller",
        ])
        .await;
        let more = json!({"volumeClaimTemplates": claims, "persistentVolumeClaimRetentionPolicy": policy});
        cluster.create(stateful_set(2, more)).await;
        cluster.until("StatefulSet", "db", all_ready(2)).await;
        assert_eq!(names(&cluster.list("PersistentVolumeClaim").await), ["data-db-0", "data-db-1"]);
        cluster.patch("StatefulSet", "db", json!({"spec": {"replicas": 1}})).await;
        cluster.until_list("Pod", |pods| pods.len() == 1).await;
        cluster.until_list("PersistentVolumeClaim", |claims| claims.len() == after_scaling.len()).await;
        cluster.until_quiet().await;
        assert_eq!(names(&cluster.list("PersistentVolumeClaim").await), after_scaling, "{policy}");
        cluster.delete("StatefulSet", "db", "Background").await;
        cluster.until_list("Pod", <[Value]>::is_empty).await;
        cluster.until_list("PersistentVolumeClaim", |claims| claims.len() == after_deletion.len()).await;
        cluster.until_quiet().await;
        assert_eq!(names(&cluster.list("PersistentVolumeClaim").await), after_deletion, "{policy}");
    }
}

/// A pod that cannot start must not leave its claims behind when the set is deleted.
#[tokio::test(start_paused = true)]
async fn claims_of_a_pending_pod_get_their_owner() {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.set_kubelet(Kubelet::absent());
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    cluster.create(stateful_set(1, json!({"volumeClaimTemplates": [claim]}))).await;
    cluster.until_list("Pod", |pods| pods.len() == 1).await;
    cluster.until_quiet().await;
    let policy = json!({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"}});
    cluster.patch("StatefulSet", "db", json!({"spec": policy})).await;
    let is_owned = |claim: &Value| claim["metadata"]["ownerReferences"][0]["kind"] == "StatefulSet";
    cluster.until("PersistentVolumeClaim", "data-db-0", is_owned).await;
}

/// Pods that never become ready are replaced by a new template, one after the other.
#[tokio::test(start_paused = true)]
async fn a_new_template_repairs_pods_that_all_start_at_once() {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.set_kubelet(Kubelet::deciding(
        |pod| {
            if image_of(pod) == "image:1" { Outcome::Running } else { Outcome::Ready }
        },
    ));
    cluster.create(stateful_set(3, json!({"podManagementPolicy": "Parallel"}))).await;
    cluster.until_list("Pod", |pods| pods.len() == 3).await;
    cluster.until_quiet().await;
    cluster.patch("StatefulSet", "db", image("2")).await;
    cluster.until("StatefulSet", "db", all_ready(3)).await;
}
