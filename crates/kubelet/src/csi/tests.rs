//! The way of a volume with a driver on a real socket that fails, hangs, responds late or is killed at each call.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use knarr_csi::Code;
use knarr_csi::messages::{AccessType, NodeCapability, VolumeCondition};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::fake_api::{FakeApi, merge};
use super::fake_driver::{Behaviour, FakeDriver};
use super::mount::MountResult;
use super::state::Progress;
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

/// As administrators do to share one volume between namespaces.
#[tokio::test]
async fn two_persistent_volumes_can_be_the_same_volume() {
    let mut rig = Rig::new().await;
    let other = volume_with(json!({ "metadata": { "name": "other" } }));
    for killed in [false, true] {
        let paths =
            [rig.mount("a", &volume()).await, rig.mount("b", &other).await].map(|mount| mount.expect("mounted").path);
        assert!(paths[0].ends_with("pv/mount") && paths[1].ends_with("other/mount"), "{paths:?}");
        if killed {
            rig.restart().await;
        }
        rig.unmount("a").await.expect("unmounted");
        rig.unmount_everything("b").await;
        rig.assert_clean();
    }
}

#[tokio::test]
async fn a_volume_is_staged_once_for_two_pods_and_unstaged_with_the_last() {
    let rig = Rig::new().await;
    let first = rig.mount("a", &volume()).await.expect("mounted");
    assert!(first.path.ends_with("pods/a/volumes/kubernetes.io~csi/pv/mount") && first.path.is_dir());
    rig.mount("b", &volume()).await.expect("mounted");
    rig.mount("a", &volume()).await.expect("nothing to do");
    assert_eq!(rig.driver.take_calls(), ["NodeStageVolume", "NodePublishVolume", "NodePublishVolume"]);
    let (stage, publish) = {
        let account = rig.driver.fake.account.lock();
        (account.stages[0].clone(), account.publishes[0].clone())
    };
    assert_eq!(stage.staging_target_path, rig.csi.paths.stage(DRIVER, "handle").to_string_lossy());
    assert_eq!(publish.staging_target_path, stage.staging_target_path);
    assert_eq!(publish.volume_context["a"], "b");
    let Some(Some(AccessType::Mount(mount))) = stage.volume_capability.map(|capability| capability.access_type) else {
        panic!("a file system");
    };
    assert_eq!((mount.fs_type.as_str(), mount.mount_flags), ("ext4", vec!["noatime".to_string()]));
    rig.unmount("a").await.expect("unmounted");
    rig.csi.unstage_if_unused(&volume().id).await.expect("still used");
    assert_eq!(rig.driver.take_calls(), ["NodeUnpublishVolume"]);
    rig.unmount_everything("b").await;
    assert_eq!(rig.driver.take_calls(), ["NodeUnpublishVolume", "NodeUnstageVolume"]);
    rig.assert_clean();
}

/// The driver fails a call of mounting; then the pod is deleted, or the call is repeated.
async fn mount_fails(method: &'static str, behaviour: Behaviour) {
    let rig = Rig::new().await;
    rig.driver.will(method, behaviour.clone());
    rig.mount("a", &volume()).await.expect_err("the driver fails");
    rig.unmount_everything("a").await;
    rig.assert_clean();
    rig.driver.will(method, behaviour.clone());
    rig.mount("a", &volume()).await.expect_err("the driver fails");
    rig.mount("a", &volume()).await.expect("mounted now");
    assert_eq!(rig.driver.leaks().len(), 2, "{method} {behaviour:?}: staged and published once");
    rig.unmount_everything("a").await;
    rig.assert_clean();
}

/// The driver fails a call of unmounting twice.
async fn unmount_fails(method: &'static str, behaviour: Behaviour) {
    let rig = Rig::new().await;
    rig.mount("a", &volume()).await.expect("mounted");
    rig.driver.will(method, behaviour.clone());
    rig.driver.will(method, behaviour.clone());
    rig.unmount_everything("a").await;
    let calls = rig.driver.take_calls().iter().filter(|call| *call == method).count();
    assert_eq!(calls, 3, "{method} {behaviour:?}: repeated until it succeeds");
    rig.assert_clean();
}

