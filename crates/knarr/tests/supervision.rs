//! What users see when a component of the control plane panics: it is restarted and works again, or the process ends.
//!
//! Faults are injected by `KNARR_FAULT`, which builds with debug assertions read.

use std::io::Read as _;
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
            .stderr(Stdio::piped())
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
        let metrics = self.kubectl(&["get", "--raw", "/metrics"]).unwrap_or_default();
        let lines = metrics.lines().filter_map(|line| line.strip_prefix("knarr_component_restarts_total{component=\""));
        lines
            .filter_map(|line| line.split_once("\"} "))
            .map(|(name, count)| (name.to_owned(), count.parse().unwrap_or(0)))
            .collect()
    }

    fn errors(&mut self) -> String {
        let mut text = String::new();
        if let Some(stderr) = &mut self.process.stderr {
            let _ = stderr.read_to_string(&mut text);
        }
        text
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
    let names: Vec<&String> =
        names.iter().filter(|name| !ESSENTIAL.contains(&name.as_str()) && !name.starts_with("informer/")).collect();
    for expected in ["scheduler", "deployment-controller", "priority-and-fairness", "custom-resource-definitions"] {
        assert!(names.iter().any(|name| *name == expected), "{expected} in {names:?}");
    }
    drop(server);
    let faults: Vec<String> =
        names.iter().flat_map(|name| [format!("{name}:start"), format!("{name}:running")]).collect();
    let mut server = Server::start(&faults.join(","), &[]);
    server.wait_for("two restarts of each component", |server| {
        let restarts = server.restarts();
        let count = |name: &str| restarts.iter().find(|(own, _)| own == name).map_or(0, |(_, count)| *count);
        // Controllers are started again with their manager, whose restarts they do not count.
        names.iter().all(|name| count(name) >= 1) && count("controller-manager") == 2
    });
    server.wait_until_ready();
    server.runs_a_deployment("web");
}

#[test]
fn panicking_handlers_and_workers_lose_nothing() {
    if !is_possible() {
        return;
    }
    let controllers = ["deployment-controller", "replicaset-controller", "garbage-collector-controller"];
    let faults: Vec<String> =
        controllers.iter().flat_map(|name| [format!("{name}:handler*2"), format!("{name}:work*2")]).collect();
    let faults = format!("{},informer/Pod:start,informer/Deployment:running", faults.join(","));
    let mut server = Server::start(&faults, &[]);
    server.wait_until_ready();
    server.runs_a_deployment("web");
    let deleted = server.kubectl(&["delete", "deployment", "web", "--wait=false"]);
    assert!(deleted.is_ok(), "{deleted:?}");
    server.wait_for("the pods to be collected", |server| {
        server.kubectl(&["get", "pods,replicasets", "-o=name"]).is_ok_and(|names| names.trim().is_empty())
    });
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
