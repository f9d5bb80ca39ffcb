//! Mounts image contents on the node, for runtimes whose CRI can't mount images into containers.

use std::path::Path;
use std::process::{Command, Stdio};

use super::ImportError;

/// Mounts the image read-only. `target` must be an empty directory.
pub fn mount_image(socket: &Path, image: &str, target: &Path) -> Result<(), ImportError> {
    ctr(socket, &["images", "mount", "--snapshotter", "overlayfs", image], target)
}

/// Unmounts an image and removes its snapshot from the runtime.
pub fn unmount_image(socket: &Path, target: &Path) -> Result<(), ImportError> {
    ctr(socket, &["images", "unmount", "--rm", "--snapshotter", "overlayfs"], target)
}

fn ctr(socket: &Path, arguments: &[&str], target: &Path) -> Result<(), ImportError> {
    let output = Command::new("ctr")
        .arg("--address")
        .arg(socket)
        .args(["--namespace", "k8s.io"])
        .args(arguments)
        .arg(target)
        .stdin(Stdio::null())
        .output()
        .map_err(ImportError::Start)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_string();
    Err(ImportError::Refused { archive: target.to_path_buf(), message })
}