#[tokio::test]
async fn whatever_happens_to_a_call_nothing_is_left_behind() {
    let failures = [
        Behaviour::Fail(Code::Internal),
        Behaviour::Fail(Code::Aborted),
        Behaviour::DoAndFail(Code::Unavailable),
        Behaviour::DoAndFail(Code::DeadlineExceeded),
        Behaviour::Hang,
        Behaviour::DoAndHang,
    ];
    let cases = |methods: [&'static str; 2]| {
        methods.into_iter().flat_map(|method| failures.clone().map(|behaviour| (method, behaviour)))
    };
    let mounts = cases(["NodeStageVolume", "NodePublishVolume"]).map(|(method, with)| mount_fails(method, with));
    futures::future::join_all(mounts).await;
    let unmounts =
        cases(["NodeUnpublishVolume", "NodeUnstageVolume"]).map(|(method, with)| unmount_fails(method, with));
    futures::future::join_all(unmounts).await;
}

#[tokio::test]
async fn an_outcome_that_is_unknown_is_undone() {
    let rig = Rig::new().await;
    rig.driver.will("NodeStageVolume", Behaviour::DoAndHang);
    let error = rig.mount("a", &volume()).await.expect_err("no response");
    assert_eq!(
        error.event_message(),
        "MountVolume.MountDevice failed for volume \"pv\" : rpc error: code = DeadlineExceeded desc = context deadline \
         exceeded"
    );
    assert_eq!(rig.csi.state.get(&volume().id).map(|known| known.staged), Some(Progress::Uncertain));
    rig.unmount_everything("a").await;
    assert_eq!(rig.driver.take_calls(), ["NodeStageVolume", "NodeUnstageVolume"]);
    // A refusal that is certain needs no cleanup by the driver.
    rig.driver.will("NodeStageVolume", Behaviour::Fail(Code::InvalidArgument));
    rig.mount("a", &volume()).await.expect_err("refused");
    rig.unmount_everything("a").await;
    assert_eq!(rig.driver.take_calls(), ["NodeStageVolume"]);
    rig.assert_clean();
}

#[tokio::test]
async fn a_driver_that_is_killed_during_a_call_is_asked_again() {
    for method in ["NodeStageVolume", "NodePublishVolume"] {
        let mut rig = Rig::new().await;
        rig.driver.will(method, Behaviour::DoAndHang);
        let wanted = volume();
        let (mounted, ()) = tokio::join!(rig.mount("a", &wanted), async {
            rig.driver.wait_for_call(method).await;
            rig.driver.kill();
        });
        mounted.expect_err("the connection broke");
        let staged = rig.csi.state.get(&volume().id).map(|known| (known.staged, known.users["a"]));
        let expected = match method {
            "NodeStageVolume" => (Progress::Uncertain, Progress::Not),
            _ => (Progress::Done, Progress::Uncertain),
        };
        assert_eq!(staged, Some(expected), "{method}");
        rig.mount("a", &volume()).await.expect_err("the driver is down");
        rig.driver.restart();
        let work = async { while rig.mount("a", &volume()).await.is_err() {} };
        tokio::time::timeout(Duration::from_secs(10), work).await.expect("mounted");
        rig.unmount_everything("a").await;
        rig.assert_clean();
    }
}

