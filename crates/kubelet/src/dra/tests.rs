//! Claims with a driver that fails, hangs or is killed at each call, and a kubelet that is killed after it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use k8s_openapi::api::core::v1::Pod;
use knarr_csi::messages::{DRA_PLUGIN, PluginInfo};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::fake_driver::{Account, Behaviour, FakeDriver};
use super::*;

const TIMEOUT: Duration = Duration::from_millis(300);

/// Requests to the API server, and the claims it has.
#[derive(Default)]
struct FakeApi {
    claims: Mutex<HashMap<String, Value>>,
    deleted: Mutex<Vec<String>>,
}

impl FakeApi {
    fn client(self: &Arc<Self>) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let response = api.respond(request.method(), request.uri());
            async move { Ok::<_, io::Error>(response) }
        });
        kube::Client::new(service, "default")
    }

    fn respond(&self, method: &Method, uri: &http::Uri) -> http::Response<kube::client::Body> {
        let name = uri.path().rsplit('/').next().unwrap_or_default();
        let (code, body) = if method == Method::DELETE {
            self.deleted.lock().push(uri.query().unwrap_or_default().to_owned());
            (200, json!({"kind": "ResourceSliceList", "apiVersion": "resource.k8s.io/v1", "metadata": {}, "items": []}))
        } else if let Some(claim) = self.claims.lock().get(name) {
            (200, claim.clone())
        } else {
            let message = format!("resourceclaims.resource.k8s.io \"{name}\" not found");
            (404, json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": message}))
        };
        let body = kube::client::Body::from(serde_json::to_vec(&body).expect("JSON"));
        http::Response::builder().status(code).body(body).expect("a response")
    }
}

struct Rig {
    directory: TempDir,
    api: Arc<FakeApi>,
    dra: Arc<Dra>,
    driver: Option<FakeDriver>,
}

impl Rig {
    async fn new() -> Rig {
        let directory = tempfile::tempdir().expect("a directory");
        let api = Arc::new(FakeApi::default());
        let dra = open(&directory, &api);
        let driver = FakeDriver::start(&directory.path().join("dra.sock"), Arc::default()).await;
        let rig = Rig { directory, api, dra, driver: Some(driver) };
        rig.register();
        rig.claim("c", &["p", "q"]);
        rig
    }

    fn endpoint(&self) -> String {
        self.directory.path().join("dra.sock").to_string_lossy().into_owned()
    }

    fn register(&self) {
        let info = PluginInfo {
            kind: DRA_PLUGIN.to_owned(),
            name: "driver".to_owned(),
            endpoint: self.endpoint(),
            supported_versions: vec!["v1.DRAPlugin".to_owned()],
        };
        self.dra.register(&info, &self.endpoint()).expect("registered");
    }

    /// A claim that is reserved for pods.
    fn claim(&self, name: &str, pods: &[&str]) {
        let users: Value = pods.iter().map(|pod| json!({"resource": "pods", "name": pod, "uid": pod})).collect();
        let result = json!({"request": "r/sub", "driver": "driver", "pool": "p", "device": "d"});
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {},
            "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}")},
            "status": {"reservedFor": users, "allocation": {"devices": {"results": [result]}}}});
        self.api.claims.lock().insert(name.to_owned(), claim);
    }

    /// The kubelet is killed and starts again.
    fn restart(&mut self) {
        self.dra = open(&self.directory, &self.api);
        self.register();
    }

    fn driver(&self) -> &FakeDriver {
        self.driver.as_ref().expect("a driver")
    }

    fn prepared(&self) -> Vec<String> {
        self.driver().account.lock().prepared.iter().cloned().collect()
    }

    fn calls(&self) -> String {
        std::mem::take(&mut self.driver().account.lock().calls).join("; ")
    }
}

fn open(directory: &TempDir, api: &Arc<FakeApi>) -> Arc<Dra> {
    Dra::with_timeouts(api.client(), "node", &directory.path().join("root"), TIMEOUT, TIMEOUT).expect("opened")
}

