//! One node: a host, its files, and the Knarr process on it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::host::TestHost;
use super::{image, wait_for};

pub struct Node {
    pub name: String,
    pub host: TestHost,
    pub data: PathBuf,
    pub cgroup_root: String,
    program: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    process: Option<Child>,
}

/// The program under test: the one of this build, unless `KNARR_PROGRAM` names another.
pub fn program() -> String {
    std::env::var("KNARR_PROGRAM").unwrap_or_else(|_| env!("CARGO_BIN_EXE_knarr").to_owned())
}

impl Node {
    /// A node that is not started. `arguments` are added to those of every node.
    pub fn new(host: TestHost, name: &str, role: &str, directory: &Path, arguments: Vec<String>) -> Self {
        let data = directory.join(name);
        image::write(&data.join("images"));
        let cgroup_root = format!("/{}", host.name);
        let mut all = vec![role.to_owned()];
        for (flag, value) in [
            ("--data-dir", data.to_string_lossy().into_owned()),
            ("--node-name", name.to_owned()),
            ("--cgroup-root", cgroup_root.clone()),
            // Disk usage of the tester's host must not matter.
            ("--eviction-hard", "memory.available<1Mi".to_owned()),
            // A disk filled by others must not cost the test its images.
            ("--image-gc-high-threshold", "100".to_owned()),
        ] {
            all.extend([flag.to_owned(), value]);
        }
        if !host.address.is_empty() {
            all.extend(["--node-ip".to_owned(), host.address.clone()]);
        }
        all.extend(arguments);
        Node {
            name: name.to_owned(),
            host,
            data,
            cgroup_root,
            program: program(),
            arguments: all,
            environment: Vec::new(),
            process: None,
        }
    }

    /// A Knarr command on this node's host.
    pub fn knarr(&self, arguments: &[&str]) -> Command {
        let mut command = self.host.command(&self.program);
        command.args(arguments).env("KNARR_LOG", std::env::var("KNARR_LOG").unwrap_or_else(|_| "info".into()));
        command
    }

    pub fn start(&mut self) {
        assert!(self.process.is_none(), "{} runs already", self.name);
        let log = File::options().create(true).append(true).open(self.log_path()).expect("a log");
        let errors = log.try_clone().expect("a log");
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let mut command = self.knarr(&arguments);
        command.envs(self.environment.iter().cloned());
        let child = command.stdout(Stdio::from(log)).stderr(Stdio::from(errors)).spawn();
        self.process = Some(child.expect("knarr starts"));
    }

    /// Sets the program for the next start.
    pub fn set_program(&mut self, program: &str) {
        program.clone_into(&mut self.program);
    }

    /// Sets a variable of Knarr's environment, for the next start.
    pub fn set_variable(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Additional flags for the next start.
    pub fn add_flags(&mut self, flags: &[&str]) {
        self.arguments.extend(flags.iter().map(ToString::to_string));
    }

    /// Leaves a flag and its value away in the next start.
    pub fn remove_flag(&mut self, flag: &str) {
        while let Some(at) = self.arguments.iter().position(|argument| argument == flag) {
            self.arguments.drain(at..(at + 2).min(self.arguments.len()));
        }
    }

    /// Kills Knarr, as a crash would. Its containerd and pods keep running.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.process.take() {
            // It may have exited by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops Knarr and waits for its exit. Its containerd and pods keep running.
    pub fn stop(&mut self) {
        let Some(mut child) = self.process.take() else { return };
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        wait_for("Knarr to stop", || child.try_wait().expect("its state").is_some());
    }

    /// The process id of Knarr on this node.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("Knarr runs").id()
    }

    pub fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    fn log_path(&self) -> PathBuf {
        self.data.with_extension("log")
    }

    /// The log of Knarr on this node.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- the end of {}'s log\n{}", self.name, lines[lines.len().saturating_sub(40)..].join("\n"));
        }
        self.kill();
        let data = self.data.to_string_lossy().into_owned();
        let removed =
            self.knarr(&["uninstall", "--yes", "--data-dir", &data, "--cgroup-root", &self.cgroup_root]).output();
        let output = removed.expect("knarr runs");
        if !output.status.success() {
            eprintln!("{} was not removed: {}", self.name, String::from_utf8_lossy(&output.stderr));
        }
    }
}