#[tokio::test]
async fn late_responses_count_and_operations_do_not_overlap() {
    let rig = Rig::new().await;
    rig.driver.will("NodeStageVolume", Behaviour::Late(CALL_TIMEOUT / 4));
    let (wanted, other) = (volume(), volume());
    let (first, second) = tokio::join!(rig.mount("a", &wanted), rig.mount("b", &other));
    first.expect("mounted");
    second.expect("mounted");
    let calls = rig.driver.take_calls();
    assert_eq!(calls.iter().filter(|call| *call == "NodeStageVolume").count(), 1, "{calls:?}");
    let (unmounted, mounted) = tokio::join!(rig.unmount("a"), rig.mount("c", &wanted));
    unmounted.expect("unmounted");
    mounted.expect("mounted");
    for uid in ["b", "c"] {
        rig.unmount_everything(uid).await;
    }
    rig.assert_clean();
}

#[tokio::test]
async fn after_a_restart_volumes_of_pods_that_are_gone_are_removed() {
    let mut rig = Rig::new().await;
    rig.mount("stays", &volume()).await.expect("mounted");
    rig.mount("gone", &volume()).await.expect("mounted");
    rig.mount("u", &inline()).await.expect("mounted");
    rig.restart().await;
    let known = rig.csi.state.get(&volume().id).expect("reconstructed");
    assert_eq!((known.staged, known.users.len()), (Progress::Uncertain, 2));
    assert_eq!(known.spec_name, "pv");
    rig.unmount_everything("gone").await;
    rig.unmount_everything("u").await;
    assert_eq!(rig.driver.take_calls(), ["NodeUnpublishVolume", "NodeUnpublishVolume"], "others stay");
    // The pod that stays gets its volume again, although a driver refuses what is already done.
    rig.driver.will("NodeStageVolume", Behaviour::Fail(Code::Internal));
    rig.mount("stays", &volume()).await.expect_err("refused");
    assert!(rig.csi.paths.publish("stays", "pv").is_dir(), "the containers keep it");
    rig.mount("stays", &volume()).await.expect("mounted");
    assert_eq!(rig.driver.take_calls(), ["NodeStageVolume", "NodeStageVolume", "NodePublishVolume"]);
    rig.restart().await;
    rig.unmount_everything("stays").await;
    rig.assert_clean();
}

async fn killed_at(method: &'static str, behaviour: Behaviour) {
    let mut rig = Rig::new().await;
    rig.driver.will(method, behaviour);
    // Whether these fail depends on the step.
    let _ = rig.mount("a", &volume()).await;
    let _ = rig.unmount("a").await;
    let _ = rig.csi.unstage_if_unused(&volume().id).await;
    rig.restart().await;
    rig.unmount_everything("a").await;
    rig.assert_clean();
}

#[tokio::test]
async fn a_kill_between_two_steps_leaves_nothing_behind() {
    let cases = [
        ("NodeStageVolume", Behaviour::DoAndHang),
        ("NodePublishVolume", Behaviour::DoAndHang),
        ("NodePublishVolume", Behaviour::Fail(Code::Internal)),
        ("NodeUnpublishVolume", Behaviour::DoAndHang),
        ("NodeUnpublishVolume", Behaviour::Hang),
        ("NodeUnstageVolume", Behaviour::DoAndHang),
        ("NodeUnstageVolume", Behaviour::Hang),
    ];
    futures::future::join_all(cases.map(|(method, behaviour)| killed_at(method, behaviour))).await;
}

#[tokio::test]
async fn a_missing_driver_is_waited_for() {
    let rig = Rig::new().await;
    rig.mount("a", &volume()).await.expect("mounted");
    rig.csi.unregister(DRIVER).await;
    rig.mount("a", &volume()).await.expect("a mounted volume needs no driver");
    let error = rig.mount("b", &volume()).await.expect_err("no driver");
    let missing = format!("driver name {DRIVER} not found in the list of registered CSI drivers");
    assert_eq!(
        error.event_message(),
        format!(
            "MountVolume.MountDevice failed for volume \"pv\" : kubernetes.io/csi: attacher.MountDevice failed to create \
             newCsiDriverClient: {missing}"
        )
    );
    let error = rig.unmount("a").await.expect_err("no driver");
    assert!(
        error.contains(&missing) && error.starts_with("UnmountVolume.TearDown failed for volume \"pv\""),
        "{error}"
    );
    rig.csi.register(&rig.driver.socket).await.expect("registered");
    tokio::time::timeout(Duration::from_secs(5), rig.notified.notified()).await.expect("the worker is notified");
    rig.mount("b", &volume()).await.expect("mounted");
    rig.unmount_everything("a").await;
    rig.unmount_everything("b").await;
    rig.assert_clean();
}