fn pod(uid: &str, claims: &[&str]) -> Pod {
    let entries: Value = claims.iter().map(|claim| json!({"name": claim, "resourceClaimName": claim})).collect();
    let used: Value = claims.iter().map(|claim| json!({"name": claim})).collect();
    serde_json::from_value(
        json!({"metadata": {"name": uid, "namespace": "n", "uid": uid}, "spec": {"resourceClaims": entries,
        "containers": [{"name": "all", "resources": {"claims": used}}, {"name": "none"},
            {"name": "one", "resources": {"claims": [{"name": "c", "request": "r"}]}},
            {"name": "other", "resources": {"claims": [{"name": "c", "request": "s"}]}}]}}),
    )
    .expect("a pod")
}

fn cdi(rig: &Rig, pod: &Pod, container: usize) -> Vec<String> {
    rig.dra.cdi_devices(pod, &pod.spec.as_ref().unwrap().containers[container]).expect("devices")
}

#[tokio::test]
async fn containers_get_the_devices_of_their_claims() {
    let rig = Rig::new().await;
    let one = pod("p", &["c"]);
    rig.dra.cdi_devices(&one, &one.spec.as_ref().unwrap().containers[0]).expect_err("not prepared");
    rig.dra.prepare(&one).await.expect("prepared");
    let device = vec!["example.com/gpu=uid-c".to_owned()];
    assert_eq!([0, 1, 2, 3].map(|index| cdi(&rig, &one, index)), [device.clone(), vec![], device, vec![]]);
    rig.dra.prepare(&one).await.expect("prepared already");
    rig.dra.prepare(&pod("q", &["c"])).await.expect("shared");
    assert_eq!(rig.calls(), "prepare c");
    rig.dra.unprepare("p", None).await.expect("released");
    assert_eq!((rig.calls().as_str(), rig.prepared().len()), ("", 1));
    rig.dra.unprepare("q", None).await.expect("unprepared");
    rig.dra.unprepare("q", None).await.expect("nothing is left");
    assert_eq!((rig.calls().as_str(), rig.prepared().len()), ("unprepare c", 0));
    assert!(rig.dra.pods().is_empty());
}

#[tokio::test]
async fn extended_resources_are_mapped_to_requests() {
    let rig = Rig::new().await;
    let mut one = pod("p", &[]);
    let status = json!({"extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": [
        {"containerName": "none", "resourceName": "example.com/gpu", "requestName": "r"}]}});
    one.status = Some(serde_json::from_value(status).expect("a status"));
    let container = &mut one.spec.as_mut().unwrap().containers[1];
    container.resources =
        Some(serde_json::from_value(json!({"requests": {"example.com/gpu": "1"}})).expect("resources"));
    rig.dra.prepare(&one).await.expect("prepared");
    assert_eq!(cdi(&rig, &one, 1), ["example.com/gpu=uid-c"]);
    assert!(cdi(&rig, &one, 0).is_empty());
}

#[tokio::test]
async fn pods_without_a_right_to_a_claim_get_nothing() {
    let rig = Rig::new().await;
    let generated = json!({"metadata": {"name": "p", "namespace": "n", "uid": "p"},
        "spec": {"containers": [], "resourceClaims": [{"name": "e", "resourceClaimTemplateName": "t"}]},
        "status": {"resourceClaimStatuses": [{"name": "e", "resourceClaimName": "c"}]}});
    let mut unnamed = generated.clone();
    unnamed["status"] = json!({});
    let parse = |value: Value| -> Pod { serde_json::from_value(value).expect("a pod") };
    for (pod, expected) in [
        (pod("x", &["c"]), "pod x (x) is not allowed to use ResourceClaim c (uid-c)"),
        (pod("p", &["d"]), "fetch ResourceClaim d: resourceclaims.resource.k8s.io \"d\" not found"),
        (parse(generated), "ResourceClaim n/c was not created for Pod n/p (Pod is not owner)"),
        (parse(unnamed), "pod \"n/p\": ResourceClaim not created yet"),
    ] {
        let error = rig.dra.prepare(&pod).await.expect_err("refused");
        assert_eq!(error, format!("prepare dynamic resources: {expected}"));
    }
    assert_eq!(rig.calls(), "");
    assert!(rig.dra.pods().is_empty());
}

