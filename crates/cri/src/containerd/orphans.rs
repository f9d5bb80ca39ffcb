//! Cleans up what a killed containerd leaves behind: shims, leases and pod networks.
//!
//! A containerd that is killed while it starts a sandbox may have started the shim without recording it: the next process
//! removes the shim's directory and does not know the shim. Pod networks can be lost in the same way, after the plugin
//! created them and before the sandbox was recorded.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::SystemTime;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt;

use super::{ContainerdConfig, leases};
use crate::CONTAINERD_NAMESPACE;
use crate::client::Runtime;
use crate::messages::{ContainerFilter, PodSandboxFilter};

const SHIM: &str = "containerd-shim-runc-v2";
/// Where shims keep the state of runc, whatever containerd they belong to.
const RUNC_ROOT: &str = "/run/containerd/runc/k8s.io";

/// Call this when containerd, started at `started`, has loaded its state.
pub async fn clear(config: &ContainerdConfig, runtime: &Runtime, started: SystemTime) {
    kill_lost_shims(config).await;
    if let Err(error) = leases::delete_before(runtime, started).await {
        tracing::warn!(%error, "the leases of a previous containerd can't be deleted");
    }
    let sandboxes = match runtime.list_pod_sandboxes(PodSandboxFilter::default()).await {
        Ok(sandboxes) => sandboxes.into_iter().map(|sandbox| sandbox.id).collect(),
        Err(error) => {
            tracing::warn!(%error, "lost pod networks can't be collected");
            return;
        }
    };
    collect_networks(config, &sandboxes).await;
}

/// Kills shims of this containerd that it has no directory for, with all their descendants.
async fn kill_lost_shims(config: &ContainerdConfig) {
    let tasks = tasks(&config.state);
    for (pid, id) in shims(Path::new("/proc"), &config.socket) {
        if tasks.join(&id).exists() {
            continue;
        }
        kill_shim(pid, &id).await;
    }
}