#[tokio::test]
async fn an_attachable_volume_waits_for_the_control_plane() {
    let rig = Rig::new().await;
    rig.api
        .set_driver(json!({ "attachRequired": true, "fsGroupPolicy": "File", "volumeLifecycleModes": ["Persistent"] }));
    let name = volume().id.unique_name();
    let error = rig.mount("a", &volume()).await.expect_err("not reported");
    assert!(error.waits && error.text.contains("VolumesInUse"), "{error}");
    assert_eq!(rig.csi.volumes_in_use(), Some(vec![name.clone()]));
    rig.csi.set_reported(std::slice::from_ref(&name));
    tokio::time::timeout(Duration::from_secs(5), rig.notified.notified()).await.expect("notified");
    let error = rig.mount("a", &volume()).await.expect_err("not attached");
    assert!(error.waits && error.text == format!("volume {name} is not yet in node's status"), "{error}");
    rig.api.node.lock()["status"] = json!({ "volumesAttached": [{ "name": name, "devicePath": "" }] });
    rig.csi.node_changed(&rig.api.node().expect("a node"));
    tokio::time::timeout(Duration::from_secs(5), rig.notified.notified()).await.expect("notified");
    let error = rig.mount("a", &volume()).await.expect_err("no attachment");
    assert!(
        error
            .event_message()
            .starts_with("MountVolume.WaitForAttach failed for volume \"pv\" : volume handle has GET error"),
        "{}",
        error.event_message()
    );
    let attachment = paths::attachment_name("handle", DRIVER, "n");
    rig.api.put(
        &format!("/apis/storage.k8s.io/v1/volumeattachments/{attachment}"),
        json!({ "metadata": { "name": attachment }, "spec": { "attacher": DRIVER, "nodeName": "n", "source": {} },
            "status": { "attached": true, "attachmentMetadata": { "device": "/dev/x" } } }),
    );
    rig.mount("a", &volume()).await.expect("mounted");
    {
        let account = rig.driver.fake.account.lock();
        assert_eq!(account.stages[0].publish_context["device"], "/dev/x");
        assert_eq!(account.publishes[0].publish_context["device"], "/dev/x");
    }
    rig.unmount("a").await.expect("unmounted");
    assert_eq!(rig.csi.volumes_in_use(), Some(vec![name.clone()]), "it is still staged");
    rig.unmount_everything("a").await;
    assert_eq!(rig.csi.volumes_in_use(), None);
    rig.api.node.lock()["status"]["volumesInUse"] = json!([name]);
    assert_eq!(rig.csi.volumes_in_use(), Some(Vec::new()), "the old list is replaced");
}

#[tokio::test]
async fn only_one_pod_has_a_volume_that_is_for_one_pod() {
    let rig = Rig::new().await;
    let exclusive = volume_with(json!({ "spec": { "accessModes": ["ReadWriteOncePod"] } }));
    rig.mount("a", &exclusive).await.expect("mounted");
    let error = rig.mount("b", &exclusive).await.expect_err("in use");
    let text = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
    assert_eq!(error.event_message(), format!("MountVolume.SetUp failed for volume \"pv\" : {text}"));
    rig.unmount("a").await.expect("unmounted");
    rig.mount("b", &exclusive).await.expect("mounted");
    rig.unmount_everything("b").await;
    rig.assert_clean();
}

