//! Networks for the pods of nodes, and how long nodes cache objects.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::support::{Cluster, text};

const CONTROLLERS: &[&str] = &["node-ipam-controller", "ttl-controller"];

async fn add_node(cluster: &Cluster, name: &str) -> Value {
    cluster.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})).await;
    cluster.until_quiet().await;
    cluster.get("Node", name).await.expect("a node")
}

fn network(node: &Value) -> &str {
    text(&node["spec"]["podCIDR"])
}

/// A cluster with networks for two nodes.
fn two_networks() -> knarr_controllers::Settings {
    let cluster_cidrs = vec!["10.8.0.0/23".to_owned()];
    knarr_controllers::Settings { allocate_node_cidrs: true, cluster_cidrs, ..Default::default() }
}

#[tokio::test(start_paused = true)]
async fn each_node_has_a_network_of_its_own_and_gives_it_back() {
    let cluster = Cluster::with_settings(CONTROLLERS, two_networks()).await;
    let (one, two) = (add_node(&cluster, "one").await, add_node(&cluster, "two").await);
    assert_eq!(BTreeSet::from([network(&one), network(&two)]), BTreeSet::from(["10.8.0.0/24", "10.8.1.0/24"]));
    assert_eq!(one["spec"]["podCIDRs"], json!([network(&one)]));
    assert_eq!(network(&add_node(&cluster, "three").await), "", "no network is left");
    cluster.until_list("Event", |events| events.iter().any(|event| event["reason"] == "CIDRNotAvailable")).await;
    cluster.delete("Node", "one", "Background").await;
    // It is retried with a backoff.
    cluster.advance(Duration::from_secs(3600)).await;
    cluster.until("Node", "three", |node| network(node) == network(&one)).await;
    assert_eq!(network(&cluster.get("Node", "two").await.expect("a node")), network(&two));
}

#[tokio::test(start_paused = true)]
async fn a_network_that_a_node_brings_is_given_to_no_other() {
    let cluster = Cluster::with_settings(CONTROLLERS, two_networks()).await;
    cluster
        .create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "own"},
            "spec": {"podCIDR": "10.8.0.0/24", "podCIDRs": ["10.8.0.0/24"]}}))
        .await;
    cluster.until_quiet().await;
    assert_eq!(network(&add_node(&cluster, "other").await), "10.8.1.0/24");
    assert_eq!(network(&add_node(&cluster, "third").await), "");
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_small_cluster_cache_objects_for_no_time() {
    let cluster = Cluster::start(CONTROLLERS).await;
    add_node(&cluster, "one").await;
    let at = "node.alpha.kubernetes.io/ttl";
    cluster.until("Node", "one", |node| node["metadata"]["annotations"][at] == "0").await;
    let other = json!({"metadata": {"annotations": {(at): "300"}}});
    cluster.patch("Node", "one", other).await;
    cluster.until("Node", "one", |node| node["metadata"]["annotations"][at] == "0").await;
}
