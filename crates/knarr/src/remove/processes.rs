//! The processes of a node: its container runtime, the runtime's helpers, and everything in its pods' cgroups.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Place;

const PATIENCE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);

/// What decides whose a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub command: Vec<String>,
    /// Its places in the cgroup hierarchies.
    pub cgroups: Vec<String>,
}

impl Process {
    pub fn belongs(&self, place: &Place, pods: &[String]) -> bool {
        self.is_runtime(&place.data) || self.cgroups.iter().any(|cgroup| is_pods(cgroup, &place.cgroup_root, pods))
    }

    /// containerd is known by its configuration, its shims by the socket they answer to.
    fn is_runtime(&self, data: &Path) -> bool {
        let program = self.command.first().and_then(|program| program.rsplit('/').next()).unwrap_or_default();
        let folder = data.join("containerd");
        let named = |file: &str| {
            let path = folder.join(file);
            self.command.iter().any(|argument| Path::new(argument) == path)
        };
        match program {
            "containerd" => named("config.toml"),
            _ if program.starts_with("containerd-shim") => named("containerd.sock"),
            _ => false,
        }
    }
}

/// Whether a cgroup is one of the pods', whatever class and container.
fn is_pods(cgroup: &str, root: &str, pods: &[String]) -> bool {
    let all = format!("{}/kubepods/", root.trim_end_matches('/'));
    let Some(below) = cgroup.strip_prefix(&all) else { return false };
    let mut folders = below.split('/').filter_map(|folder| folder.strip_prefix("pod"));
    folders.any(|uid| pods.iter().any(|pod| pod == uid))
}

/// Kills every process that belongs, and waits until none is left. Such as start meanwhile are found by the next look.
pub fn end(belongs: impl Fn(&Process) -> bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let left: Vec<Process> = all().into_iter().filter(|process| belongs(process)).collect();
        if left.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            let pids: Vec<String> = left.iter().map(|process| process.pid.to_string()).collect();
            bail!("these do not end: {}", pids.join(", "));
        }
        for process in &left {
            // It may just have ended by itself.
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
        std::thread::sleep(LOOK);
    }
}

fn all() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(read).collect()
}

/// `None` when it has ended; what only waits for its parent has ended, too.
fn read(pid: i32) -> Option<Process> {
    let folder = Path::new("/proc").join(pid.to_string());
    let status = std::fs::read_to_string(folder.join("stat")).ok()?;
    if status.rsplit(')').next()?.trim_start().starts_with(['Z', 'X']) {
        return None;
    }
    let command = std::fs::read(folder.join("cmdline")).ok()?;
    let words = command.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    let cgroups = std::fs::read_to_string(folder.join("cgroup")).ok()?;
    let cgroups = cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).map(str::to_owned);
    Some(Process { pid, command: words.collect(), cgroups: cgroups.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_known_by_runtime_and_pod() {
        let place = Place { data: "/data".into(), cgroup_root: "/one".into() };
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
            let process = Process { pid: 1, command, cgroups: vec!["/".to_owned(), cgroup.to_owned()] };
            assert_eq!(process.belongs(&place, &pods), expected, "{process:?}");
        }
    }
}