async fn kill_shim(pid: i32, id: &str) {
    tracing::warn!(pid, sandbox = id, "killing a shim that containerd has lost");
    // runc kills the processes of the container and removes its cgroups. It may not know the container either.
    let _ = tokio::process::Command::new("runc")
        .args(["--root", RUNC_ROOT, "delete", "--force", id])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .await;
    for child in descendants(Path::new("/proc"), pid) {
        let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
    }
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

/// Shims that existed when this containerd process, or Knarr, started. If containerd was killed while it created a shim's
/// sandbox, it knows the shim's directory but no task: the sandbox is removed, and the shim would stay.
pub struct Inherited {
    shims: Vec<(i32, String)>,
    /// Those that were idle and unknown at the last check.
    suspects: HashSet<i32>,
    /// Those that were killed at the last check.
    killed: Vec<String>,
    /// Where containerd keeps a directory for each.
    directories: [PathBuf; 2],
}

impl Inherited {
    /// Finds the shims of this containerd.
    pub fn find(config: &ContainerdConfig) -> Self {
        let directories = [tasks(&config.state), tasks(&config.root)];
        let shims = shims(Path::new("/proc"), &config.socket);
        Self { shims, suspects: HashSet::new(), killed: Vec::new(), directories }
    }

    /// Kills shims that run nothing and that belonged to no sandbox or container in two consecutive checks.
    pub async fn check(&mut self, runtime: &Runtime) {
        let processes = Path::new("/proc");
        for id in self.killed.drain(..) {
            // containerd has removed them by now, unless it was killed before it had filled them.
            for directory in
                self.directories.iter().map(|parent| parent.join(&id)).filter(|directory| directory.exists())
            {
                if let Err(error) = remove_shim_directory(&directory) {
                    tracing::warn!(%error, directory = %directory.display(), "the directory of a lost shim can't be removed");
                }
            }
        }
        self.shims.retain(|(pid, id)| serves(processes, *pid, id));
        let idle: Vec<&(i32, String)> =
            self.shims.iter().filter(|(pid, _)| descendants(processes, *pid).is_empty()).collect();
        let known = if idle.is_empty() { Some(HashSet::new()) } else { known(runtime).await };
        let Some(known) = known else { return };
        let unknown: Vec<(i32, String)> = idle.into_iter().filter(|(_, id)| !known.contains(id)).cloned().collect();
        for (pid, id) in unknown.iter().filter(|(pid, _)| self.suspects.contains(pid)) {
            kill_shim(*pid, id).await;
            self.killed.push(id.clone());
        }
        self.suspects = unknown.into_iter().map(|(pid, _)| pid).collect();
    }
}

/// Where containerd keeps a directory for each shim, below its root and below its state.
fn tasks(below: &Path) -> PathBuf {
    below.join("io.containerd.runtime.v2.task").join(CONTAINERD_NAMESPACE)
}

/// Unmounts the root filesystem first; the directory stays if that still has content.
fn remove_shim_directory(directory: &Path) -> std::io::Result<()> {
    let rootfs = directory.join("rootfs");
    if rootfs.exists() {
        // Fails where nothing is mounted.
        let _ = nix::mount::umount2(&rootfs, nix::mount::MntFlags::MNT_DETACH);
        std::fs::remove_dir(&rootfs)?;
    }
    std::fs::remove_dir_all(directory)
}

/// The IDs of all sandboxes and containers; `None` when containerd does not respond.
async fn known(runtime: &Runtime) -> Option<HashSet<String>> {
    let sandboxes = runtime.list_pod_sandboxes(PodSandboxFilter::default()).await.ok()?;
    let containers = runtime.list_containers(ContainerFilter::default()).await.ok()?;
    let ids = sandboxes.into_iter().map(|sandbox| sandbox.id);
    Some(ids.chain(containers.into_iter().map(|container| container.id)).collect())
}

/// Whether the process is still the shim of that id.
fn serves(processes: &Path, pid: i32, id: &str) -> bool {
    let command = std::fs::read(processes.join(pid.to_string()).join("cmdline")).unwrap_or_default();
    command.split(|byte| *byte == 0).any(|argument| argument == id.as_bytes())
}

/// Shims that serve the containerd behind a socket, each with the id it was started for.
fn shims(processes: &Path, socket: &Path) -> Vec<(i32, String)> {
    let entries = std::fs::read_dir(processes).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let command = std::fs::read(processes.join(pid.to_string()).join("cmdline")).ok()?;
        let arguments: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
        let after = |flag: &str| {
            let at = arguments.iter().position(|argument| *argument == flag.as_bytes())?;
            arguments.get(at + 1).copied()
        };
        let is_shim = Path::new(std::ffi::OsStr::from_bytes(arguments.first()?)).file_name()? == SHIM;
        // A shim invoked to start or delete another one exits by itself.
        let serves = !arguments.iter().any(|argument| matches!(*argument, b"start" | b"delete"));
        let ours = after("-address")? == socket.as_os_str().as_bytes();
        let id = std::str::from_utf8(after("-id")?).ok()?.to_string();
        let ours = is_shim && serves && ours && sees(processes, pid, socket.parent()?);
        ours.then_some((pid, id))
    })
    .collect()
}

/// Whether a path leads a process to the same directory as this one. In a container, or another mount namespace, the same
/// path leads elsewhere: what is there belongs to another node.
pub fn sees(processes: &Path, pid: i32, directory: &Path) -> bool {
    let process = processes.join(pid.to_string());
    let below = directory.strip_prefix("/").unwrap_or(directory);
    match (std::fs::metadata(directory), std::fs::metadata(process.join("root").join(below))) {
        (Ok(own), Ok(theirs)) => (own.dev(), own.ino()) == (theirs.dev(), theirs.ino()),
        (Ok(_), Err(_)) => false,
        // Somebody has deleted it.
        (Err(_), _) => {
            let own = std::fs::read_link("/proc/self/ns/mnt").ok();
            own.is_some() && own == std::fs::read_link(process.join("ns/mnt")).ok()
        }
    }
}

fn descendants(processes: &Path, pid: i32) -> Vec<i32> {
    let children = std::fs::read_to_string(processes.join(format!("{pid}/task/{pid}/children"))).unwrap_or_default();
    let direct: Vec<i32> = children.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    direct.iter().flat_map(|child| descendants(processes, *child).into_iter().chain([*child])).collect()
}

/// Lets each network plugin that supports CNI's GC release what belongs to no sandbox.
async fn collect_networks(config: &ContainerdConfig, sandboxes: &HashSet<String>) {
    for network in networks(&config.cni_configuration) {
        // Our own plugin supports GC in any version; others since CNI 1.1.
        let supports_gc = network["cniVersion"].as_str().is_some_and(|version| version >= "1.1.0");
        let plugins = network["plugins"].as_array().into_iter().flatten();
        for plugin in plugins.filter(|plugin| supports_gc || plugin["type"] == "knarr") {
            if let Err(error) = collect(config, &network, plugin, sandboxes).await {
                let name = plugin["type"].as_str().unwrap_or_default();
                tracing::debug!(%error, plugin = name, "a network plugin failed to collect garbage");
            }
        }
    }
}