/// Whatever happens at a call, the kubelet knows after a restart what may be prepared, and unprepares it.
#[tokio::test]
async fn nothing_stays_prepared_whatever_fails() {
    let timeout = "rpc error: code = DeadlineExceeded desc = context deadline exceeded";
    for (behaviour, expected) in [
        (Behaviour::Fail, "NodePrepareResources: rpc error: code = InvalidArgument desc = failed on demand"),
        (Behaviour::FailClaims, "NodePrepareResources failed for ResourceClaim c: broken device"),
        (Behaviour::DoAndFail, "NodePrepareResources: rpc error: code = InvalidArgument desc = failed on demand"),
        (Behaviour::DoAndHang, timeout),
        (Behaviour::Hang, timeout),
        (Behaviour::Skip, "NodePrepareResources skipped 1 ResourceClaims"),
        (Behaviour::Invent, "NodePrepareResources returned result for unknown claim UID invented"),
    ] {
        for is_killed in [false, true] {
            let mut rig = Rig::new().await;
            rig.driver().behave("prepare", behaviour.clone());
            let error = rig.dra.prepare(&pod("p", &["c"])).await.expect_err("failed");
            assert!(error.contains(expected), "{behaviour:?}: {error}");
            if is_killed {
                rig.restart();
            }
            assert_eq!(rig.dra.pods().into_iter().collect::<Vec<_>>(), ["p"], "{behaviour:?}");
            rig.dra.unprepare("p", None).await.expect("unprepared");
            assert!(rig.prepared().is_empty() && rig.dra.pods().is_empty(), "{behaviour:?}");
        }
    }
    for behaviour in [
        Behaviour::Fail,
        Behaviour::FailClaims,
        Behaviour::DoAndFail,
        Behaviour::DoAndHang,
        Behaviour::Hang,
        Behaviour::Skip,
        Behaviour::Invent,
    ] {
        let mut rig = Rig::new().await;
        rig.dra.prepare(&pod("p", &["c"])).await.expect("prepared");
        rig.driver().behave("unprepare", behaviour.clone());
        rig.dra.unprepare("p", None).await.expect_err("failed");
        rig.restart();
        assert_eq!(rig.dra.pods().len(), 1, "{behaviour:?}");
        rig.dra.unprepare("p", None).await.expect("unprepared");
        assert!(rig.prepared().is_empty() && rig.dra.pods().is_empty(), "{behaviour:?}");
    }
}

#[tokio::test]
async fn a_failed_attempt_is_repeated() {
    let rig = Rig::new().await;
    rig.driver().behave("prepare", Behaviour::DoAndFail);
    let one = pod("p", &["c"]);
    rig.dra.prepare(&one).await.expect_err("failed");
    rig.dra.prepare(&one).await.expect("prepared");
    assert_eq!(cdi(&rig, &one, 0), ["example.com/gpu=uid-c"]);
    assert_eq!(rig.calls(), "prepare c; prepare c");
}

#[tokio::test]
async fn another_claim_of_the_same_name_waits() {
    let rig = Rig::new().await;
    rig.dra.prepare(&pod("p", &["c"])).await.expect("prepared");
    rig.api.claims.lock().get_mut("c").unwrap()["metadata"]["uid"] = "new".into();
    let error = rig.dra.prepare(&pod("q", &["c"])).await.expect_err("the old one is there");
    assert!(error.contains("old ResourceClaim with same name c and different UID uid-c still exists"), "{error}");
    rig.dra.unprepare("p", None).await.expect("unprepared");
    rig.dra.prepare(&pod("q", &["c"])).await.expect("prepared");
}

