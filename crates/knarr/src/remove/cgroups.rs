//! The cgroups of a node's pods.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::Place;

const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);

/// Removes the cgroups of these pods and, where no other pods are, those that all pods live below.
pub fn remove(place: &Place, pods: &[String]) -> anyhow::Result<()> {
    let root = place.cgroup_root.trim_matches('/');
    for hierarchy in hierarchies() {
        let own = hierarchy.join(root);
        let all = own.join("kubepods");
        for class in [all.clone(), all.join("burstable"), all.join("besteffort")] {
            for pod in pods {
                remove_tree(&class.join(format!("pod{pod}")))?;
            }
        }
        for folder in [all.join("burstable"), all.join("besteffort"), all] {
            remove_if_empty(&folder);
        }
        if !root.is_empty() {
            remove_if_empty(&own);
        }
    }
    Ok(())
}

/// The mount points: one a controller, or one at the root.
fn hierarchies() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let kind = right.split(' ').next()?;
        matches!(kind, "cgroup" | "cgroup2").then(|| left.split(' ').nth(4).map(PathBuf::from)).flatten()
    });
    points.collect()
}

/// A cgroup's folder goes only when those below it have gone; the files in it are not removed one by one.
fn remove_tree(folder: &Path) -> anyhow::Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("cannot read {}", folder.display()))?,
    };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_tree(&entry.path())?;
    }
    let begun = Instant::now();
    loop {
        match std::fs::remove_dir(folder) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // The kernel needs a moment after the last process has ended.
            Err(error) if error.raw_os_error() == Some(nix::libc::EBUSY) && begun.elapsed() < PATIENCE => {
                std::thread::sleep(LOOK);
            }
            Err(error) => return Err(error).with_context(|| format!("cannot remove {}", folder.display())),
        }
    }
}

/// Others may have pods there, or processes of their own.
fn remove_if_empty(folder: &Path) {
    let _ = std::fs::remove_dir(folder);
}
