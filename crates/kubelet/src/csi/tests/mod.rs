//! The way of a volume with a driver on a real socket that fails, hangs, responds late or is killed at each call.

mod expansion;
mod failures;
mod mounts;
mod registration;
mod secrets;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::{Value, json};

use super::fake_api::{FakeApi, merge};
use super::fake_driver::FakeDriver;
use super::mount::MountResult;
use super::*;

pub(super) const DRIVER: &str = "fake.csi.example.com";
/// Long enough for a driver that works, short enough to wait for one that hangs.
const CALL_TIMEOUT: Duration = Duration::from_millis(1500);

/// A node with a driver.
struct Rig {
    directory: tempfile::TempDir,
    api: Arc<FakeApi>,
    csi: Arc<Csi>,
    driver: FakeDriver,
    notified: Arc<tokio::sync::Notify>,
}

impl Rig {
    async fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let api = Arc::new(FakeApi::default());
        api.set_driver(json!({ "attachRequired": false, "fsGroupPolicy": "File",
            "volumeLifecycleModes": ["Persistent", "Ephemeral"] }));
        let node = json!({ "metadata": { "name": "n", "uid": "node-uid" } });
        api.put("/api/v1/nodes/n", node.clone());
        *api.node.lock() = node;
        let driver = FakeDriver::start(&directory.path().join("csi.sock"), DRIVER);
        let csi = start(directory.path(), &api);
        let rig = Self { directory, api, csi, driver, notified: Arc::default() };
        rig.csi.register(&rig.driver.socket).await.expect("registered");
        rig.driver.take_calls();
        rig
    }

    /// The kubelet is killed and started again.
    async fn restart(&mut self) {
        self.csi = start(self.directory.path(), &self.api);
        self.csi.register(&self.driver.socket).await.expect("registered");
        self.driver.take_calls();
    }

    async fn mount(&self, uid: &str, volume: &CsiVolume) -> Result<MountResult, CsiError> {
        self.mount_claimed(uid, volume, None).await
    }

    async fn mount_claimed(
        &self,
        uid: &str,
        volume: &CsiVolume,
        claim: Option<&Value>,
    ) -> Result<MountResult, CsiError> {
        let claim: Option<PersistentVolumeClaim> =
            claim.map(|claim| serde_json::from_value(claim.clone()).expect("a claim"));
        let notified = self.notified.clone();
        let notify: crate::objects::Notify = Arc::new(move || notified.notify_one());
        let pod = pod(uid);
        let request = MountRequest { pod: &pod, volume, name: "data", claim: claim.as_ref(), notify };
        self.csi.mount(&request).await
    }

    async fn unmount(&self, uid: &str) -> Result<(), String> {
        self.csi.unmount_pod(uid, None).await
    }

    /// Repeats until it succeeds, as workers and the task for unused volumes do.
    async fn unmount_everything(&self, uid: &str) {
        let work = async {
            while self.unmount(uid).await.is_err() {}
            for (id, _) in self.csi.state.all() {
                while self.csi.unstage_if_unused(&id).await.is_err() {}
            }
        };
        tokio::time::timeout(Duration::from_secs(20), work).await.expect("it ends");
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut left = vec![self.directory.path().join("data/pods"), self.csi.paths.plugin()];
        while let Some(path) = left.pop() {
            for entry in std::fs::read_dir(&path).into_iter().flatten().flatten() {
                match entry.file_type().expect("a type").is_dir() {
                    true => left.push(entry.path()),
                    false => found.push(entry.path()),
                }
            }
        }
        found
    }

    fn assert_clean(&self) {
        assert_eq!(self.driver.leaks(), Vec::<String>::new(), "the driver has nothing left");
        assert_eq!(self.files(), Vec::<PathBuf>::new(), "no record is left");
        assert_eq!(self.csi.state.all(), Vec::new(), "no volume is known");
    }
}

fn start(directory: &Path, api: &Arc<FakeApi>) -> Arc<Csi> {
    let mut settings = Settings::new("n", directory.join("data"), "/x".into());
    settings.plugin_root = directory.join("data");
    let parts = Parts {
        client: api.client(),
        tokens: Tokens::new(api.client()),
        objects: api.clone(),
        metrics: Arc::default(),
    };
    Csi::with_timeout(&settings, parts, CALL_TIMEOUT)
}

fn pod(uid: &str) -> Pod {
    serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "ns", "uid": uid },
        "spec": { "serviceAccountName": "account", "containers": [] } }))
    .expect("a pod")
}

fn volume_with(change: Value) -> CsiVolume {
    let mut volume = json!({ "metadata": { "name": "pv" }, "spec": {
        "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" }, "mountOptions": ["noatime"],
        "csi": { "driver": DRIVER, "volumeHandle": "handle", "fsType": "ext4", "volumeAttributes": { "a": "b" } } } });
    merge(&mut volume, &change);
    CsiVolume::persistent(&serde_json::from_value(volume).expect("a volume"), false).expect("a CSI volume")
}

fn volume() -> CsiVolume {
    volume_with(json!({}))
}

fn inline() -> CsiVolume {
    let source = json!({ "name": "v", "csi": { "driver": DRIVER, "readOnly": true } });
    CsiVolume::inline(&pod("u"), &serde_json::from_value(source).expect("a volume")).expect("a CSI volume")
}