#[tokio::test]
async fn a_hung_driver_does_not_stop_other_claims() {
    let rig = Rig::new().await;
    rig.claim("d", &["p", "q"]);
    rig.driver().behave("prepare", Behaviour::Hang);
    let dra = rig.dra.clone();
    let hung = tokio::spawn(async move { dra.prepare(&pod("p", &["c"])).await });
    while rig.driver().account.lock().calls.is_empty() {
        tokio::task::yield_now().await;
    }
    rig.dra.prepare(&pod("q", &["d"])).await.expect("prepared");
    assert!(!hung.is_finished());
    hung.await.expect("a task").expect_err("hung");
}

#[tokio::test]
async fn pods_of_a_missing_driver_are_cleaned_up_when_it_is_back() {
    let mut rig = Rig::new().await;
    rig.dra.prepare(&pod("p", &["c"])).await.expect("prepared");
    let account: Arc<Mutex<Account>> = rig.driver.take().unwrap().stop();
    rig.dra.unregister("driver", &rig.endpoint());
    let error = rig.dra.prepare(&pod("q", &["c"])).await.expect_err("no driver");
    assert_eq!(error, "prepare dynamic resources: DRA driver driver is not registered");
    let notified = Arc::new(Notify::new());
    let own = notified.clone();
    let notify: objects::Notify = Arc::new(move || own.notify_one());
    for _ in 0..3 {
        let error = rig.dra.unprepare("p", Some(notify.clone())).await.expect_err("no driver");
        assert_eq!(error, "unprepare dynamic resources: DRA driver driver is not registered");
    }
    assert_eq!(rig.dra.waiting.lock().len(), 1, "attempts without a driver leave nothing behind");
    let socket = PathBuf::from(rig.endpoint());
    rig.driver = Some(FakeDriver::start(&socket, account).await);
    rig.register();
    notified.notified().await;
    rig.dra.unprepare("p", None).await.expect("unprepared");
    assert!(rig.prepared().is_empty());
}

#[tokio::test]
async fn plugins_register_again_after_the_watch_of_plugins_was_restarted() {
    let rig = Rig::new().await;
    rig.dra.unregister_all();
    let error = rig.dra.prepare(&pod("p", &["c"])).await.expect_err("no driver");
    assert_eq!(error, "prepare dynamic resources: DRA driver driver is not registered");
    rig.register();
    rig.dra.prepare(&pod("p", &["c"])).await.expect("prepared");
}

#[tokio::test]
async fn slices_of_a_driver_that_is_gone_are_deleted() {
    let mut rig = Rig::new().await;
    let keeper = tokio::spawn(rig.dra.clone().keep_slices());
    let deleted = |rig: &Rig| rig.api.deleted.lock().join(" ");
    let wait_for = async |rig: &Rig, text: &str| {
        while !deleted(rig).contains(text) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    wait_for(&rig, "spec.nodeName%3Dnode").await;
    assert!(!deleted(&rig).contains("driver"));
    rig.driver.take().unwrap().stop();
    rig.dra.unregister("driver", &rig.endpoint());
    tokio::time::timeout(Duration::from_secs(20), wait_for(&rig, "spec.driver%3Ddriver")).await.expect("deleted");
    keeper.abort();
}

#[tokio::test]
async fn unreadable_records_stop_the_kubelet() {
    let directory = tempfile::tempdir().expect("a directory");
    let api = Arc::new(FakeApi::default());
    std::fs::create_dir(directory.path().join("root")).expect("a directory");
    std::fs::write(directory.path().join("root/dra_claims.json"), "{").expect("written");
    let opened = Dra::with_timeouts(api.client(), "node", &directory.path().join("root"), TIMEOUT, TIMEOUT);
    assert!(opened.is_err());
}