/// Collects everything that is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn secrets_and_tokens_reach_the_driver_and_no_log() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    // Another test, without a subscriber, may be the first to reach a log line, which is then remembered as disabled.
    tracing::callsite::rebuild_interest_cache();
    let rig = Rig::new().await;
    rig.api.set_driver(json!({ "attachRequired": false, "fsGroupPolicy": "File", "podInfoOnMount": true,
        "volumeLifecycleModes": ["Persistent"], "tokenRequests": [{ "audience": "vault" }] }));
    // "hunter2", as it is in the API.
    let secret = json!({ "metadata": { "name": "s" }, "data": { "password": "aHVudGVyMg==" } });
    rig.api.put("/api/v1/namespaces/x/secrets/s", secret);
    let reference = json!({ "name": "s", "namespace": "x" });
    let secret = volume_with(json!({ "spec": { "csi": {
        "nodeStageSecretRef": reference, "nodePublishSecretRef": reference } } }));
    let error = rig.mount("a", &secret).await.expect_err("the API gives no token");
    assert!(error.text.contains("service accoount token attributes"), "{error}");
    rig.csi.tokens.put_for_test("a", "vault", 3600, "hunter2-token");
    rig.driver.will("NodePublishVolume", Behaviour::Fail(Code::Internal));
    rig.mount("a", &secret).await.expect_err("refused");
    rig.mount("a", &secret).await.expect("mounted");
    {
        let account = rig.driver.fake.account.lock();
        assert_eq!(account.stages[0].secrets[0].value, "hunter2");
        assert_eq!(account.publishes[0].secrets[0].value, "hunter2");
        let context = &account.publishes[0].volume_context;
        let tokens: Value = serde_json::from_str(&context["csi.storage.k8s.io/serviceAccount.tokens"]).expect("JSON");
        assert_eq!(tokens["vault"]["token"], "hunter2-token");
        assert_eq!(context["csi.storage.k8s.io/pod.name"], "p");
        assert_eq!(context["csi.storage.k8s.io/serviceAccount.name"], "account");
    }
    for record in rig.files() {
        let text = std::fs::read_to_string(&record).expect("read");
        assert!(!text.contains("hunter2"), "{}: {text}", record.display());
    }
    rig.unmount_everything("a").await;
    let logged = String::from_utf8_lossy(&log.0.lock()).into_owned();
    assert!(logged.contains("published"), "something is logged");
    assert!(!logged.contains("hunter2"), "{logged}");
    assert!(!logged.contains("aHVudGVyMg"), "{logged}");
}

#[tokio::test]
async fn a_driver_that_asks_for_it_publishes_again() {
    let rig = Rig::new().await;
    rig.api.set_driver(json!({ "attachRequired": false, "fsGroupPolicy": "File", "requiresRepublish": true,
        "volumeLifecycleModes": ["Ephemeral"] }));
    let mounted = rig.mount("u", &inline()).await.expect("mounted");
    assert!(mounted.again_after.is_some() && mounted.read_only);
    rig.mount("u", &inline()).await.expect("mounted");
    rig.driver.will("NodePublishVolume", Behaviour::Fail(Code::Internal));
    rig.mount("u", &inline()).await.expect_err("refused");
    assert!(mounted.path.is_dir(), "the pod keeps what it has");
    assert_eq!(rig.driver.take_calls(), ["NodePublishVolume"; 3]);
    let error = rig.mount("a", &volume()).await.expect_err("the driver serves inline volumes only");
    assert!(error.text.contains("volume mode \"Persistent\" not supported by driver"), "{error}");
    rig.unmount_everything("u").await;
    rig.unmount_everything("a").await;
    rig.assert_clean();
}

