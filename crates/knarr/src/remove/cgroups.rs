//! Removes the cgroups of a node's pods.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::NodeLocation;

const TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Removes the cgroups of these pods and, if no other pods are left, their parents.
pub fn remove(location: &NodeLocation, pods: &[String]) -> anyhow::Result<()> {
    let root = location.cgroup_root.trim_matches('/');
    for hierarchy in hierarchies() {
        let own = hierarchy.join(root);
        let all = own.join("kubepods");
        for class in [all.clone(), all.join("burstable"), all.join("besteffort")] {
            for pod in pods {
                remove_tree(&class.join(format!("pod{pod}")))?;
            }
        }
        for directory in [all.join("burstable"), all.join("besteffort"), all] {
            remove_if_empty(&directory);
        }
        if !root.is_empty() {
            remove_if_empty(&own);
        }
    }
    Ok(())
}

/// The mount points: one per controller, or one at the root.
fn hierarchies() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let kind = right.split(' ').next()?;
        matches!(kind, "cgroup" | "cgroup2").then(|| left.split(' ').nth(4).map(PathBuf::from)).flatten()
    });
    points.collect()
}

/// A cgroup can be removed only after its children; its files are not removed individually.
fn remove_tree(directory: &Path) -> anyhow::Result<()> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("cannot read {}", directory.display()))?,
    };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_tree(&entry.path())?;
    }
    let started = Instant::now();
    loop {
        match std::fs::remove_dir(directory) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // The kernel needs a moment after the last process has exited.
            Err(error) if error.raw_os_error() == Some(nix::libc::EBUSY) && started.elapsed() < TIMEOUT => {
                std::thread::sleep(POLL_INTERVAL);
            }
            Err(error) => return Err(error).with_context(|| format!("cannot remove {}", directory.display())),
        }
    }
}

/// Others may have pods or processes there.
fn remove_if_empty(directory: &Path) {
    let _ = std::fs::remove_dir(directory);
}
