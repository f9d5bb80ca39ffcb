//! The pod worker with a runtime on a real socket that fails, hangs or responds late at each call.
//!
//! Time stands still except where a test lets it pass, so that a call that hangs for minutes costs milliseconds.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use k8s_openapi::api::core::v1::Pod;
use knarr_cri::Runtime;
use knarr_cri::messages::{ContainerState, RuntimeHandler, RuntimeHandlerFeatures, StatusResponse};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::fake_runtime::{BEHAVIOURS, Behaviour, FakeRuntime, Served, stop_time};
use super::{Handle, Message, Worker};
use crate::context::{Context, RuntimeFeatures};
use crate::counters::{FAMILIES, Values};
use crate::runtime::{RuntimePod, watch_events};
use crate::settings::Settings;

/// How long a state may take to appear, in real time.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How far time moves on per turn: little while the runtime works, more while a call hangs.
const STEP: Duration = Duration::from_millis(50);
const STEP_WHILE_HANGING: Duration = Duration::from_secs(5);

/// The calls of a pod's start, and those of its end.
const STARTING: [&str; 8] = [
    "RunPodSandbox",
    "PodSandboxStatus",
    "ImageStatus",
    "PullImage",
    "CreateContainer",
    "StartContainer",
    "ContainerStatus",
    "ListContainers",
];
const STOPPING: [&str; 6] =
    ["StopContainer", "StopPodSandbox", "ListPodSandbox", "ListContainers", "RemoveContainer", "RemovePodSandbox"];

type Body = StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

/// An API server that has one pod and nothing else.
struct PodApi {
    /// The worker of the pod, which is notified of its removal.
    worker: Mutex<Option<Handle>>,
    statuses: Mutex<Vec<Value>>,
}

impl PodApi {
    fn client(self: &Arc<Self>) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.expect("a body").to_bytes();
                Ok::<_, Infallible>(api.respond(&parts, &body))
            }
        });
        kube::Client::new(service, "default")
    }

    fn respond(&self, request: &http::request::Parts, body: &[u8]) -> http::Response<Body> {
        let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let (path, query) = (request.uri.path(), request.uri.query().unwrap_or_default());
        let is_watch = query.contains("watch=");
        let (code, value) = match (request.method.as_str(), path.ends_with("/pods/p")) {
            ("PATCH", _) => {
                self.statuses.lock().push(body["status"].clone());
                (200, json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "resourceVersion": "2"}}))
            }
            ("DELETE", true) => {
                // The watch reports the removal.
                if let Some(worker) = &*self.worker.lock() {
                    let _ = worker.sender.send(Message::Removed);
                }
                (200, json!({"apiVersion": "v1", "kind": "Status", "status": "Success"}))
            }
            ("GET", false) => (200, json!({"metadata": {"resourceVersion": "1"}, "items": []})),
            (_, _) => (201, body),
        };
        let text = Bytes::from(value.to_string());
        let frames = match is_watch {
            true => stream::pending().boxed(),
            false => stream::iter([Ok(Frame::data(text))]).boxed(),
        };
        http::Response::builder().status(code).body(StreamBody::new(frames)).expect("a response")
    }
}

/// A node with one pod.
struct Rig {
    api: Arc<PodApi>,
    runtime: Served,
    context: Arc<Context>,
    worker: Handle,
    pod: Value,
    stopped: Arc<Mutex<Option<Option<String>>>>,
    pleg: tokio::task::JoinHandle<()>,
    directory: tempfile::TempDir,
    /// While a blocking task runs, a paused clock does not move by itself.
    _hold: std::sync::mpsc::Sender<()>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.pleg.abort();
    }
}

