//! What the API knows about the drivers of this node: the CSINode object, and labels and an annotation of the Node.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_csi::messages::NodeGetInfoResponse;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::{Mutex, Notify};

use crate::api_text::api_text;

const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// The in-tree plugins whose volumes are translated to CSI.
const MIGRATED_PLUGINS: [&str; 7] = [
    "kubernetes.io/aws-ebs",
    "kubernetes.io/azure-disk",
    "kubernetes.io/azure-file",
    "kubernetes.io/cinder",
    "kubernetes.io/gce-pd",
    "kubernetes.io/portworx-volume",
    "kubernetes.io/vsphere-volume",
];
/// The attempts at one update, and the delay before the second one.
const ATTEMPTS: u32 = 4;
const INITIAL_BACKOFF: Duration = Duration::from_millis(10);
const BACKOFF_FACTOR: u32 = 6;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverInfo {
    pub node_id: String,
    pub topology: BTreeMap<String, String>,
    /// How many volumes the node can have attached; none is no limit.
    pub limit: Option<i32>,
}

impl From<NodeGetInfoResponse> for DriverInfo {
    fn from(response: NodeGetInfoResponse) -> Self {
        let limit = response.max_volumes_per_node;
        Self {
            node_id: response.node_id,
            topology: response.accessible_topology.map(|topology| topology.segments).unwrap_or_default(),
            limit: (limit > 0).then(|| i32::try_from(limit).unwrap_or(i32::MAX)),
        }
    }
}

pub struct NodeInfo {
    client: kube::Client,
    node_name: String,
    /// The registered drivers. The lock also keeps updates of the objects apart.
    drivers: Mutex<BTreeMap<String, DriverInfo>>,
    node_changed: Notify,
}

impl NodeInfo {
    pub fn new(client: kube::Client, node_name: &str) -> Self {
        Self { client, node_name: node_name.to_string(), drivers: Mutex::default(), node_changed: Notify::new() }
    }

    /// The Node object changed.
    pub fn wake(&self) {
        self.node_changed.notify_one();
    }

    /// Keeps a CSINode for as long as the node runs, also for a Node that was deleted and created again.
    pub async fn keep(&self, uid: impl Fn() -> Option<String>) {
        let mut done: Option<String> = None;
        let mut backoff = Duration::from_millis(200);
        loop {
            let current = uid();
            if current.is_some() && current != done {
                match self.initialize().await {
                    Ok(()) => {
                        done = current;
                        backoff = Duration::from_millis(200);
                    }
                    Err(error) => {
                        tracing::debug!(error, "cannot write the CSINode yet");
                        tokio::time::sleep(backoff).await;
                        backoff = (backoff * 2).min(Duration::from_secs(30));
                        continue;
                    }
                }
            }
            self.node_changed.notified().await;
        }
    }

    async fn initialize(&self) -> Result<(), String> {
        let drivers = self.drivers.lock().await;
        if drivers.is_empty() {
            return self.update(None, |_| false).await;
        }
        for (name, info) in drivers.iter() {
            self.write(name, info).await?;
        }
        Ok(())
    }

    /// Records a driver in the API.
    pub async fn install(&self, name: &str, info: DriverInfo) -> Result<(), String> {
        if info.node_id.is_empty() {
            return Err("error adding CSI driver node info: driverNodeID must not be empty".to_string());
        }
        let mut drivers = self.drivers.lock().await;
        repeat(|| self.write(name, &info)).await?;
        drivers.insert(name.to_string(), info);
        Ok(())
    }

    /// Writes another limit of a driver that is there.
    pub async fn set_limit(&self, name: &str, info: DriverInfo) -> Result<(), String> {
        let mut drivers = self.drivers.lock().await;
        let Some(known) = drivers.get_mut(name).filter(|known| known.limit != info.limit) else { return Ok(()) };
        let changed = DriverInfo { limit: info.limit, ..known.clone() };
        let entry = driver_entry(name, &changed);
        let written = repeat(|| self.update(Some(name), |drivers| put_driver(drivers, &entry))).await;
        written.map_err(|error| format!("error updating CSINode object with CSI driver node info: {error}"))?;
        *known = changed;
        Ok(())
    }

    async fn write(&self, name: &str, info: &DriverInfo) -> Result<(), String> {
        let written = self.update_node(Some(info), name).await;
        written.map_err(|error| format!("error updating Node object with CSI driver node info: {error}"))?;
        let driver = driver_entry(name, info);
        let written = self.update(Some(name), |drivers| put_driver(drivers, &driver)).await;
        written.map_err(|error| format!("error updating CSINode object with CSI driver node info: {error}"))
    }