#[tokio::test]
async fn block_devices_are_published_and_linked() {
    let mut rig = Rig::new().await;
    let device = volume_with(json!({ "spec": { "volumeMode": "Block" } }));
    let mounted = rig.mount("a", &device).await.expect("mapped");
    assert_eq!(mounted.path, rig.csi.paths.device_publish("pv", "a"));
    assert_eq!(std::fs::read_link(rig.csi.paths.pod_device("a", "pv")).expect("a link"), mounted.path);
    assert!(crate::volumes::is_mount_point(&rig.csi.paths.device_map("pv", "a")));
    assert_eq!(mounted.notes.len(), 2);
    assert!(mounted.notes[0].message.starts_with("MapVolume.MapPodDevice succeeded for volume \"pv\" globalMapPath"));
    rig.driver.will("NodePublishVolume", Behaviour::Fail(Code::Internal));
    let error = rig.mount("b", &device).await.expect_err("refused");
    assert_eq!(error.event_reason(), "FailedMapVolume");
    rig.restart().await;
    rig.unmount_everything("b").await;
    rig.unmount_everything("a").await;
    rig.assert_clean();
}

#[tokio::test]
async fn drivers_without_staging_only_publish() {
    let rig = Rig::new().await;
    *rig.driver.fake.capabilities.lock() = vec![NodeCapability::VolumeMountGroup];
    rig.mount("a", &volume()).await.expect("mounted");
    let device = volume_with(json!({ "spec": { "volumeMode": "Block", "csi": { "volumeHandle": "other" } } }));
    rig.mount("b", &device).await.expect("mapped");
    rig.unmount_everything("a").await;
    rig.unmount_everything("b").await;
    assert_eq!(
        rig.driver.take_calls(),
        ["NodePublishVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnpublishVolume"]
    );
    rig.assert_clean();
}

fn claim(status: Value) -> Value {
    let mut claim = json!({ "metadata": { "name": "c", "namespace": "ns", "resourceVersion": "5" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "2Gi" } } },
        "status": { "capacity": { "storage": "1Gi" } } });
    merge(&mut claim["status"], &status);
    claim
}

#[tokio::test]
async fn a_volume_is_expanded_while_it_is_in_use() {
    let rig = Rig::new().await;
    let path = "/api/v1/namespaces/ns/persistentvolumeclaims/c";
    rig.mount_claimed("a", &volume(), Some(&claim(json!({})))).await.expect("mounted");
    let pending = claim(json!({ "allocatedResourceStatuses": { "storage": "NodeResizePending" },
        "conditions": [{ "type": "FileSystemResizePending", "status": "True" }] }));
    let larger = volume_with(json!({ "spec": { "capacity": { "storage": "2Gi" } } }));
    // The driver fails, hangs, and then succeeds.
    for behaviour in [Behaviour::Fail(Code::Internal), Behaviour::Hang] {
        rig.api.put(path, pending.clone());
        rig.driver.will("NodeExpandVolume", behaviour);
        let mounted = rig.mount_claimed("a", &larger, Some(&pending)).await.expect("it stays mounted");
        assert_eq!(mounted.notes.iter().map(|note| note.reason).collect::<Vec<_>>(), ["VolumeResizeFailed"]);
        assert_eq!(
            rig.api.objects.lock()[path]["status"]["allocatedResourceStatuses"]["storage"],
            "NodeResizeInProgress"
        );
    }
    rig.api.put(path, pending.clone());
    let mounted = rig.mount_claimed("a", &larger, Some(&pending)).await.expect("expanded");
    let status = rig.api.objects.lock()[path]["status"].clone();
    assert_eq!(status["capacity"]["storage"], "2Gi");
    assert_eq!(status["conditions"], json!([]));
    assert_eq!(status["allocatedResourceStatuses"], json!({}));
    assert_eq!(mounted.notes[0].message, "MountVolume.NodeExpandVolume succeeded for volume \"pv\" n");
    assert!(mounted.notes[1].on_claim);
    {
        let account = rig.driver.fake.account.lock();
        let request = &account.expands[0];
        assert_eq!(request.capacity_range.map(|range| range.required_bytes), Some(2 << 30));
        assert!(request.volume_path.ends_with("/mount") && request.staging_target_path.ends_with("/globalmount"));
    }
    rig.driver.take_calls();
    rig.mount_claimed("a", &larger, Some(&claim(json!({ "capacity": { "storage": "2Gi" } })))).await.expect("mounted");
    assert_eq!(rig.driver.take_calls(), Vec::<String>::new(), "nothing is left to do");
    rig.unmount_everything("a").await;
    rig.assert_clean();
}