impl Rig {
    /// Starts a pod; `deviate` is called before anything happens.
    async fn start(more: Value, deviate: impl FnOnce(&FakeRuntime)) -> Self {
        let hold = stop_time();
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("runtime.sock");
        let runtime = FakeRuntime::serve(&socket);
        let api = Arc::new(PodApi { worker: Mutex::default(), statuses: Mutex::default() });
        let context = context(directory.path().join("data"), &socket, &api).await;
        let pleg = tokio::spawn(watch_events(
            context.runtime.clone(),
            context.index.clone(),
            context.metrics.clone(),
            context.heartbeat.clone(),
        ));
        deviate(&runtime.fake);
        let mut pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "pod-uid"}, "spec": {
            "nodeName": "n", "terminationGracePeriodSeconds": 5, "enableServiceLinks": false,
            "automountServiceAccountToken": false, "restartPolicy": "Always",
            "containers": [{"name": "c", "image": "image:1"}]}});
        for (key, value) in more.as_object().expect("fields") {
            pod["spec"][key] = value.clone();
        }
        let stopped = Arc::new(Mutex::new(None));
        let ended = stopped.clone();
        let worker = Worker::spawn(
            context.clone(),
            Arc::new(parse(&pod)),
            RuntimePod::default(),
            None,
            Arc::new(|_| None),
            move |panic| *ended.lock() = Some(panic),
        );
        *api.worker.lock() = Some(worker.clone());
        Self { api, runtime, context, worker, pod, stopped, pleg, directory, _hold: hold }
    }

    /// Waits for a state, and lets time pass meanwhile.
    async fn until(&self, what: &str, state: impl Fn(&Self) -> bool) {
        let started = std::time::Instant::now();
        while !state(self) {
            let calls = self.runtime.fake.account.lock().calls.clone();
            let status = self.worker.status.lock().clone();
            assert!(started.elapsed() < TIMEOUT, "{what}: not reached; calls {calls:?}, status {status:#?}");
            self.turn().await;
        }
    }

    async fn turn(&self) {
        tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(1))).await.expect("a pause");
        let step = if self.runtime.fake.is_hanging() { STEP_WHILE_HANGING } else { STEP };
        tokio::time::advance(step).await;
    }

    fn is_ready(&self) -> bool {
        let status = self.worker.status.lock();
        let mut conditions = status.conditions.iter().flatten();
        conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
    }

    fn restarts(&self) -> i32 {
        let status = self.worker.status.lock();
        status.container_statuses.iter().flatten().map(|container| container.restart_count).sum()
    }

    fn phase(&self) -> String {
        self.worker.status.lock().phase.clone().unwrap_or_default()
    }

    /// Deletes the pod in the API and waits for the worker's end.
    async fn delete(&mut self, what: &str) {
        self.pod["metadata"]["deletionTimestamp"] = k8s_openapi::jiff::Timestamp::now().to_string().into();
        self.pod["metadata"]["deletionGracePeriodSeconds"] = 5.into();
        let _ = self.worker.sender.send(Message::Desired(Arc::new(parse(&self.pod))));
        self.until(&format!("{what}: the worker ends"), |rig| rig.stopped.lock().is_some()).await;
        assert_eq!(*self.stopped.lock(), Some(None), "{what}: a panic");
    }

    fn assert_nothing_is_left(&self, what: &str) {
        let account = self.runtime.fake.account.lock();
        assert!(account.sandboxes.is_empty(), "{what}: {:?}", account.sandboxes.keys());
        assert!(account.containers.is_empty(), "{what}: {:?}", account.containers.keys());
        let directory = self.context.settings.pod_directory("pod-uid");
        assert!(!directory.exists(), "{what}: {} is left", directory.display());
        let logs: Vec<PathBuf> = files(&self.directory.path().join("data/logs"));
        assert!(logs.is_empty(), "{what}: {logs:?}");
    }
}