    /// Removes a driver that is gone.
    pub async fn uninstall(&self, name: &str) -> Result<(), String> {
        let mut drivers = self.drivers.lock().await;
        drivers.remove(name);
        repeat(|| async {
            self.update(Some(name), |drivers| {
                let before = drivers.len();
                drivers.retain(|driver| driver.name != name);
                before != drivers.len()
            })
            .await
            .map_err(|error| format!("error uninstalling CSI driver from CSINode object {error}"))?;
            let removed = self.update_node(None, name).await;
            removed.map_err(|error| format!("error removing CSI driver node info from Node object {error}"))
        })
        .await
    }

    async fn node(&self) -> Result<Node, String> {
        Api::all(self.client.clone()).get(&self.node_name).await.map_err(|error| api_text(&error))
    }

    async fn update_node(&self, info: Option<&DriverInfo>, name: &str) -> Result<(), String> {
        let node = self.node().await?;
        let annotations = node.metadata.annotations.unwrap_or_default();
        let labels = node.metadata.labels.unwrap_or_default();
        let known = annotations.get(NODE_ID).map(String::as_str);
        let id = node_id_annotation(known, name, info.map(|info| info.node_id.as_str()))?;
        let topology = info.map(|info| info.topology.clone()).unwrap_or_default();
        check_topology(&labels, &topology)?;
        let is_labelled = topology.iter().all(|(key, value)| labels.get(key) == Some(value));
        if id.as_deref() == known && is_labelled {
            return Ok(());
        }
        let change = json!({ "metadata": { "annotations": { NODE_ID: id }, "labels": topology } });
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patched = nodes.patch(&self.node_name, &PatchParams::default(), &Patch::Merge(change)).await;
        patched.map(drop).map_err(|error| api_text(&error))
    }

    /// Changes the drivers of the CSINode, and creates it if it is missing. `change` returns whether it changed anything.
    async fn update(
        &self,
        driver: Option<&str>,
        change: impl Fn(&mut Vec<CSINodeDriver>) -> bool,
    ) -> Result<(), String> {
        let failed = |error: kube::Error| api_text(&error);
        let nodes: Api<CSINode> = Api::all(self.client.clone());
        let owner = self.owner(&self.node().await?);
        let Some(mut found) = nodes.get_opt(&self.node_name).await.map_err(failed)? else {
            let mut fresh = empty(&self.node_name, owner);
            change(&mut fresh.spec.drivers);
            return nodes.create(&PostParams::default(), &fresh).await.map(drop).map_err(failed);
        };
        if !found.metadata.owner_references.iter().flatten().any(|known| known.uid == owner.uid) {
            nodes.delete(&self.node_name, &DeleteParams::default()).await.map_err(failed)?;
            return Err(format!("CSINode \"{}\" was owned by different node, deleted it", self.node_name));
        }
        let changed = change(&mut found.spec.drivers);
        let migrated = MIGRATED_PLUGINS.join(",");
        let known = found.metadata.annotations.get_or_insert_default().insert(MIGRATED.to_string(), migrated.clone());
        if !changed && known.as_deref() == Some(migrated.as_str()) {
            return Ok(());
        }
        tracing::debug!(driver, "writing the CSINode");
        nodes.replace(&self.node_name, &PostParams::default(), &found).await.map(drop).map_err(failed)
    }

    fn owner(&self, node: &Node) -> OwnerReference {
        OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: self.node_name.clone(),
            uid: node.metadata.uid.clone().unwrap_or_default(),
            ..Default::default()
        }
    }
}

/// Repeats an update that another writer got in the way of, or that the API server did not take.
async fn repeat<F: Future<Output = Result<(), String>>>(update: impl Fn() -> F) -> Result<(), String> {
    let mut backoff = INITIAL_BACKOFF;
    let mut attempt = 1;
    loop {
        match update().await {
            Err(error) if attempt < ATTEMPTS => tracing::debug!(error, "repeating an update of the CSINode"),
            outcome => return outcome,
        }
        tokio::time::sleep(backoff).await;
        backoff *= BACKOFF_FACTOR;
        attempt += 1;
    }
}

fn empty(name: &str, owner: OwnerReference) -> CSINode {
    CSINode {
        metadata: ObjectMeta {
            name: Some(name.to_string()),
            owner_references: Some(vec![owner]),
            annotations: Some([(MIGRATED.to_string(), MIGRATED_PLUGINS.join(","))].into()),
            ..Default::default()
        },
        spec: CSINodeSpec { drivers: Vec::new() },
    }
}

