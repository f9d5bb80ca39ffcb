//! Files that containerd and runc keep outside the data directory, by the ids of our containers.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// runc's state directory under containerd's shim, whatever containerd's own directories are.
const RUNC: &str = "/run/containerd/runc/k8s.io";

/// The paths that belong to containers of this node. Must be called before its processes are stopped.
pub fn outside(data: &Path) -> Vec<PathBuf> {
    let tasks = data.join("containerd/state/io.containerd.runtime.v2.task/k8s.io");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(tasks).into_iter().flatten().flatten() {
        found.push(Path::new(RUNC).join(entry.file_name()));
        let address = std::fs::read_to_string(entry.path().join("address")).unwrap_or_default();
        found.extend(address.trim().strip_prefix("unix://").map(PathBuf::from));
    }
    found
}

pub fn remove(paths: &[PathBuf]) -> anyhow::Result<()> {
    for path in paths {
        let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}
