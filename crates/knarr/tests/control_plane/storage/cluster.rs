//! A control plane with hollow nodes and a CSI driver in memory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use knarr_client::kube::Client;
use knarr_csi_controller::Settings;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::csi_driver::{FakeDriver, Serving};
use crate::support::hollow::HollowNodes;
use crate::support::{ControlPlane, TIMEOUT};

pub const NODE: &str = "hollow-0";

/// A control plane, hollow nodes, and a driver on the first of them.
pub struct Cluster {
    pub plane: ControlPlane,
    pub driver: Arc<FakeDriver>,
    pub registry: PathBuf,
    /// Of the node's storage: what it writes is checked as on nodes.
    pub client: Client,
    pub controller: Option<JoinHandle<()>>,
    _nodes: HollowNodes,
    _serving: Serving,
}

impl Cluster {
    pub async fn start(nodes: usize, is_local: bool) -> Self {
        let plane = ControlPlane::start();
        let hollow = HollowNodes::start(plane.client().await, nodes).await;
        let storage = knarr_client::node_identity::STORAGE;
        let client = plane.client_as(&storage.user(NODE), storage.group).await;
        // Roles do not matter here: admission decides which objects it writes.
        let group = format!("--group={}", storage.group);
        let bound = plane.kubectl(&["create", "clusterrolebinding", "storage", "--clusterrole=cluster-admin", &group]);
        bound.expect("a binding");
        let directory = plane.data().join("csi");
        let registry = directory.join("registry");
        std::fs::create_dir_all(&registry).expect("directories");
        let driver = FakeDriver::new("fake.example.com", NODE, &directory, is_local);
        let serving = driver.serve(&registry);
        let mut cluster = Self { plane, driver, registry, client, controller: None, _nodes: hollow, _serving: serving };
        cluster.apply(include_str!("../../../src/join/snapshots.yaml"));
        cluster.create_driver_objects(nodes, is_local);
        cluster.start_controller();
        cluster
    }

    pub fn create_driver_objects(&self, nodes: usize, is_local: bool) {
        let name = &self.driver.name;
        let annotations = json!({knarr_csi_controller::ANNOTATION: knarr_csi_controller::BUILT_IN});
        self.apply_json(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name, "annotations": annotations},
            "spec": {"attachRequired": !is_local, "storageCapacity": is_local},
        }));
        for number in 0..nodes {
            let node = format!("hollow-{number}");
            let keys = if is_local { json!([FakeDriver::TOPOLOGY]) } else { json!([]) };
            self.kubectl(&["label", "node", &node, &format!("{}={node}", FakeDriver::TOPOLOGY)]);
            // Only the first node has the local driver.
            if number == 0 || !is_local {
                self.apply_json(&json!({
                    "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node},
                    "spec": {"drivers": [{"name": name, "nodeID": format!("id-{node}"), "topologyKeys": keys}]},
                }));
            }
        }
        for (class, mode) in [("late", "WaitForFirstConsumer"), ("now", "Immediate")] {
            self.apply_json(&json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": class},
                "provisioner": name, "volumeBindingMode": mode, "allowVolumeExpansion": true,
            }));
        }
        self.apply_json(&json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": "snap"},
            "driver": name, "deletionPolicy": "Delete",
        }));
    }

    pub fn start_controller(&mut self) {
        let settings =
            Settings { node: NODE.to_owned(), registry: self.registry.clone(), namespace: "kube-system".to_owned() };
        self.controller = Some(tokio::spawn(knarr_csi_controller::run(self.client.clone(), settings)));
    }

    /// What a kill does: nothing of it runs any more.
    pub async fn kill_controller(&mut self) {
        if let Some(controller) = self.controller.take() {
            controller.abort();
            // The error says that it was aborted.
            let _ = controller.await;
        }
    }

    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.plane.kubectl(arguments).unwrap_or_else(|error| panic!("kubectl {arguments:?}: {error}"))
    }

    pub fn apply(&self, text: &str) {
        let file = self.plane.data().join("object.yaml");
        std::fs::write(&file, text).expect("a file");
        let path = file.to_string_lossy();
        let started = std::time::Instant::now();
        // A kind that was defined just now is served a moment later.
        while let Err(error) = self.plane.kubectl(&["apply", "-f", &path]) {
            assert!(started.elapsed() < TIMEOUT && error.contains("no matches for kind"), "{error}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    pub fn apply_json(&self, object: &Value) {
        self.apply(&object.to_string());
    }

    pub fn claim(&self, name: &str, class: &str, size: &str) {
        self.claim_with(name, class, size, &Value::Null);
    }

    pub fn claim_with(&self, name: &str, class: &str, size: &str, source: &Value) {
        self.apply_json(&json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"], "dataSource": source,
                "resources": {"requests": {"storage": size}}},
        }));
    }

    pub fn pod(&self, name: &str, claim: &str, node: Option<&str>) {
        let selector = node.map(|node| json!({"kubernetes.io/hostname": node}));
        self.apply_json(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"nodeSelector": selector, "containers": [{"name": "c", "image": "i"}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]},
        }));
    }

    /// Waits until the expression of an object has the value.
    pub async fn until(&self, object: &str, path: &str, expected: &str) -> String {
        self.until_is(object, path, |value| value == expected, expected).await
    }

    pub async fn until_is(&self, object: &str, path: &str, is_it: impl Fn(&str) -> bool, expected: &str) -> String {
        let started = std::time::Instant::now();
        loop {
            let template = format!("jsonpath={{{path}}}");
            let value = self.plane.kubectl(&["get", object, "-o", &template]);
            match &value {
                Ok(value) if is_it(value) => return value.clone(),
                _ => {}
            }
            if started.elapsed() > TIMEOUT {
                let shown = self.plane.kubectl(&["get", "pods,pvc,pv,volumeattachments,events", "-A"]);
                panic!("{object} {path} is {value:?}, not {expected}\n{}", shown.unwrap_or_else(|error| error));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub async fn until_gone(&self, object: &str) {
        let started = std::time::Instant::now();
        while self.plane.kubectl(&["get", object]).is_ok() {
            if started.elapsed() > TIMEOUT {
                panic!("{object} is still there: {}", self.kubectl(&["get", object, "-o", "yaml"]));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub async fn until_volumes(&self, count: usize) {
        let started = std::time::Instant::now();
        while self.driver.volumes().len() != count {
            assert!(started.elapsed() < TIMEOUT, "volumes: {:?}, not {count}", self.driver.volumes());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub async fn until_event(&self, about: &str, reason: &str, message: &str) {
        let started = std::time::Instant::now();
        loop {
            let selector = format!("involvedObject.name={about},reason={reason}");
            let found = self.kubectl(&[
                "get",
                "events",
                "-A",
                "--field-selector",
                &selector,
                "-o",
                "jsonpath={.items[*].message}",
            ]);
            if found.contains(message) {
                return;
            }
            assert!(started.elapsed() < TIMEOUT, "no event {reason} about {about} with {message:?}: {found:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}
