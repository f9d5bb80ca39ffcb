//! A control plane that stops with the test, and helpers.

pub mod accessibility;
pub mod browser;
pub mod csi_driver;
pub mod hollow;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use knarr_client::kube::Client;

/// Long enough for a loaded host; states are usually reached within seconds.
pub const TIMEOUT: Duration = Duration::from_secs(180);

/// Processes by name.
pub struct ControlPlane {
    directory: tempfile::TempDir,
    processes: BTreeMap<String, Process>,
}

struct Process {
    child: Child,
    arguments: Vec<String>,
}

impl ControlPlane {
    /// API server, controllers and scheduler.
    pub fn start() -> Self {
        let mut plane = Self::api_server();
        plane.add("controller-manager", &["controller-manager"]);
        plane.add("scheduler", &["scheduler"]);
        plane
    }

    /// Only the API server.
    pub fn api_server() -> Self {
        Self::api_server_with(Self::empty(), &[])
    }

    /// No process yet.
    pub fn empty() -> Self {
        ControlPlane { directory: tempfile::tempdir().expect("a temporary directory"), processes: BTreeMap::new() }
    }

    /// The directory of the processes' data.
    pub fn data(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// The API server, with more arguments.
    pub fn api_server_with(mut plane: Self, more: &[String]) -> Self {
        let data = plane.directory.path().to_string_lossy().into_owned();
        let arguments = ["apiserver", "--data-dir", &data, "--listen", "127.0.0.1:0"].map(str::to_owned);
        plane.run("apiserver", &[&arguments, more].concat());
        wait_for("the API server to be ready", || plane.kubeconfig().exists());
        plane
    }

    /// `knarr server` without a node, on a port that it keeps when it restarts.
    pub fn server() -> Self {
        Self::server_with(Self::empty(), &[])
    }

    /// The same, with more arguments.
    pub fn server_with(mut plane: Self, more: &[String]) -> Self {
        let data = plane.directory.path().to_string_lossy().into_owned();
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
        let (listen, node) = (free.to_string(), "127.0.0.1");
        let arguments = ["server", "--disable-agent", "--data-dir", &data, "--listen", &listen, "--node-ip", node];
        plane.run("server", &[&arguments.map(str::to_owned), more].concat());
        wait_for("the server to be ready", || plane.kubeconfig().exists());
        plane
    }

    /// Starts a component under a name; `arguments` start with its command.
    pub fn add(&mut self, name: &str, arguments: &[&str]) {
        let kubeconfig = self.kubeconfig().to_string_lossy().into_owned();
        let mut all: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        all.extend(["--kubeconfig".to_owned(), kubeconfig]);
        // Several of a kind run side by side, here and in other tests: the usual port can belong to one only.
        if matches!(arguments.first(), Some(&("controller-manager" | "scheduler"))) {
            all.push("--secure-port=0".to_owned());
        }
        self.run(name, &all);
    }

    /// Starts a component that serves its endpoints at a port.
    pub fn add_serving(&mut self, command: &str, port: u16) {
        let kubeconfig = self.kubeconfig().to_string_lossy().into_owned();
        let port = format!("--secure-port={port}");
        let words = [command, "--kubeconfig", &kubeconfig, "--bind-address", "127.0.0.1", &port];
        self.run(command, &words.map(str::to_owned));
    }

    /// Kills a process (SIGKILL).
    pub fn kill(&mut self, name: &str) {
        let process = self.processes.get_mut(name).expect("a running process");
        process.child.kill().expect("it can be killed");
        process.child.wait().expect("it has ended");
    }

    /// Kills a process and starts it again.
    pub fn restart(&mut self, name: &str) {
        self.kill(name);
        let arguments = self.processes[name].arguments.clone();
        self.run(name, &arguments);
    }

    /// Restarts the processes that have exited by themselves.
    pub fn revive(&mut self, names: &[&str]) {
        for name in names {
            if self.ended(name).is_some() {
                let arguments = self.processes[*name].arguments.clone();
                self.run(name, &arguments);
            }
        }
    }

    pub fn signal(&self, name: &str, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.pid(name) as i32);
        nix::sys::signal::kill(pid, signal).expect("it can be signalled");
    }

    pub fn pid(&self, name: &str) -> u32 {
        self.processes[name].child.id()
    }

    /// The exit status of a process, if it has exited.
    pub fn ended(&mut self, name: &str) -> Option<ExitStatus> {
        self.processes.get_mut(name)?.child.try_wait().expect("its state is known")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig.yaml")
    }

    pub async fn client(&self) -> Client {
        knarr_client::connect(Some(&self.kubeconfig()), "test").await.expect("a client")
    }

    /// A client that acts as another user.
    pub async fn client_as(&self, user: &str, group: &str) -> Client {
        let mut config = knarr_client::read_config(Some(&self.kubeconfig()), "test").await.expect("a configuration");
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups = Some(vec![group.to_owned()]);
        knarr_client::connect_with(config, "test").expect("a client")
    }

    /// The output of kubectl, or its error.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(arguments)
            .env("HOME", self.directory.path())
            .output()
            .expect("kubectl is installed");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    fn run(&mut self, name: &str, arguments: &[String]) {
        // Tests put programs there that take the place of installed ones.
        let own = self.directory.path().join("bin");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(std::iter::once(own).chain(std::env::split_paths(&path))).expect("a path");
        let child = Command::new(env!("CARGO_BIN_EXE_knarr"))
            .args(arguments)
            .env("KNARR_LOG", "warn")
            .env("PATH", path)
            .stdin(Stdio::null())
            .spawn()
            .expect("knarr starts");
        self.processes.insert(name.to_owned(), Process { child, arguments: arguments.to_vec() });
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        // The API server is first by name and stopped last, so that other components log no errors.
        for process in self.processes.values_mut().rev() {
            // The process may have exited already.
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}

pub fn wait_for(what: &str, mut come: impl FnMut() -> bool) {
    let started = Instant::now();
    while !come() {
        assert!(started.elapsed() < TIMEOUT, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until the result satisfies a condition, and returns it.
pub async fn until<T, F: Future<Output = T>>(
    what: &str,
    mut ask: impl FnMut() -> F,
    mut satisfies: impl FnMut(&T) -> bool,
) -> T {
    let started = Instant::now();
    loop {
        let response = ask().await;
        if satisfies(&response) {
            return response;
        }
        assert!(started.elapsed() < TIMEOUT, "timed out waiting for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