#[tokio::test]
async fn a_kill_during_an_expansion_does_not_lose_it() {
    let mut rig = Rig::new().await;
    let path = "/api/v1/namespaces/ns/persistentvolumeclaims/c";
    let pending = claim(json!({ "allocatedResourceStatuses": { "storage": "NodeResizePending" } }));
    rig.api.put(path, pending.clone());
    rig.mount_claimed("a", &volume(), Some(&claim(json!({})))).await.expect("mounted");
    let larger = volume_with(json!({ "spec": { "capacity": { "storage": "2Gi" } } }));
    rig.driver.will("NodeExpandVolume", Behaviour::DoAndHang);
    {
        let expanding = rig.mount_claimed("a", &larger, Some(&pending));
        let called = rig.driver.wait_for_call("NodeExpandVolume");
        tokio::select! { _ = expanding => panic!("the driver hangs"), () = called => {} }
    }
    rig.restart().await;
    let left = rig.api.objects.lock()[path].clone();
    rig.mount_claimed("a", &larger, Some(&left)).await.expect("expanded");
    assert_eq!(rig.api.objects.lock()[path]["status"]["capacity"]["storage"], "2Gi");
    assert!(rig.driver.take_calls().contains(&"NodeExpandVolume".to_owned()), "called again");
    rig.unmount_everything("a").await;
    rig.assert_clean();
}

#[tokio::test]
async fn an_expansion_that_cannot_succeed_is_given_up() {
    let rig = Rig::new().await;
    let path = "/api/v1/namespaces/ns/persistentvolumeclaims/c";
    let pending = claim(json!({ "allocatedResourceStatuses": { "storage": "NodeResizePending" } }));
    rig.api.put(path, pending.clone());
    let larger = volume_with(json!({ "spec": { "capacity": { "storage": "2Gi" } } }));
    rig.driver.will("NodeExpandVolume", Behaviour::Fail(Code::OutOfRange));
    let error = rig.mount_claimed("a", &larger, Some(&pending)).await.expect_err("containers do not start");
    assert!(error.event_message().starts_with("MountVolume.Setup failed while expanding volume for volume \"pv\""));
    let status = rig.api.objects.lock()[path]["status"].clone();
    assert_eq!(status["allocatedResourceStatuses"]["storage"], "NodeResizeInfeasible");
    assert_eq!(status["conditions"][0]["type"], "NodeResizeError");
    // The driver cannot do it while the volume is in use: the volume is used nevertheless.
    rig.api.put(path, pending.clone());
    rig.driver.will("NodeExpandVolume", Behaviour::Fail(Code::FailedPrecondition));
    rig.mount_claimed("a", &larger, Some(&pending)).await.expect("mounted");
    rig.driver.take_calls();
    rig.mount_claimed("a", &larger, Some(&pending)).await.expect("mounted");
    assert_eq!(rig.driver.take_calls(), Vec::<String>::new(), "not tried again");
    rig.unmount_everything("a").await;
    rig.assert_clean();
}

#[tokio::test]
async fn usage_comes_from_the_driver() {
    let rig = Rig::new().await;
    let mounted = rig.mount("a", &volume()).await.expect("mounted");
    let stats = rig.csi.stats_of("a").await;
    assert_eq!(stats[&mounted.path].used, 4);
    rig.csi.stats_of("a").await;
    let calls = rig.driver.take_calls();
    assert_eq!(calls.iter().filter(|call| *call == "NodeGetVolumeStats").count(), 1, "the last measurement is used");
    assert!(rig.csi.stats_of("other").await.is_empty());
    rig.unmount_everything("a").await;
}

