//! DaemonSets: one pod per eligible node, through node changes and updates.

use serde_json::{Value, json};

use super::support::kubelet::{Kubelet, Outcome};
use super::support::{Cluster, template, text};

const CONTROLLERS: &[&str] = &["daemonset-controller"];

fn daemon_set(more: Value) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"app": "agent"}}, "template": template("agent")});
    for (key, value) in more.as_object().expect("fields") {
        spec[key] = value.clone();
    }
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"}, "spec": spec})
}

async fn add_node(cluster: &Cluster, name: &str, labels: Value, taints: Value) {
    cluster.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})).await;
    cluster.patch("Node", name, json!({"spec": {"taints": taints}})).await;
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}], "capacity": {"pods": "10"},
        "allocatable": {"pods": "10"}});
    cluster.patch_status("Node", name, ready).await;
}

async fn with_nodes(names: &[&str]) -> Cluster {
    let cluster = Cluster::start(CONTROLLERS).await;
    for name in names {
        add_node(&cluster, name, json!({}), Value::Null).await;
    }
    cluster
}

fn nodes_of(pods: &[Value]) -> Vec<&str> {
    let mut nodes: Vec<&str> = pods.iter().map(|pod| text(&pod["spec"]["nodeName"])).collect();
    nodes.sort_unstable();
    nodes
}

fn image(tag: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": format!("image:{tag}")}]}}}})
}

fn count_of(pods: &[Value], image: &str) -> usize {
    pods.iter().filter(|pod| pod["spec"]["containers"][0]["image"] == image).count()
}

#[tokio::test(start_paused = true)]
async fn eligible_nodes_get_one_pod_as_they_come_and_go() {
    let cluster = with_nodes(&["a", "b"]).await;
    let taint = json!([{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]);
    add_node(&cluster, "tainted", json!({}), taint).await;
    cluster.create(daemon_set(json!({}))).await;
    cluster.until("DaemonSet", "agent", |set| set["status"]["numberReady"] == 2).await;
    assert_eq!(nodes_of(&cluster.list("Pod").await), ["a", "b"]);
    add_node(&cluster, "c", json!({}), Value::Null).await;
    cluster.until("DaemonSet", "agent", |set| set["status"]["numberReady"] == 3).await;
    cluster.patch("Node", "tainted", json!({"spec": {"taints": null}})).await;
    cluster.until("DaemonSet", "agent", |set| set["status"]["numberReady"] == 4).await;
    let evicting = json!([{"key": "dedicated", "effect": "NoExecute"}]);
    cluster.patch("Node", "tainted", json!({"spec": {"taints": evicting}})).await;
    cluster.until_list("Pod", |pods| nodes_of(pods) == ["a", "b", "c"]).await;
    cluster.until("DaemonSet", "agent", |set| set["status"]["desiredNumberScheduled"] == 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_selector_chooses_the_nodes() {
    let cluster = with_nodes(&["a"]).await;
    add_node(&cluster, "b", json!({"disk": "ssd"}), Value::Null).await;
    let mut set = daemon_set(json!({}));
    set["spec"]["template"]["spec"]["nodeSelector"] = json!({"disk": "ssd"});
    cluster.create(set).await;
    cluster.until_list("Pod", |pods| nodes_of(pods) == ["b"]).await;
    cluster.patch("Node", "a", json!({"metadata": {"labels": {"disk": "ssd"}}})).await;
    cluster.until_list("Pod", |pods| nodes_of(pods) == ["a", "b"]).await;
    cluster.patch("Node", "b", json!({"metadata": {"labels": {"disk": null}}})).await;
    cluster.until_list("Pod", |pods| nodes_of(pods) == ["a"]).await;
}

#[tokio::test(start_paused = true)]
async fn failed_pods_are_replaced() {
    let cluster = with_nodes(&["a"]).await;
    cluster.create(daemon_set(json!({}))).await;
    let set = cluster.until("DaemonSet", "agent", |set| set["status"]["numberReady"] == 1).await;
    assert_eq!(set["status"]["numberAvailable"], 1);
    let old = cluster.list("Pod").await.remove(0);
    cluster.patch_status("Pod", text(&old["metadata"]["name"]), json!({"phase": "Failed"})).await;
    cluster.until_list("Pod", |pods| pods.len() == 1 && pods[0]["metadata"]["uid"] != old["metadata"]["uid"]).await;
    cluster.until("DaemonSet", "agent", |set| set["status"]["numberReady"] == 1).await;
}

/// The pods of the old and the new template while the new ones do not become ready, by strategy.
#[tokio::test(start_paused = true)]
async fn a_stuck_update_stops_where_the_strategy_says() {
    let rolling = |unavailable: Value, surge: Value| {
        json!({"updateStrategy": {"type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}}})
    };
    for (strategy, old, new) in [
        (rolling(json!(1), json!(0)), 3, 1),
        (rolling(json!("50%"), json!(0)), 2, 2),
        (rolling(json!(0), json!(1)), 4, 1),
        (json!({"updateStrategy": {"type": "OnDelete"}}), 4, 0),
    ] {
        let cluster = with_nodes(&["a", "b", "c", "d"]).await;
        cluster.create(daemon_set(strategy.clone())).await;
        cluster.until("DaemonSet", "agent", |set| set["status"]["numberReady"] == 4).await;
        cluster.set_kubelet(Kubelet::deciding(|pod| {
            if pod["spec"]["containers"][0]["image"] == "image:2" { Outcome::Running } else { Outcome::Ready }
        }));
        cluster.patch("DaemonSet", "agent", image("2")).await;
        cluster.until_list("Pod", |pods| (count_of(pods, "image:1"), count_of(pods, "image:2")) == (old, new)).await;
        cluster.until_quiet().await;
        let pods = cluster.list("Pod").await;
        assert_eq!((count_of(&pods, "image:1"), count_of(&pods, "image:2")), (old, new), "{strategy}");
        if new > 0 {
            cluster.set_kubelet(Kubelet::ready());
            let done = cluster.until("DaemonSet", "agent", |set| set["status"]["updatedNumberScheduled"] == 4).await;
            assert_eq!(done["status"]["desiredNumberScheduled"], 4);
            cluster.until_list("Pod", |pods| pods.len() == 4 && count_of(pods, "image:2") == 4).await;
        }
    }
}