fn driver_entry(name: &str, info: &DriverInfo) -> CSINodeDriver {
    CSINodeDriver {
        name: name.to_string(),
        node_id: info.node_id.clone(),
        topology_keys: Some(info.topology.keys().cloned().collect()),
        allocatable: info.limit.map(|count| VolumeNodeResources { count: Some(count) }),
    }
}

/// Returns whether anything changed.
fn put_driver(drivers: &mut Vec<CSINodeDriver>, driver: &CSINodeDriver) -> bool {
    let same = |known: &CSINodeDriver| {
        let mut keys = known.topology_keys.clone().unwrap_or_default();
        keys.sort();
        CSINodeDriver { topology_keys: Some(keys), ..known.clone() } == *driver
    };
    if drivers.iter().any(same) {
        return false;
    }
    drivers.retain(|known| known.name != driver.name);
    drivers.push(driver.clone());
    true
}

/// The annotation with one driver's id set or removed; none if no driver is left.
fn node_id_annotation(known: Option<&str>, driver: &str, id: Option<&str>) -> Result<Option<String>, String> {
    let mut ids: BTreeMap<String, String> = match known.filter(|text| !text.is_empty()) {
        Some(text) => serde_json::from_str(text).map_err(|error| {
            format!("failed to parse node's \"{NODE_ID}\" annotation value (\"{text}\") err={error}")
        })?,
        None => BTreeMap::new(),
    };
    match id {
        Some(id) => drop(ids.insert(driver.to_string(), id.to_string())),
        None => drop(ids.remove(driver)),
    }
    match ids.is_empty() {
        true => Ok(None),
        false => serde_json::to_string(&ids).map(Some).map_err(|error| error.to_string()),
    }
}

/// Drivers must agree with each other, and with the administrator, on where the node is.
fn check_topology(labels: &BTreeMap<String, String>, topology: &BTreeMap<String, String>) -> Result<(), String> {
    for (key, value) in topology {
        if let Some(known) = labels.get(key).filter(|known| *known != value) {
            return Err(format!(
                "detected topology value collision: driver reported \"{key}\":\"{value}\" but existing label is \
                 \"{key}\":\"{known}\""
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_share_an_annotation() {
        let one = node_id_annotation(None, "a", Some("1")).expect("set");
        assert_eq!(one.as_deref(), Some(r#"{"a":"1"}"#));
        let two = node_id_annotation(one.as_deref(), "b", Some("2")).expect("set");
        assert_eq!(two.as_deref(), Some(r#"{"a":"1","b":"2"}"#));
        assert_eq!(node_id_annotation(two.as_deref(), "a", None).expect("removed").as_deref(), Some(r#"{"b":"2"}"#));
        assert_eq!(node_id_annotation(one.as_deref(), "a", None).expect("removed"), None);
        node_id_annotation(Some("{"), "a", None).expect_err("not JSON");
    }

    #[test]
    fn a_driver_is_written_when_it_changed() {
        let info = DriverInfo {
            node_id: "n".into(),
            topology: BTreeMap::from([("z/one".into(), "1".into()), ("a/two".into(), "2".into())]),
            limit: Some(5),
        };
        let entry = driver_entry("d", &info);
        assert_eq!(entry.topology_keys.as_deref(), Some(&["a/two".to_string(), "z/one".to_string()][..]));
        let mut drivers = Vec::new();
        assert!(put_driver(&mut drivers, &entry));
        assert!(!put_driver(&mut drivers, &entry));
        assert!(put_driver(&mut drivers, &driver_entry("d", &DriverInfo { limit: None, ..info })));
        assert_eq!((drivers.len(), drivers[0].allocatable.as_ref()), (1, None));
    }

    #[test]
    fn places_must_agree() {
        let labels = BTreeMap::from([("zone".to_string(), "a".to_string())]);
        assert_eq!(check_topology(&labels, &labels), Ok(()));
        let other = BTreeMap::from([("zone".to_string(), "b".to_string())]);
        let text =
            "detected topology value collision: driver reported \"zone\":\"b\" but existing label is \"zone\":\"a\"";
        assert_eq!(check_topology(&labels, &other), Err(text.to_string()));
    }

    #[test]
    fn limits_are_read_from_the_driver() {
        for (limit, expected) in [(0, None), (-1, None), (7, Some(7)), (i64::MAX, Some(i32::MAX))] {
            let response = NodeGetInfoResponse { max_volumes_per_node: limit, ..Default::default() };
            assert_eq!(DriverInfo::from(response).limit, expected, "{limit}");
        }
    }
}