#[tokio::test]
async fn an_unhealthy_volume_is_reported() {
    let rig = Rig::new().await;
    rig.driver.fake.capabilities.lock().push(NodeCapability::VolumeCondition);
    rig.driver.fake.account.lock().condition = Some(VolumeCondition { abnormal: true, message: "broken".into() });
    assert_eq!(rig.mount("a", &volume()).await.expect("mounted").notes, []);
    let notes = rig.mount("a", &volume()).await.expect("still mounted").notes;
    let found: Vec<_> = notes.iter().map(|note| (note.warning, note.reason, note.message.as_str())).collect();
    assert_eq!(found, [(true, "VolumeConditionAbnormal", "Volume data: broken")]);
    rig.unmount_everything("a").await;
}

#[tokio::test]
async fn drivers_register_when_their_socket_appears_and_leave_when_it_vanishes() {
    let directory = tempfile::tempdir().expect("a directory");
    let api = Arc::new(FakeApi::default());
    api.put("/api/v1/nodes/n", json!({ "metadata": { "name": "n", "uid": "node-uid" } }));
    let csi = start(directory.path(), &api);
    let registry = directory.path().join("data/plugins_registry");
    std::fs::create_dir_all(&registry).expect("made");
    let early = FakeDriver::start(&registry.join("early-reg.sock"), "early.example.com");
    let watching = tokio::spawn(csi.clone().watch_plugins());
    let until = |name: &'static str, present: bool| {
        let csi = csi.clone();
        async move {
            let wait = async {
                while csi.drivers.get(name).is_some() != present {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(10), wait).await.expect(name);
        }
    };
    until("early.example.com", true).await;
    let mut late = FakeDriver::start(&registry.join("late-reg.sock"), "late.example.com");
    until("late.example.com", true).await;
    let wait = async {
        while late.fake.account.lock().registrations.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await.expect("the outcome is sent");
    assert!(late.fake.account.lock().registrations[0].plugin_registered);
    let node = api.objects.lock()["/api/v1/nodes/n"].clone();
    assert_eq!(node["metadata"]["labels"]["fake/node"], "here");
    let ids: Value = serde_json::from_str(
        node["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"].as_str().expect("an annotation"),
    )
    .expect("JSON");
    assert_eq!(ids, json!({ "early.example.com": "fake-node", "late.example.com": "fake-node" }));
    let drivers = || api.objects.lock()["/apis/storage.k8s.io/v1/csinodes/n"]["spec"]["drivers"].clone();
    assert_eq!(drivers().as_array().map(Vec::len), Some(2));
    assert_eq!(drivers()[0]["allocatable"]["count"], 7);
    assert_eq!(drivers()[0]["topologyKeys"], json!(["fake/node"]));
    // A registrar that restarts leaves a new socket at the same path.
    late.restart();
    let wait = async {
        while late.fake.account.lock().registrations.len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await.expect("it registers again");
    std::fs::remove_file(&early.socket).expect("removed");
    until("early.example.com", false).await;
    let wait = async {
        while drivers().as_array().map(Vec::len) != Some(1) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await.expect("the CSINode is updated");
    assert_eq!(drivers()[0]["name"], "late.example.com");
    watching.abort();
}

#[tokio::test]
async fn a_driver_of_the_same_name_or_of_another_protocol_is_refused() {
    let rig = Rig::new().await;
    let other = FakeDriver::start(&rig.directory.path().join("other.sock"), DRIVER);
    let error = rig.csi.register(&other.socket).await.expect_err("the name is taken");
    assert!(error.contains("Another driver with the same name is already registered"), "{error}");
    let told = other.fake.account.lock().registrations.clone();
    assert!(told.len() == 1 && !told[0].plugin_registered && told[0].error == error);
    other.will("NodeGetInfo", Behaviour::Hang);
    rig.csi.unregister(DRIVER).await;
    let error = rig.csi.register(&other.socket).await.expect_err("it hangs");
    assert!(error.contains("DeadlineExceeded"), "{error}");
    assert!(rig.csi.drivers.get(DRIVER).is_none());
}
