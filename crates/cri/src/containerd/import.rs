//! Imports image archives into containerd. CRI has no call for this; containerd's `ctr` imports and unpacks in one step.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use super::release;
use crate::client::Runtime;
use crate::error::CallError;

/// Why an import failed.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// `ctr` could not be started.
    #[error("ctr could not be started")]
    Start(#[source] std::io::Error),
    /// `ctr` failed with this message.
    #[error("{archive}: {message}")]
    Refused { archive: PathBuf, message: String },
    /// The directory of archives can't be read or written.
    #[error("{directory} can't be read or written")]
    Directory { directory: PathBuf, source: std::io::Error },
    /// The imported images could not be pinned.
    #[error("the images can't be pinned")]
    Pin(#[from] CallError),
}

/// Imports one archive (OCI or docker form) and returns the names of its images. They are pinned until somebody removes them.
pub async fn import(socket: &Path, archive: &Path) -> Result<Vec<String>, ImportError> {
    let version = ctr().arg("--version").output().await.map_err(ImportError::Start)?;
    let output = ctr()
        .arg("--address")
        .arg(socket)
        .args(["--namespace", "k8s.io", "images", "import", "--snapshotter", "overlayfs"])
        .args(local_flag(&String::from_utf8_lossy(&version.stdout)))
        .arg(archive)
        .output()
        .await
        .map_err(ImportError::Start)?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_string();
        return Err(ImportError::Refused { archive: archive.to_path_buf(), message });
    }
    let names = imported_names(&String::from_utf8_lossy(&output.stdout));
    let runtime = Runtime::connect(&socket.to_string_lossy())?;
    for name in &names {
        runtime.pin_image(name).await?;
    }
    Ok(names)
}

fn ctr() -> Command {
    let mut command = Command::new("ctr");
    command.stdin(Stdio::null());
    command
}

/// From 2.0 on, `ctr` lets containerd import, and prints the progress in a form for people, unless a flag makes it import the image itself.
fn local_flag(printed_version: &str) -> Option<&'static str> {
    release(printed_version).filter(|release| *release >= (2, 0)).map(|_| "--local")
}

/// `ctr` prints one line an image: `unpacking NAME (DIGEST)...done`.
fn imported_names(output: &str) -> Vec<String> {
    output
        .lines()
        .filter_map(|line| line.strip_prefix("unpacking ")?.split_whitespace().next())
        .map(ToString::to_string)
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_read_from_the_output_of_ctr() {
        let output = "unpacking localhost/knarr/pause:1 (sha256:ab)...done\nother\n";
        assert_eq!(super::imported_names(output), ["localhost/knarr/pause:1"]);
    }

    #[test]
    fn newer_releases_are_told_to_import_themselves() {
        for (printed, expected) in [
            ("ctr github.com/containerd/containerd 1.6.20~ds1", None),
            ("ctr github.com/containerd/containerd/v2 2.2.1", Some("--local")),
        ] {
            assert_eq!(super::local_flag(printed), expected, "{printed}");
        }
    }
}
