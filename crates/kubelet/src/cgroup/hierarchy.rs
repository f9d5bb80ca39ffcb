//! The cgroup file systems of the host, in version 1 or 2, and their directories.

use std::io;
use std::path::{Path, PathBuf};

/// Where cgroups are mounted.
#[derive(Clone, Debug)]
pub enum Hierarchy {
    /// Version 1: each controller with its own mount.
    Separate(Vec<(String, PathBuf)>),
    /// Version 2.
    Unified(PathBuf),
}

pub fn join(mount: &Path, path: &str) -> PathBuf {
    mount.join(path.trim_start_matches('/'))
}

/// The cgroup of a process, from its `/proc/PID/cgroup`. In version 1 it is systemd's if there is one, otherwise that of CPU
/// and memory if both are the same.
pub fn cgroup_of_process(table: &str, is_unified: bool) -> Option<String> {
    let of = |wanted: &str| {
        table.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers.split(',').any(|controller| controller == wanted).then(|| path.to_string())
        })
    };
    if is_unified {
        return of("");
    }
    let (cpu, memory) = (of("cpu")?, of("memory")?);
    (cpu == memory).then(|| of("name=systemd").unwrap_or(cpu))
}

/// Maps shares of 2 to 262144 to weights of 1 to 10000.
pub fn weight(shares: i64) -> i64 {
    1 + (shares - 2) * 9999 / 262_142
}

/// Enables all available controllers for child cgroups. The kernel refuses that for a cgroup with processes, which
/// needs none.
pub fn delegate(directory: &Path) {
    let Ok(available) = std::fs::read_to_string(directory.join("cgroup.controllers")) else { return };
    let enabled = std::fs::read_to_string(directory.join("cgroup.subtree_control")).unwrap_or_default();
    for controller in available.split_whitespace() {
        if !enabled.split_whitespace().any(|known| known == controller)
            && let Err(error) = std::fs::write(directory.join("cgroup.subtree_control"), format!("+{controller}"))
        {
            tracing::debug!(directory = %directory.display(), controller, %error, "cannot enable a cgroup controller for children");
        }
    }
}

/// Kills the remaining processes in the cgroup of a terminated pod. A runtime that was killed while it created a
/// sandbox leaves processes that belong to no container.
pub fn kill_all(directory: &Path) {
    let processes = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    for process in processes.lines().filter_map(|line| line.trim().parse().ok()).filter(|process| *process > 1) {
        tracing::warn!(process, cgroup = %directory.display(), "killing a process that outlived its pod");
        // The process may already have exited.
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(process), nix::sys::signal::Signal::SIGKILL);
    }
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            kill_all(&entry.path());
        }
    }
}

pub fn remove_tree(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    match std::fs::remove_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The fifth field is the mount point; the fields after the dash are type, source and options.
pub fn parse_mounts(mountinfo: &str) -> Option<Hierarchy> {
    let mut separate = Vec::new();
    let mut unified = None;
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let Some(point) = left.split(' ').nth(4) else { continue };
        let mut right = right.split(' ');
        match right.next() {
            Some("cgroup") => {
                for option in right.nth(1).unwrap_or_default().split(',') {
                    separate.push((option.to_string(), PathBuf::from(point)));
                }
            }
            Some("cgroup2") => unified = Some(PathBuf::from(point)),
            _ => {}
        }
    }
    // Where both exist, version 1 has the controllers and version 2 is used by systemd only.
    separate.retain(|(name, _)| name != "rw" && name != "ro");
    if separate.iter().any(|(name, _)| name == "memory" || name == "cpu") {
        // The runtime creates directories there all the same, which must be removed with the pod.
        separate.extend(unified.map(|mount| ("unified".to_string(), mount)));
        return Some(Hierarchy::Separate(separate));
    }
    unified.map(Hierarchy::Unified)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_hierarchy_are_found() {
        let hybrid = "30 24 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
                      31 24 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        match parse_mounts(hybrid) {
            Some(Hierarchy::Separate(mounts)) => {
                let names: Vec<_> = mounts.iter().map(|(name, _)| name.as_str()).collect();
                assert_eq!(names, ["cpu", "cpuacct", "unified"]);
            }
            other => panic!("{other:?}"),
        }
        let unified = "30 24 0:26 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n";
        assert!(matches!(parse_mounts(unified), Some(Hierarchy::Unified(path)) if path == Path::new("/sys/fs/cgroup")));
    }

    #[test]
    fn a_process_is_found_in_its_cgroup() {
        let systemd =
            "4:memory:/system.slice/k\n3:cpu,cpuacct:/system.slice/k\n1:name=systemd:/system.slice/k\n0::/x\n";
        let plain = "4:memory:/k\n3:cpu,cpuacct:/k\n0::/\n";
        let apart = "4:memory:/k\n3:cpu,cpuacct:/\n1:name=systemd:/k\n";
        for (table, is_unified, expected) in [
            (systemd, false, Some("/system.slice/k")),
            (systemd, true, Some("/x")),
            (plain, false, Some("/k")),
            (apart, false, None),
            ("", true, None),
        ] {
            assert_eq!(cgroup_of_process(table, is_unified).as_deref(), expected, "{table}");
        }
    }

    #[test]
    fn shares_become_weights() {
        assert_eq!([2, 1024, 262_144].map(weight), [1, 39, 10_000]);
    }
}
