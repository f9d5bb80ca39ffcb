//! Disks of a storage network: one for a single node is given to one node at a time, although no driver attaches it.

use serde_json::{Value, json};

use super::support::kubelet::Kubelet;
use super::support::{Cluster, text};

const CONTROLLERS: &[&str] = &["persistentvolume-binder-controller", "persistentvolume-attach-detach-controller"];
const DISK: &str = "kubernetes.io/iscsi/10.0.0.1:iqn.2003-01.io.example:disk:0";

fn attached(node: &Value) -> Vec<&str> {
    let volumes = node["status"]["volumesAttached"].as_array();
    volumes.into_iter().flatten().map(|volume| text(&volume["name"])).collect()
}

async fn add_node(cluster: &Cluster, name: &str) {
    cluster.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})).await;
    let ready = json!([{"type": "Ready", "status": "True"}]);
    cluster.patch_status("Node", name, json!({"conditions": ready})).await;
}

async fn add_pod(cluster: &Cluster, name: &str, node: &str) {
    let volumes = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]);
    cluster
        .create(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "image:1"}], "volumes": volumes}}))
        .await;
}

async fn add_disk(cluster: &Cluster, modes: Value) {
    let source = json!({"targetPortal": "10.0.0.1", "iqn": "iqn.2003-01.io.example:disk", "lun": 0});
    cluster
        .create(json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": modes, "storageClassName": "manual", "iscsi": source}}))
        .await;
    cluster
        .create(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": {
            "resources": {"requests": {"storage": "1Gi"}}, "accessModes": modes, "storageClassName": "manual"}}))
        .await;
    cluster.until("PersistentVolumeClaim", "data", |claim| claim["status"]["phase"] == "Bound").await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_for_one_node_moves_only_after_it_is_unmounted() {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.set_kubelet(Kubelet::absent());
    for node in ["a", "b"] {
        add_node(&cluster, node).await;
    }
    add_disk(&cluster, json!(["ReadWriteOnce"])).await;
    add_pod(&cluster, "one", "a").await;
    cluster.until("Node", "a", |node| attached(node) == [DISK]).await;
    cluster.patch_status("Node", "a", json!({"volumesInUse": [DISK]})).await;

    add_pod(&cluster, "two", "b").await;
    cluster
        .until_list("Event", |events| {
            events.iter().any(|event| text(&event["message"]).starts_with("Waiting for detach for volume \"v\""))
        })
        .await;
    cluster.until_quiet().await;
    assert!(attached(&cluster.get("Node", "b").await.expect("a node")).is_empty());

    cluster.delete("Pod", "one", "Background").await;
    cluster.until_quiet().await;
    let b = cluster.get("Node", "b").await.expect("a node");
    assert!(attached(&b).is_empty(), "the first node still has it mounted");
    cluster.patch_status("Node", "a", json!({"volumesInUse": null})).await;
    cluster.until("Node", "b", |node| attached(node) == [DISK]).await;
    assert!(attached(&cluster.get("Node", "a").await.expect("a node")).is_empty());
    assert!(cluster.list("VolumeAttachment").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_shared_disk_is_given_to_all_nodes() {
    let cluster = Cluster::start(CONTROLLERS).await;
    cluster.set_kubelet(Kubelet::absent());
    add_disk(&cluster, json!(["ReadOnlyMany"])).await;
    for (pod, node) in [("one", "a"), ("two", "b")] {
        add_node(&cluster, node).await;
        add_pod(&cluster, pod, node).await;
    }
    for node in ["a", "b"] {
        cluster.until("Node", node, |node| attached(node) == [DISK]).await;
    }
}
