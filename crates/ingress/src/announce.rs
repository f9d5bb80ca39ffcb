//! Marks the nodes that serve Ingresses, with an annotation that each node sets on its own Node object.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use knarr_client::Informers;
use knarr_client::kube::Client;
use knarr_client::kube::api::{Api, Patch, PatchParams};
use knarr_client::node::is_ready;
use serde_json::json;
use tokio::sync::Notify;

const ANNOTATION: &str = "knarr.dev/ingress";
const SERVES: &str = "true";
const RETRY: Duration = Duration::from_secs(2);

/// Keeps the node's annotation up to date until dropped.
pub async fn run(informers: Informers, client: Client, node_name: String, is_serving: bool) {
    let nodes = informers.of::<Node>();
    let changed = Arc::new(Notify::new());
    let (handler, own) = (Arc::clone(&changed), node_name.clone());
    nodes.on_change(move |change| {
        if change.latest().metadata.name.as_deref() == Some(&own) {
            handler.notify_one();
        }
    });
    let value = is_serving.then_some(SERVES);
    let patch = Patch::Merge(json!({"metadata": {"annotations": {ANNOTATION: value}}}));
    let api = Api::<Node>::all(client);
    loop {
        changed.notified().await;
        while nodes.get("", &node_name).is_some_and(|node| serves(&node) != is_serving) {
            if let Err(error) = api.patch(&node_name, &PatchParams::default(), &patch).await {
                tracing::warn!(%error, "cannot set the ingress annotation of this node; retrying");
                tokio::time::sleep(RETRY).await;
                continue;
            }
            // The change arrives through the watch.
            changed.notified().await;
        }
    }
}

/// The addresses of ready nodes that serve Ingresses: the external address if a node has one.
pub fn addresses(nodes: &[Arc<Node>]) -> Vec<IpAddr> {
    let serving = nodes.iter().filter(|node| serves(node) && is_ready(node));
    let mut addresses: Vec<IpAddr> = serving.filter_map(|node| address(node)).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

fn serves(node: &Node) -> bool {
    node.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION)).is_some_and(|value| value == SERVES)
}

fn address(node: &Node) -> Option<IpAddr> {
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    let of = |kind: &str| addresses.iter().find(|one| one.type_ == kind).and_then(|one| one.address.parse().ok());
    of("ExternalIP").or_else(|| of("InternalIP"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_nodes_that_serve_are_published() {
        let node = |name: &str, serves: &str, ready: &str, addresses: &[(&str, &str)]| -> Arc<Node> {
            let addresses: Vec<_> =
                addresses.iter().map(|(kind, address)| json!({"type": kind, "address": address})).collect();
            let node = json!({"metadata": {"name": name, "annotations": {ANNOTATION: serves}},
                "status": {"conditions": [{"type": "Ready", "status": ready}], "addresses": addresses}});
            Arc::new(serde_json::from_value(node).unwrap())
        };
        let nodes = [
            node("a", "true", "True", &[("InternalIP", "10.0.0.2")]),
            node("b", "true", "True", &[("InternalIP", "10.0.0.1"), ("ExternalIP", "10.0.0.1")]),
            node("c", "true", "Unknown", &[("InternalIP", "10.0.0.3")]),
            node("d", "", "True", &[("InternalIP", "10.0.0.4")]),
            node("e", "true", "True", &[("InternalIP", "10.1.0.5"), ("ExternalIP", "192.0.2.5")]),
        ];
        let found: Vec<String> = addresses(&nodes).iter().map(IpAddr::to_string).collect();
        assert_eq!(found, ["10.0.0.1", "10.0.0.2", "192.0.2.5"]);
    }
}
