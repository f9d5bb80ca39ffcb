//! The cgroup of a cluster, below one of version 2 that is delegated to the user and in which this command is alone.
//!
//! The kernel gives the children of a cgroup controllers only while no process is in the cgroup itself. So this command moves into
//! the cluster's cgroup, where the namespaces are created, and from there into a leaf with everything that was started until then.

use std::fs::DirBuilder;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::unistd::{AccessFlags, access};

use super::super::Spec;

const MOUNT: &str = "/sys/fs/cgroup";
/// Without these there are no limits worth the name.
const NEEDED: [&str; 2] = ["memory", "pids"];
const WANTED: [&str; 5] = ["cpu", "cpuset", "io", "memory", "pids"];
/// The leaf for the processes of nodes.
const LEAF: &str = "processes";
/// The file in a cluster's directory that names its cgroup.
const RECORD: &str = "cgroup";

/// The cgroup that is delegated to this process, if one is.
pub fn delegated() -> Option<PathBuf> {
    let file = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let directory = Path::new(MOUNT).join(own(&file)?);
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap_or_default();
    let is_writable = ["", "cgroup.procs", "cgroup.subtree_control"]
        .iter()
        .all(|name| access(&directory.join(name), AccessFlags::W_OK).is_ok());
    let is_usable = is_writable && is_enough(&read("cgroup.controllers"), &read("cgroup.procs"), std::process::id());
    is_usable.then_some(directory)
}

/// The path of version 2 in `/proc/self/cgroup`, below the mount. With version 1 beside it, it has no controllers.
fn own(file: &str) -> Option<&str> {
    file.lines().find_map(|line| line.strip_prefix("0::/")).filter(|path| !path.is_empty())
}

/// Whether a cgroup has the controllers of limits, and no process but one.
fn is_enough(controllers: &str, processes: &str, own: u32) -> bool {
    let controllers: Vec<&str> = controllers.split_whitespace().collect();
    NEEDED.iter().all(|name| controllers.contains(name)) && processes.split_whitespace().eq([own.to_string().as_str()])
}

/// Which of the available controllers children get, as the kernel's file takes it.
fn enabled(available: &str) -> String {
    let available: Vec<&str> = available.split_whitespace().collect();
    let enabled = WANTED.iter().filter(|name| available.contains(name)).map(|name| format!("+{name}"));
    enabled.collect::<Vec<_>>().join(" ")
}

/// Moves this process into a new cgroup of a cluster, if one is delegated. Returns whether it did.
pub fn enter(directory: &Path, spec: &Spec) -> anyhow::Result<bool> {
    let Some(parent) = delegated() else { return Ok(false) };
    let own = parent.join(format!("knarr-{}-{}", spec.name, spec.id));
    let failed = || format!("cannot use the cgroup {}", own.display());
    std::fs::write(directory.join(RECORD), own.to_string_lossy().as_bytes())?;
    DirBuilder::new().recursive(true).create(&own).with_context(failed)?;
    move_to(&own, std::process::id()).with_context(failed)?;
    let available = std::fs::read_to_string(parent.join("cgroup.controllers"))?;
    std::fs::write(parent.join("cgroup.subtree_control"), enabled(&available)).with_context(failed)?;
    Ok(true)
}

/// Moves everything in a cluster's cgroup into a leaf.
pub fn leave(directory: &Path) -> anyhow::Result<()> {
    let Some(own) = recorded(directory)? else { return Ok(()) };
    let leaf = own.join(LEAF);
    DirBuilder::new().recursive(true).create(&leaf).with_context(|| format!("cannot create {}", leaf.display()))?;
    for process in std::fs::read_to_string(own.join("cgroup.procs"))?.split_whitespace() {
        match move_to(&leaf, process.parse()?) {
            // It has ended.
            Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => {}
            moved => moved.with_context(|| format!("cannot move process {process} to {}", leaf.display()))?,
        }
    }
    Ok(())
}

fn move_to(cgroup: &Path, process: u32) -> io::Result<()> {
    std::fs::write(cgroup.join("cgroup.procs"), process.to_string())
}

fn recorded(directory: &Path) -> anyhow::Result<Option<PathBuf>> {
    match std::fs::read_to_string(directory.join(RECORD)) {
        Ok(path) => Ok(Some(PathBuf::from(path))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context("cannot read the name of the cluster's cgroup"),
    }
}

/// Removes the cgroup of a cluster that has ended. One in which a command still runs stays: systemd removes it with its scope.
pub fn remove(directory: &Path) -> anyhow::Result<()> {
    let Some(own) = recorded(directory)? else { return Ok(()) };
    remove_tree(&own);
    std::fs::remove_file(directory.join(RECORD)).context("cannot forget the cluster's cgroup")
}

fn remove_tree(cgroup: &Path) {
    for entry in std::fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    // It is in use, or systemd was faster.
    let _ = std::fs::remove_dir(cgroup);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_is_used_if_it_has_controllers_and_nobody_else() {
        assert_eq!(own("0::/user.slice/a.scope\n"), Some("user.slice/a.scope"));
        assert_eq!(own("4:memory:/a\n1:name=systemd:/b\n0::/c\n"), Some("c"));
        assert_eq!(own("0::/\n"), None, "the root is nobody's");
        assert_eq!(own("4:memory:/a\n"), None);
        for (controllers, processes, expected) in [
            ("cpu memory pids\n", "7\n", true),
            ("memory pids\n", "7\n", true),
            ("memory\n", "7\n", false),
            ("", "7\n", false),
            ("cpu memory pids\n", "7\n8\n", false),
            ("cpu memory pids\n", "", false),
        ] {
            assert_eq!(is_enough(controllers, processes, 7), expected, "{controllers:?} {processes:?}");
        }
        assert_eq!(enabled("cpu hugetlb memory pids\n"), "+cpu +memory +pids");
    }

    #[test]
    fn a_cluster_without_a_cgroup_has_none_to_remove() {
        let directory = tempfile::tempdir().unwrap();
        leave(directory.path()).unwrap();
        remove(directory.path()).unwrap();
        let own = directory.path().join("own");
        std::fs::create_dir_all(own.join("a/b")).unwrap();
        std::fs::write(directory.path().join(RECORD), own.to_string_lossy().as_bytes()).unwrap();
        remove(directory.path()).unwrap();
        assert!(!own.exists() && !directory.path().join(RECORD).exists());
    }
}
