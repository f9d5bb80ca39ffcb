//! Stops the processes of a node: its container runtime, the runtime's shims, and everything in its pods' cgroups.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::NodeLocation;

const EXIT_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The properties that decide whether a process belongs to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub command: Vec<String>,
    /// Its paths in the cgroup hierarchies.
    pub cgroups: Vec<String>,
    /// Whether the path of the data directory leads it to the same directory as this process: not in a container.
    pub sees_data: bool,
}

impl Process {
    pub fn belongs(&self, location: &NodeLocation, pods: &[String]) -> bool {
        (self.is_runtime(&location.data) && self.sees_data)
            || self.cgroups.iter().any(|cgroup| is_pods(cgroup, &location.cgroup_root, pods))
    }

    /// containerd is recognized by its configuration, its shims by their socket.
    fn is_runtime(&self, data: &Path) -> bool {
        let program = self.command.first().and_then(|program| program.rsplit('/').next()).unwrap_or_default();
        let directory = data.join("containerd");
        let named = |file: &str| {
            let path = directory.join(file);
            self.command.iter().any(|argument| Path::new(argument) == path)
        };
        match program {
            "containerd" => named("config.toml"),
            _ if program.starts_with("containerd-shim") => named("containerd.sock"),
            _ => false,
        }
    }
}

/// Whether a cgroup belongs to one of the pods, whatever its QoS class and container.
fn is_pods(cgroup: &str, root: &str, pods: &[String]) -> bool {
    let all = format!("{}/kubepods/", root.trim_end_matches('/'));
    let Some(below) = cgroup.strip_prefix(&all) else { return false };
    let mut directories = below.split('/').filter_map(|directory| directory.strip_prefix("pod"));
    directories.any(|uid| pods.iter().any(|pod| pod == uid))
}

/// Kills every process that belongs, until none is left. Processes that start meanwhile are found by the next iteration.
pub fn kill_all(data: &Path, belongs: impl Fn(&Process) -> bool) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let left: Vec<Process> = all(data).into_iter().filter(|process| belongs(process)).collect();
        if left.is_empty() {
            return Ok(());
        }
        if started.elapsed() > EXIT_TIMEOUT {
            let pids: Vec<String> = left.iter().map(|process| process.pid.to_string()).collect();
            bail!("these processes do not exit: {}", pids.join(", "));
        }
        for process in &left {
            // It may have exited by itself.
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn all(data: &Path) -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| read(pid, data)).collect()
}

/// `None` if it has exited; a zombie has exited, too.
fn read(pid: i32, data: &Path) -> Option<Process> {
    let directory = Path::new("/proc").join(pid.to_string());
    let status = std::fs::read_to_string(directory.join("stat")).ok()?;
    if status.rsplit(')').next()?.trim_start().starts_with(['Z', 'X']) {
        return None;
    }
    let command = std::fs::read(directory.join("cmdline")).ok()?;
    let words = command.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    let cgroups = std::fs::read_to_string(directory.join("cgroup")).ok()?;
    let cgroups = cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).map(str::to_owned);
    let sees_data = knarr_cri::containerd::sees(Path::new("/proc"), pid, data);
    Some(Process { pid, command: words.collect(), cgroups: cgroups.collect(), sees_data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_recognized_by_runtime_and_pod() {
        let location = NodeLocation { data: "/data".into(), cgroup_root: "/one".into() };
        let pods = ["11-22".to_owned()];
        for (command, cgroup, expected) in [
            ("containerd --config /data/containerd/config.toml", "/", true),
            ("/usr/bin/containerd --config /other/containerd/config.toml", "/", false),
            ("/usr/bin/containerd-shim-runc-v2 -address /data/containerd/containerd.sock -id x", "/", true),
            ("vi /data/containerd/config.toml", "/", false),
            ("sleep 1", "/one/kubepods/besteffort/pod11-22/abc", true),
            ("sleep 1", "/one/kubepods/pod11-22", true),
            ("sleep 1", "/one/kubepods/pod33-44/abc", false),
            ("sleep 1", "/two/kubepods/pod11-22/abc", false),
            ("sleep 1", "/one/kubepods", false),
        ] {
            let command = command.split(' ').map(str::to_owned).collect();
            let cgroups = vec!["/".to_owned(), cgroup.to_owned()];
            let process = Process { pid: 1, command, cgroups, sees_data: true };
            assert_eq!(process.belongs(&location, &pods), expected, "{process:?}");
            // A container's own containerd has the same arguments.
            let foreign = Process { sees_data: false, ..process };
            assert_eq!(foreign.belongs(&location, &pods), expected && cgroup != "/", "{foreign:?}");
        }
    }
}
