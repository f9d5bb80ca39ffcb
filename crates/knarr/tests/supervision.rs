//! What users see when a component of the control plane panics: it is restarted and works again, or the process ends.
//!
//! Faults are injected by `KNARR_FAULT`, which builds with debug assertions read. `tests/system/supervision.rs` does the same
//! to the essential components of a node.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(180);

/// A control plane without a node, ended when this is dropped.
struct Server {
    process: Child,
    directory: tempfile::TempDir,
}

impl Server {
    fn start(faults: &str, flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let address = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address");
        let process = Command::new(env!("CARGO_BIN_EXE_knarr"))
            .args(["server", "--disable-agent", "--listen", &address.to_string(), "--data-dir"])
            .arg(directory.path().join("data"))
            .args(flags)
            .env("KNARR_FAULT", faults)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // A file: a pipe that nobody reads would block the server.
            .stderr(std::fs::File::create(directory.path().join("log")).expect("a log"))
            .spawn()
            .expect("the server starts");
        Self { process, directory }
    }

    fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("data/kubeconfig.yaml")
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(["--request-timeout=10s"])
            .args(arguments)
            .output()
            .map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    fn wait_for(&mut self, what: &str, mut come: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !come(self) {
            if let Ok(Some(status)) = self.process.try_wait() {
                panic!("the server ended with {status} before {what}: {}", self.errors());
            }
            assert!(Instant::now() < deadline, "no {what}: {:?}", self.kubectl(&["get", "--raw", "/readyz?verbose"]));
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn wait_until_ready(&mut self) {
        self.wait_for("readiness", |server| server.kubectl(&["get", "--raw", "/readyz"]).is_ok());
    }

    /// The components, with how often each was restarted.
    fn restarts(&self) -> Vec<(String, u64)> {
        self.metric("knarr_component_restarts_total")
    }

    fn metric(&self, name: &str) -> Vec<(String, u64)> {
        let metrics = self.kubectl(&["get", "--raw", "/metrics"]).unwrap_or_default();
        let start = format!("{name}{{component=\"");
        let lines = metrics.lines().filter_map(|line| line.strip_prefix(&start));
        lines
            .filter_map(|line| line.split_once("\"} "))
            .map(|(name, count)| (name.to_owned(), count.parse().unwrap_or(0)))
            .collect()
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// How often each component panicked.
    fn panics(&self) -> Vec<(String, u64)> {
        self.metric("knarr_panics_total")
    }

    fn apply(&self, manifest: &str) {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(self.kubeconfig()).args(["apply", "-f", "-"]).stdin(Stdio::piped());
        let mut applying = command.stdout(Stdio::null()).spawn().expect("kubectl");
        applying.stdin.take().expect("its input").write_all(manifest.as_bytes()).expect("written");
        assert!(applying.wait().expect("its end").success(), "{manifest}");
    }

    /// Stops the server as systemd does.
    fn stop(&mut self) -> Option<i32> {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.process.id()).expect("a process id"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("it runs");
        self.exit_code()
    }

    /// Waits for the end of the process.
    fn exit_code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) => return status.code(),
                _ => assert!(Instant::now() < deadline, "the process goes on"),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Controllers and scheduler work: a Deployment gets a pod, and the pod the reason why it is not scheduled.
    fn runs_a_deployment(&mut self, name: &str) {
        self.wait_for("a Deployment", |server| {
            server.kubectl(&["create", "deployment", name, "--image=example.invalid/image"]).is_ok()
                || server.kubectl(&["get", "deployment", name]).is_ok()
        });
        let selector = format!("app={name}");
        let path = "-o=jsonpath={.items[*].status.conditions[?(@.type==\"PodScheduled\")].reason}";
        self.wait_for("an unschedulable pod", |server| {
            let reason = server.kubectl(&["get", "pods", "-l", &selector, path]);
            reason.is_ok_and(|reason| reason.contains("Unschedulable"))
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Components that end the process instead of being restarted.
const ESSENTIAL: [&str; 2] = ["store", "api-server"];

/// Components whose work ends. One that panics whenever it is stopped would never complete.
const COMPLETING: [&str; 2] = ["dns-service", "readiness-report"];

fn is_possible() -> bool {
    knarr_test_host::has(&["kubectl"])
}

#[test]
fn every_component_is_restarted_after_panics_and_works_again() {
    if !is_possible() {
        return;
    }
    let mut server = Server::start("", &[]);
    server.wait_until_ready();
    // Each by itself, not informers, which exist once they are used.
    let names: Vec<String> = server.restarts().into_iter().map(|(name, _)| name).collect();
    let left_out = [&ESSENTIAL[..], &COMPLETING].concat();
    let names: Vec<&String> =
        names.iter().filter(|name| !left_out.contains(&name.as_str()) && !name.starts_with("informer/")).collect();
    for expected in ["scheduler", "deployment-controller", "priority-and-fairness", "custom-resource-definitions"] {
        assert!(names.iter().any(|name| *name == expected), "{expected} in {names:?}");
    }
    drop(server);
    let faults = names.iter().flat_map(|name| ["start", "running", "stop*"].map(|stage| format!("{name}:{stage}")));
    let mut server = Server::start(&faults.collect::<Vec<_>>().join(","), &[]);
    server.wait_for("two restarts of each component", |server| {
        let restarts = server.restarts();
        let count = |name: &str| restarts.iter().find(|(own, _)| own == name).map_or(0, |(_, count)| *count);
        // Controllers are started again with their manager, whose restarts they do not count.
        names.iter().all(|name| count(name) >= 1) && count("controller-manager") == 2
    });
    server.wait_until_ready();
    server.runs_a_deployment("web");
    // Whatever panics while it is stopped, the process ends as it would without.
    assert_eq!(server.stop(), Some(0), "{}", server.errors());
    let log = server.errors();
    for name in ["scheduler", "controller-manager", "custom-resource-definitions"] {
        for stage in ["start", "running"] {
            let reason = format!("it panicked: injected fault {name}:{stage}");
            let line =
                log.lines().find(|line| line.contains("a component failed; restarting it") && line.contains(&reason));
            assert!(line.is_some_and(|line| line.contains(name)), "{reason}: {log}");
        }
        assert!(log.contains(&format!("injected fault {name}:stop")), "{name}: {log}");
    }
}

/// What a user sees of a component that fails whenever it is started.
#[test]
fn a_component_that_keeps_failing_makes_the_server_unready() {
    if !is_possible() {
        return;
    }
    let cases = [
        ("scheduler:start*", "component/scheduler", "it panicked: injected fault scheduler:start"),
        ("manifests:return*", "component/manifests", "it returned unexpectedly"),
        (
            "custom-resource-definitions:running*",
            "component/custom-resource-definitions",
            "it panicked: injected fault",
        ),
        ("informer/Pod:start*", "informer-sync", "it panicked: injected fault informer/Pod:start"),
    ];
    let faults: Vec<&str> = cases.iter().map(|(fault, _, _)| *fault).collect();
    let mut server = Server::start(&faults.join(","), &[]);
    for (fault, check, reason) in cases {
        let name = fault.split_once(':').expect("a component").0;
        server.wait_for(&format!("the failure of {name}"), |server| {
            // One check by itself: kubectl shows only the start of a long error.
            let shown = server.kubectl(&["get", "--raw", &format!("/readyz/{check}")]).err().unwrap_or_default();
            let is_down = server.metric("knarr_component_up").contains(&(name.to_owned(), 0));
            is_down && shown.contains("restarting after a failure") && shown.contains(reason)
        });
        assert!(server.kubectl(&["get", "--raw", "/readyz"]).is_err(), "ready without {name}");
        // The process lives: restarting it would help no more than restarting the component.
        assert!(server.kubectl(&["get", "--raw", "/livez"]).is_ok(), "{name}");
    }
}

/// Objects that make these controllers work, and what shows that they have.
const WORKLOADS: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: example.invalid/image}]}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec: {serviceName: db, selector: {matchLabels: {app: db}}, template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: example.invalid/image}]}}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec: {selector: {matchLabels: {app: agent}}, template: {metadata: {labels: {app: agent}}, spec: {containers: [{name: c, image: example.invalid/image}]}}}
---
apiVersion: v1
kind: ReplicationController
metadata: {name: old}
spec: {replicas: 1, selector: {app: old}, template: {metadata: {labels: {app: old}}, spec: {containers: [{name: c, image: example.invalid/image}]}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: example.invalid/image}]}}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: often}
spec: {schedule: "* * * * *", suspend: true, jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: example.invalid/image}]}}}}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: all}
spec: {hard: {pods: "50"}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {accessModes: [ReadWriteOnce], storageClassName: none, resources: {requests: {storage: 1Mi}}}
"#;

/// Controllers, the stages at which each panics twice, and the field that it fills when it works all the same.
const CONTROLLERS: &[(&str, &[&str], &[&str])] = &[
    (
        "deployment-controller",
        &["handler", "work", "status"],
        &["deployment/web", "{.status.unavailableReplicas}", "1"],
    ),
    ("replicaset-controller", &["handler", "work", "status"], &["replicasets", "{.items[0].status.replicas}", "1"]),
    ("statefulset-controller", &["handler", "work", "status"], &["statefulset/db", "{.status.replicas}", "1"]),
    ("daemonset-controller", &["handler", "work", "status"], &["daemonset/agent", "{.status.observedGeneration}", "1"]),
    ("replicationcontroller-controller", &["handler", "work", "status"], &["rc/old", "{.status.replicas}", "1"]),
    ("job-controller", &["handler", "work", "status"], &["job/once", "{.status.active}", "1"]),
    ("disruption-controller", &["handler", "work", "status"], &["pdb/web", "{.status.expectedPods}", "1"]),
    (
        "horizontal-pod-autoscaler-controller",
        &["handler", "work", "status"],
        &["hpa/web", "{.status.conditions[0].type}", "AbleToScale"],
    ),
    ("resourcequota-controller", &["handler", "work", "status"], &["quota/all", "{.status.hard.pods}", "50"]),
    (
        "endpointslice-controller",
        &["handler", "work"],
        &["endpointslices", "{.items[?(@.metadata.labels.kubernetes\\.io/service-name==\"web\")].addressType}", "IPv4"],
    ),
    ("serviceaccount-controller", &["handler", "work"], &["serviceaccounts", "{.items[*].metadata.name}", "default"]),
    (
        "root-ca-certificate-publisher-controller",
        &["handler", "work"],
        &["configmaps", "{.items[*].metadata.name}", "kube-root-ca.crt"],
    ),
    (
        "persistentvolumeclaim-protection-controller",
        &["handler"],
        &["pvc/disk", "{.metadata.finalizers[0]}", "kubernetes.io/pvc-protection"],
    ),
    ("persistentvolume-binder-controller", &["work"], &["pvc/disk", "{.status.phase}", "Pending"]),
    ("namespace-controller", &["handler", "work"], &["namespaces", "{.items[*].metadata.name}", "default"]),
    ("garbage-collector-controller", &["work"], &["namespaces", "{.items[*].metadata.name}", "default"]),
];

#[test]
fn panicking_handlers_workers_and_writers_lose_nothing() {
    if !is_possible() {
        return;
    }
    let stages = CONTROLLERS.iter().flat_map(|(name, stages, _)| stages.iter().map(move |stage| (name, stage)));
    let faults: Vec<String> = stages.map(|(name, stage)| format!("{name}:{stage}*2")).collect();
    let faults = format!("{},informer/Pod:start,informer/Deployment:running,scheduler:binding", faults.join(","));
    let mut server = Server::start(&faults, &[]);
    server.wait_until_ready();
    server.kubectl(&["create", "namespace", "leaving"]).expect("created");
    server.apply(WORKLOADS);
    server.kubectl(&["delete", "namespace", "leaving", "--wait=false"]).expect("deleted");
    for (name, _, field) in CONTROLLERS {
        let path = format!("-o=jsonpath={}", field[1]);
        server.wait_for(&format!("the work of {name}"), |server| {
            server.kubectl(&["get", field[0], &path]).is_ok_and(|found| found.contains(field[2]))
        });
    }
    server.wait_for("the deleted namespace", |server| server.kubectl(&["get", "namespace", "leaving"]).is_err());
    let deleted = server.kubectl(&["delete", "deployment", "web", "--wait=false"]);
    assert!(deleted.is_ok(), "{deleted:?}");
    server.wait_for("the pods to be collected", |server| {
        server.kubectl(&["get", "pods,replicasets", "-l=app=web", "-o=name"]).is_ok_and(|names| names.trim().is_empty())
    });
    // None of the faults was left out.
    let panics = server.panics();
    for (name, stages, _) in CONTROLLERS {
        let count = panics.iter().find(|(own, _)| own == name).map_or(0, |(_, count)| *count);
        assert_eq!(count, 2 * stages.len() as u64, "{name} at {stages:?}: {panics:?}");
    }
    server.wait_until_ready();
}

#[test]
fn the_process_ends_when_its_store_or_listener_fails() {
    if !is_possible() {
        return;
    }
    for (fault, message) in [
        ("store:write", "store failed: the writer panicked: injected fault store:write"),
        ("api-server:running", "api-server failed: it panicked: injected fault api-server:running"),
        ("api-server:return", "api-server failed: it returned unexpectedly"),
    ] {
        let mut server = Server::start(fault, &[]);
        assert_eq!(server.exit_code(), Some(1), "{fault}");
        let errors = server.errors();
        // A store that fails during the start is reported by the step that needed it.
        let is_known = errors.contains(message) || (fault == "store:write" && errors.contains("the writer panicked"));
        assert!(is_known, "{fault}: {errors}");
    }
}

#[test]
fn an_exceeded_quota_refuses_creations_and_lets_deletions_pass() {
    if !is_possible() {
        return;
    }
    let mut server = Server::start("", &["--quota-backend-bytes", "3000000"]);
    server.wait_until_ready();
    let data = format!("--from-literal=data={}", "x".repeat(100_000));
    let mut created = 0;
    let refusal = loop {
        match server.kubectl(&["create", "configmap", &format!("map-{created}"), &data]) {
            Ok(_) => created += 1,
            Err(error) => break error,
        }
        assert!(created < 100, "there is no quota");
    };
    assert!(refusal.contains("etcdserver: mvcc: database space exceeded"), "{refusal}");
    let verbose = server.kubectl(&["get", "--raw", "/readyz?verbose"]).expect("the server is ready");
    assert!(verbose.contains("[+]storage-quota ok"), "{verbose}");
    for number in 0..created {
        server.kubectl(&["delete", "configmap", &format!("map-{number}")]).expect("a deletion");
    }
    server.kubectl(&["create", "configmap", "again", &data]).expect("there is space again");
}