fn networks(directory: &Path) -> Vec<serde_json::Value> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    let lists = files.iter().filter(|path| path.extension().is_some_and(|extension| extension == "conflist"));
    lists.filter_map(|path| serde_json::from_slice::<serde_json::Value>(&std::fs::read(path).ok()?).ok()).collect()
}

async fn collect(
    config: &ContainerdConfig,
    network: &serde_json::Value,
    plugin: &serde_json::Value,
    sandboxes: &HashSet<String>,
) -> std::io::Result<()> {
    let name = plugin["type"].as_str().unwrap_or_default();
    let valid: Vec<_> = sandboxes.iter().map(|id| serde_json::json!({ "containerID": id, "ifname": "eth0" })).collect();
    let mut input = plugin.clone();
    input["cniVersion"] = network["cniVersion"].clone();
    input["name"] = network["name"].clone();
    input["cni.dev/valid-attachments"] = valid.into();
    let mut child = tokio::process::Command::new(config.cni_binaries.join(name))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("CNI_COMMAND", "GC")
        .env("CNI_PATH", &config.cni_binaries)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.to_string().as_bytes()).await?;
    }
    match child.wait().await? {
        status if status.success() => Ok(()),
        status => Err(std::io::Error::other(status.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_serving_shims_of_this_containerd_count() {
        let directory = tempfile::tempdir().expect("a directory");
        let (processes, data) = (directory.path().join("proc"), directory.path().join("a"));
        // The root of a process in another mount namespace, where the same path is another directory.
        let foreign = directory.path().join("foreign");
        std::fs::create_dir_all(&data).expect("a directory");
        std::fs::create_dir_all(foreign.join(data.strip_prefix("/").expect("absolute"))).expect("a directory");
        let shim = "/usr/bin/containerd-shim-runc-v2";
        let socket = data.join("c.sock");
        let own = socket.to_str().expect("text");
        for (pid, root, words) in [
            ("10", Path::new("/"), vec![shim, "-namespace", "k8s.io", "-id", "lost", "-address", own]),
            ("11", Path::new("/"), vec![shim, "-namespace", "k8s.io", "-id", "other", "-address", "/b/c.sock"]),
            ("12", Path::new("/"), vec![shim, "-namespace", "k8s.io", "-address", own, "-id", "new", "start"]),
            ("13", Path::new("/"), vec!["/bin/sleep", "-id", "x", "-address", own]),
            ("14", &foreign, vec![shim, "-namespace", "k8s.io", "-id", "foreign", "-address", own]),
        ] {
            let process = processes.join(pid);
            std::fs::create_dir_all(&process).expect("a directory");
            std::fs::write(process.join("cmdline"), words.join("\0")).expect("a file");
            std::os::unix::fs::symlink(root, process.join("root")).expect("a link");
        }
        assert_eq!(shims(&processes, &socket), [(10, "lost".to_string())]);
    }

    #[test]
    fn directories_are_removed_unless_they_hold_a_container_s_files() {
        let directory = tempfile::tempdir().expect("a directory");
        for (id, files, removed) in [("bare", None, true), ("empty", Some(""), true), ("full", Some("file"), false)] {
            let own = directory.path().join(id);
            std::fs::create_dir(&own).expect("a directory");
            std::fs::write(own.join("config.json"), "{}").expect("a file");
            if let Some(file) = files {
                std::fs::create_dir(own.join("rootfs")).expect("a directory");
                if !file.is_empty() {
                    std::fs::write(own.join("rootfs").join(file), "").expect("a file");
                }
            }
            assert_eq!(remove_shim_directory(&own).is_ok(), removed, "{id}");
            assert_eq!(own.exists(), !removed, "{id}");
        }
    }

    #[test]
    fn children_come_before_their_parents() {
        let directory = tempfile::tempdir().expect("a directory");
        for (pid, children) in [(1, "2 3 "), (2, "4"), (3, ""), (4, "")] {
            let task = directory.path().join(format!("{pid}/task/{pid}"));
            std::fs::create_dir_all(&task).expect("a directory");
            std::fs::write(task.join("children"), children).expect("a file");
        }
        assert_eq!(descendants(directory.path(), 1), [4, 2, 3]);
    }
}
