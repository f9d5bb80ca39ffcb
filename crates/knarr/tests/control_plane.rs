//! The way of a Deployment as far as it needs no node: the real kubectl drives API server, controllers and scheduler, each
//! in a process of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Long enough for a loaded machine; what is waited for usually comes within a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// A control plane that ends with the test.
struct ControlPlane {
    directory: tempfile::TempDir,
    processes: Vec<Child>,
}

impl ControlPlane {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut plane = ControlPlane { directory, processes: Vec::new() };
        let data = plane.directory.path().to_string_lossy().into_owned();
        plane.run(&["apiserver", "--data-dir", &data, "--listen", "127.0.0.1:0"]);
        wait_for("the API server to be ready", || plane.kubeconfig().exists());
        let kubeconfig = plane.kubeconfig().to_string_lossy().into_owned();
        plane.run(&["controller-manager", "--kubeconfig", &kubeconfig]);
        plane.run(&["scheduler", "--kubeconfig", &kubeconfig]);
        plane
    }

    fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig.yaml")
    }

    fn run(&mut self, arguments: &[&str]) {
        let child = Command::new(env!("CARGO_BIN_EXE_knarr"))
            .args(arguments)
            .env("KNARR_LOG", "warn")
            .stdin(Stdio::null())
            .spawn()
            .expect("knarr starts");
        self.processes.push(child);
    }

    /// What kubectl prints, or what it complains of.
    fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        kubectl(&self.kubeconfig(), arguments)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        for child in &mut self.processes {
            // A process that has ended already needs no ending.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn kubectl(kubeconfig: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("kubectl")
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(arguments)
        .env("HOME", kubeconfig.parent().expect("a directory"))
        .output()
        .expect("kubectl is installed");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn wait_for(what: &str, mut come: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !come() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_deployment_becomes_pods_that_wait_for_a_node() {
    let plane = ControlPlane::start();
    let names = plane.kubectl(&["get", "namespaces", "-o", "name"]).expect("namespaces are listed");
    for namespace in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        assert!(names.contains(&format!("namespace/{namespace}")), "{names}");
    }

    plane.kubectl(&["create", "deployment", "web", "--image=nginx"]).expect("a deployment is made");
    plane.kubectl(&["scale", "deployment", "web", "--replicas=3"]).expect("it is scaled");
    let pods = || plane.kubectl(&["get", "pods", "-l", "app=web", "-o", "name"]).unwrap_or_default();
    wait_for("three pods", || pods().lines().count() == 3);
    let reasons = || {
        let path = "jsonpath={.items[*].status.conditions[?(@.type==\"PodScheduled\")].message}";
        plane.kubectl(&["get", "pods", "-o", path]).unwrap_or_default()
    };
    wait_for("the scheduler to say why they wait", || reasons().contains("no nodes available to schedule pods"));

    plane.kubectl(&["delete", "deployment", "web"]).expect("it is deleted");
    wait_for("its pods to go", || pods().is_empty());
}

#[test]
fn wrong_input_is_refused_with_the_reason() {
    let plane = ControlPlane::start();
    let refused = plane.kubectl(&["create", "configmap", "Bad_Name"]).expect_err("the name is wrong");
    assert!(refused.contains("a lowercase RFC 1123 subdomain must consist of"), "{refused}");
    let missing = plane.kubectl(&["get", "pod", "none"]).expect_err("there is no such pod");
    assert_eq!(missing, "Error from server (NotFound): pods \"none\" not found");
}
