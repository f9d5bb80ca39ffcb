//! Serves the drivers that are registered on this node and annotated for it, while they are.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use knarr_client::{Informer, Informers};
use knarr_csi::Client as CsiClient;
use knarr_csi::messages::InfoRequest;
use kube::Client;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::driver::Place;
use crate::meta::annotation;
use crate::settings::Settings;
use crate::{ANNOTATION, BUILT_IN, serve};

const RETRY: Duration = Duration::from_secs(5);
/// Registration sockets respond at once or are dead.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);

/// A task that is aborted when it is dropped.
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs until dropped.
pub async fn run(client: Client, settings: Settings) {
    let informers = Informers::new(client.clone());
    let by_name = format!("metadata.name={}", settings.node);
    let csi_nodes: Arc<Informer<CSINode>> = informers.selected(&by_name, "");
    let nodes: Arc<Informer<Node>> = informers.selected(&by_name, "");
    let drivers: Arc<Informer<CSIDriver>> = informers.of();
    let changed = Arc::new(Notify::new());
    let notify = changed.clone();
    csi_nodes.on_change(move |_| notify.notify_one());
    let notify = changed.clone();
    nodes.on_change(move |change| {
        let labels = |node: &Node| node.metadata.labels.clone();
        if change.previous().is_none_or(|old| labels(old) != labels(change.latest())) {
            notify.notify_one();
        }
    });
    let notify = changed.clone();
    drivers.on_change(move |_| notify.notify_one());
    csi_nodes.synced().await;
    nodes.synced().await;
    drivers.synced().await;
    let mut running: BTreeMap<String, (Place, Task)> = BTreeMap::new();
    loop {
        let node = nodes.get("", &settings.node);
        let csi_node = csi_nodes.get("", &settings.node);
        let served = served(csi_node.as_deref(), node.as_deref(), |name| drivers.get("", name));
        running.retain(|name, (place, _)| served.get(name) == Some(place));
        for (name, place) in served {
            running.entry(name.clone()).or_insert_with(|| {
                let serving = keep_serving(client.clone(), settings.clone(), name, place.clone());
                (place, Task(knarr_supervisor::spawn_linked("csi-driver", serving)))
            });
        }
        changed.notified().await;
    }
}

/// The drivers to serve, each with its place on this node.
fn served(
    csi_node: Option<&CSINode>,
    node: Option<&Node>,
    driver: impl Fn(&str) -> Option<Arc<CSIDriver>>,
) -> BTreeMap<String, Place> {
    let (Some(csi_node), Some(node)) = (csi_node, node) else { return BTreeMap::new() };
    let registered = csi_node.spec.drivers.iter();
    let ours = registered
        .filter(|own| driver(&own.name).is_some_and(|driver| annotation(&*driver, ANNOTATION) == Some(BUILT_IN)));
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    ours.filter_map(|own| {
        let keys = own.topology_keys.iter().flatten();
        // The kubelet writes the labels before the CSINode; a missing one will come.
        let segments = keys.map(|key| Some((key.clone(), labels.get(key)?.clone()))).collect::<Option<_>>()?;
        let node_uid = node.metadata.uid.clone().unwrap_or_default();
        Some((own.name.clone(), Place { segments, node_uid, node_id: own.node_id.clone() }))
    })
    .collect()
}

async fn keep_serving(client: Client, settings: Settings, name: String, place: Place) {
    loop {
        match find_endpoint(&settings.registry, &name).await {
            Some(endpoint) => {
                let done = serve::serve(&client, &settings, &name, &place, &endpoint).await;
                if let Err(error) = done {
                    tracing::warn!(driver = name, %error, "cannot serve a CSI driver; retrying");
                }
            }
            None => tracing::debug!(driver = name, "a registered CSI driver has no registration socket"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// The endpoint of a driver, which its registration socket names.
async fn find_endpoint(registry: &Path, driver: &str) -> Option<String> {
    let mut entries = tokio::fs::read_dir(registry).await.ok()?;
    while let Ok(Some(entry)) = entries.next_entry().await {
        let path = entry.path();
        let Some(client) = path.to_str().and_then(|path| CsiClient::connect(path).ok()) else { continue };
        let info = client.with_timeout(REGISTRATION_TIMEOUT).get_info(InfoRequest {}).await;
        if let Ok(info) = info
            && info.name == driver
        {
            return Some(if info.endpoint.is_empty() { path.to_string_lossy().into_owned() } else { info.endpoint });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_annotated_drivers_of_the_node_are_served() {
        let csi_node: CSINode = serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"drivers": [
            {"name": "ours", "nodeID": "n-1", "topologyKeys": ["zone"]},
            {"name": "unlabelled", "nodeID": "n", "topologyKeys": ["rack"]},
            {"name": "plain", "nodeID": "n"},
            {"name": "others", "nodeID": "n"},
        ]}}))
        .unwrap();
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "n", "uid": "u", "labels": {"zone": "z"}}})).unwrap();
        let driver = |name: &str| {
            let value = if name == "others" { "their-own" } else { BUILT_IN };
            let object = json!({"metadata": {"name": name, "annotations": {ANNOTATION: value}}, "spec": {}});
            Some(Arc::new(serde_json::from_value::<CSIDriver>(object).unwrap()))
        };
        let found = served(Some(&csi_node), Some(&node), driver);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["ours", "plain"]);
        assert_eq!(found["ours"].segments, BTreeMap::from([("zone".to_owned(), "z".to_owned())]));
        assert_eq!(found["ours"].node_id, "n-1");
        assert!(served(Some(&csi_node), Some(&node), |_| None).is_empty());
    }
}