fn files(directory: &std::path::Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn parse(pod: &Value) -> Pod {
    serde_json::from_value(pod.clone()).expect("a pod")
}

async fn context(root: PathBuf, socket: &std::path::Path, api: &Arc<PodApi>) -> Arc<Context> {
    let endpoint = socket.to_string_lossy().into_owned();
    let mut settings = Settings::new("n", &root, endpoint.clone());
    settings.log_root = root.join("logs");
    settings.resolv_conf = None;
    // No such cgroup can exist: the test leaves those of the host alone.
    settings.cgroup_root = "/\0".into();
    let runtime = Runtime::connect(&endpoint).expect("an endpoint");
    while !socket.exists() {
        tokio::task::yield_now().await;
    }
    let (context, _bound) = crate::assemble::context(api.client(), settings, runtime).await.expect("a node");
    assert!(context.cgroups.is_none());
    context
}

/// Each call of a start deviates once, in each way. A start that failed after the container was created counts as a restart.
#[tokio::test(start_paused = true)]
async fn a_pod_starts_whatever_the_runtime_does_once() {
    for method in STARTING {
        for behaviour in BEHAVIOURS {
            let what = format!("{method} {behaviour:?}");
            let mut rig = Rig::start(json!({}), |runtime| runtime.will(method, behaviour)).await;
            rig.until(&format!("{what}: ready"), Rig::is_ready).await;
            let never_started = method == "StartContainer" && matches!(behaviour, Behaviour::Fail | Behaviour::Hang);
            assert_eq!(rig.restarts(), i32::from(never_started), "{what}");
            let running =
                rig.runtime.fake.containers().into_iter().filter(|(_, state)| *state == ContainerState::Running);
            assert_eq!(running.count(), 1, "{what}");
            assert_eq!(rig.runtime.fake.account.lock().sandboxes.len(), 1, "{what}");
            assert!(!rig.api.statuses.lock().is_empty(), "{what}: the status is reported");
            rig.delete(&what).await;
            rig.assert_nothing_is_left(&what);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_ends_whatever_the_runtime_does_once() {
    for method in STOPPING {
        for behaviour in BEHAVIOURS {
            let what = format!("{method} {behaviour:?}");
            let mut rig = Rig::start(json!({}), |_| {}).await;
            rig.until(&format!("{what}: ready"), Rig::is_ready).await;
            rig.runtime.fake.will(method, behaviour);
            rig.delete(&what).await;
            assert!(rig.runtime.fake.has_deviated(), "{what}: the call was made");
            rig.assert_nothing_is_left(&what);
        }
    }
}

/// A pod that is deleted while a call of its start hangs or fails ends as well, and leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn a_pod_ends_while_its_start_is_in_trouble() {
    for method in STARTING {
        for behaviour in BEHAVIOURS {
            let what = format!("{method} {behaviour:?}");
            let mut rig = Rig::start(json!({}), |runtime| runtime.will(method, behaviour)).await;
            rig.until(&what, |rig| rig.runtime.fake.has_deviated() || rig.is_ready()).await;
            rig.delete(&what).await;
            rig.assert_nothing_is_left(&what);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_exit_is_noticed_and_counted_once_whatever_the_runtime_does() {
    for method in ["ContainerStatus", "CreateContainer", "StartContainer", "RemoveContainer"] {
        for behaviour in BEHAVIOURS {
            let what = format!("{method} {behaviour:?}");
            let mut rig = Rig::start(json!({}), |_| {}).await;
            rig.until(&format!("{what}: ready"), Rig::is_ready).await;
            rig.runtime.fake.will(method, behaviour);
            rig.runtime.fake.exit("c", 1);
            rig.until(&format!("{what}: ready again"), |rig| rig.restarts() > 0 && rig.is_ready()).await;
            let never_started = method == "StartContainer" && matches!(behaviour, Behaviour::Fail | Behaviour::Hang);
            assert_eq!(rig.restarts(), 1 + i32::from(never_started), "{what}");
            rig.delete(&what).await;
            rig.assert_nothing_is_left(&what);
        }
    }
}

/// A sandbox that dies is replaced, and the containers start in the new one.
#[tokio::test(start_paused = true)]
async fn a_lost_sandbox_is_replaced_whatever_the_runtime_does() {
    for method in ["PodSandboxStatus", "ContainerStatus", "StopPodSandbox", "RunPodSandbox", "RemovePodSandbox"] {
        for behaviour in BEHAVIOURS {
            let what = format!("{method} {behaviour:?}");
            let mut rig = Rig::start(json!({}), |_| {}).await;
            rig.until(&format!("{what}: ready"), Rig::is_ready).await;
            rig.runtime.fake.will(method, behaviour);
            rig.runtime.fake.kill_sandboxes();
            rig.until(&format!("{what}: ready again"), |rig| rig.restarts() > 0 && rig.is_ready()).await;
            assert_eq!(rig.restarts(), 1, "{what}");
            rig.delete(&what).await;
            rig.assert_nothing_is_left(&what);
        }
    }
}

/// Pods that run to completion: the phase is that of their exit code, and they are not started again.
#[tokio::test(start_paused = true)]
async fn a_finished_pod_keeps_its_phase() {
    for (code, phase) in [(0, "Succeeded"), (3, "Failed")] {
        for behaviour in BEHAVIOURS {
            let what = format!("{code} {behaviour:?}");
            let mut rig = Rig::start(json!({"restartPolicy": "Never"}), |_| {}).await;
            rig.until(&format!("{what}: ready"), Rig::is_ready).await;
            rig.runtime.fake.will("ContainerStatus", behaviour);
            rig.runtime.fake.exit("c", code);
            rig.until(&what, |rig| rig.phase() == phase).await;
            assert_eq!(rig.restarts(), 0, "{what}");
            rig.delete(&what).await;
            rig.assert_nothing_is_left(&what);
        }
    }
}

/// Init containers run once each and in order, though each of their calls fails once.
#[tokio::test(start_paused = true)]
async fn init_containers_run_in_order_though_each_call_fails_once() {
    let init = json!([{"name": "a", "image": "image:1"}, {"name": "b", "image": "image:1"}]);
    let mut rig = Rig::start(json!({"initContainers": init}), |runtime| {
        for method in STARTING {
            runtime.will(method, Behaviour::Fail);
        }
    })
    .await;
    for name in ["a", "b"] {
        let is_running = |rig: &Rig| rig.runtime.fake.containers().contains(&(name.into(), ContainerState::Running));
        rig.until(&format!("{name} runs"), is_running).await;
        let later = rig.runtime.fake.containers().into_iter().any(|(other, _)| other.as_str() > name);
        assert!(!later, "nothing starts before {name} has finished");
        rig.runtime.fake.exit(name, 0);
    }
    rig.until("ready", Rig::is_ready).await;
    rig.delete("init containers").await;
    rig.assert_nothing_is_left("init containers");
}

/// A server that never responds to a post-start hook does not keep its pod from terminating.
#[tokio::test(start_paused = true)]
async fn a_pod_ends_while_its_hook_gets_no_response() {
    let what = "a hook without a response";
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("set");
    let port = listener.local_addr().expect("an address").port();
    let hook = json!({"postStart": {"httpGet": {"host": "127.0.0.1", "port": port}}});
    let containers = json!([{"name": "c", "image": "image:1", "lifecycle": hook}]);
    let mut rig = Rig::start(json!({"containers": containers}), |_| {}).await;
    let held = Mutex::new(None);
    let is_called = |_: &Rig| {
        let mut held = held.lock();
        *held = held.take().or_else(|| listener.accept().ok());
        held.is_some()
    };
    rig.until(&format!("{what}: it is called"), is_called).await;
    rig.delete(what).await;
    rig.assert_nothing_is_left(what);
}

/// A pre-stop hook that outlasts the grace period goes on until its container is stopped, and does not delay that.
#[tokio::test(start_paused = true)]
async fn a_pod_ends_though_its_pre_stop_hook_does_not() {
    let what = "an endless hook";
    let hook = json!({"preStop": {"exec": {"command": ["sleep", "inf"]}}});
    let containers = json!([{"name": "c", "image": "image:1", "lifecycle": hook}]);
    let mut rig = Rig::start(json!({"containers": containers}), |_| {}).await;
    rig.until(&format!("{what}: ready"), Rig::is_ready).await;
    rig.runtime.fake.will("ExecSync", Behaviour::Hang);
    rig.runtime.fake.will("StopContainer", Behaviour::Late);
    let started = tokio::time::Instant::now();
    let (fake, hung) = (rig.runtime.fake.clone(), Arc::new(Mutex::new(Vec::new())));
    let watched = hung.clone();
    let watch = tokio::spawn(async move {
        loop {
            let is_stopping = fake.account.lock().calls.contains(&"StopContainer");
            if is_stopping {
                watched.lock().push(fake.is_hanging());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    rig.delete(what).await;
    watch.abort();
    assert!(started.elapsed() >= Duration::from_secs(5), "{what}: the grace period is its own");
    assert_eq!(hung.lock().first(), Some(&true), "{what}: it goes on while the container is stopped");
    rig.until(&format!("{what}: it is given up then"), |rig| !rig.runtime.fake.is_hanging()).await;
    rig.assert_nothing_is_left(what);
}

/// An image volume that cannot be pulled keeps the containers that mount it from starting, and only those.
#[tokio::test(start_paused = true)]
async fn a_missing_image_volume_is_a_failure_of_its_containers() {
    let what = "an image volume";
    let mount = json!([{"name": "v", "mountPath": "/v"}]);
    let containers =
        json!([{"name": "c", "image": "image:1", "volumeMounts": mount}, {"name": "d", "image": "image:1"}]);
    let volumes = json!([{"name": "v", "image": {"reference": "missing:1", "pullPolicy": "Never"}}]);
    let mut rig = Rig::start(json!({"containers": containers, "volumes": volumes}), |_| {}).await;
    let waits = |rig: &Rig, name: &str| {
        let status = rig.worker.status.lock();
        let mut containers = status.container_statuses.iter().flatten().filter(|container| container.name == name);
        containers.next().and_then(|container| container.state.as_ref()?.waiting.as_ref()?.reason.clone())
    };
    rig.until(what, |rig| waits(rig, "c").as_deref() == Some("ErrImageNeverPull")).await;
    rig.until(what, |rig| rig.runtime.fake.containers().contains(&("d".into(), ContainerState::Running))).await;
    rig.runtime.fake.add_image("missing:1");
    rig.until(&format!("{what}: ready"), Rig::is_ready).await;
    rig.delete(what).await;
    rig.assert_nothing_is_left(what);
}

/// A pod with a user namespace counts as failed for its sandbox, and for the first start of a container; retries of that
/// container do not count again.
#[tokio::test(start_paused = true)]
async fn failures_of_pods_with_user_namespaces_are_counted() {
    let what = "a user namespace";
    let mut rig = Rig::start(json!({"hostUsers": false}), |_| {}).await;
    let failures = |rig: &Rig| {
        let family = FAMILIES.iter().find(|family| family.name == "kubelet_started_user_namespaced_pods_errors_total");
        match rig.context.metrics.values(family.expect("a metric")) {
            Some(Values::Numbers(values)) => values.values().sum::<f64>() as u64,
            _ => 0,
        }
    };
    rig.until(&format!("{what}: the runtime has none"), |rig| failures(rig) >= 1).await;
    let features = Some(RuntimeHandlerFeatures { user_namespaces: true, ..Default::default() });
    let handler = RuntimeHandler { features, ..Default::default() };
    for _ in 0..2 {
        rig.runtime.fake.will("CreateContainer", Behaviour::Fail);
    }
    let status = StatusResponse { runtime_handlers: vec![handler], ..Default::default() };
    *rig.context.runtime_features.write() = RuntimeFeatures::of(&status);
    let before = failures(&rig);
    rig.until(&format!("{what}: ready"), Rig::is_ready).await;
    assert!(rig.runtime.fake.has_deviated(), "{what}: two starts failed");
    assert_eq!(failures(&rig), before + 1, "{what}: the container counts once");
    rig.delete(what).await;
    rig.assert_nothing_is_left(what);
}

/// Volumes that wait for a source all hold what they have collected: together at most what one pod may.
#[tokio::test(start_paused = true)]
async fn volumes_that_wait_for_sources_do_not_fill_memory_together() {
    let rig = Rig::start(json!({}), |_| {}).await;
    let (volumes, files) = (4, 30);
    let field = json!({"fieldPath": "metadata.annotations['large']"});
    let items: Vec<Value> = (0..files).map(|file| json!({"path": format!("f{file}"), "fieldRef": field})).collect();
    let sources = json!([{"downwardAPI": {"items": items}}, {"configMap": {"name": "missing"}}]);
    let mut pod = rig.pod.clone();
    pod["metadata"]["annotations"] = json!({"large": "x".repeat(1 << 20)});
    let named = |at: usize| format!("v{at}");
    pod["spec"]["volumes"] =
        (0..volumes).map(|at| json!({"name": named(at), "projected": {"sources": sources}})).collect();
    pod["spec"]["containers"][0]["volumeMounts"] =
        (0..volumes).map(|at| json!({"name": named(at), "mountPath": format!("/{}", named(at))})).collect();
    let pod = parse(&pod);
    let downward = rig.context.downward_context(&pod, Vec::new());
    let objects = rig.context.objects.subscribe(Arc::new(|| {}));
    let mounted = crate::volumes::mount_all(&rig.context, &pod, &downward, &objects, true).await;
    let errors: Vec<String> =
        mounted.expect_err("sources are missing").into_iter().map(|(_, error)| error.to_string()).collect();
    let refused = errors.iter().filter(|error| error.contains("more than 64Mi"));
    assert_eq!((refused.count(), errors.len()), (2, volumes), "{errors:#?}");
}
