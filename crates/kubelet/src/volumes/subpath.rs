//! Mounts a sub-path of a volume, without letting links inside the volume lead out of it.
//!
//! The path is opened and created below the open volume, and its descriptor is bind-mounted to a path outside the
//! volume. Concurrent or later changes by the pod do not affect the mount.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::VolumeError;
use crate::beneath::{self, Directory, Links};
use crate::mount;
use crate::private;

/// Bind-mounts `sub_path` of `volume` to `target` and returns the path for the container. A missing path is created as
/// a directory.
pub fn bind(volume: &Path, sub_path: &str, target: &Path) -> Result<PathBuf, VolumeError> {
    check(sub_path)?;
    let rendered = beneath::rendered(volume, sub_path);
    let opened = open_or_create(volume, sub_path).map_err(VolumeError::file(&rendered))?;
    let link = beneath::link_to(&opened);
    let is_directory = beneath::metadata(&opened).map_err(VolumeError::file(&rendered))?.is_dir();
    let parent = target.parent().unwrap_or(target);
    private::create_all(parent).map_err(VolumeError::file(parent))?;
    if mount::is_mount_point(target) {
        mount::unmount(target)?;
    }
    if is_directory {
        if target.is_file() {
            std::fs::remove_file(target).map_err(VolumeError::file(target))?;
        }
        private::create_all(target).map_err(VolumeError::file(target))?;
    } else {
        if target.is_dir() {
            std::fs::remove_dir(target).map_err(VolumeError::file(target))?;
        }
        std::fs::OpenOptions::new().create(true).append(true).open(target).map_err(VolumeError::file(target))?;
    }
    mount::bind(&link, target)?;
    Ok(target.to_path_buf())
}

/// Removes the mounts of a container's earlier starts: a container that is restarted all the time must not fill the mount table.
/// The runtime needs a mount only until the container is created. Targets are named `INDEX-ATTEMPT`.
pub fn remove_others(directory: &Path, attempt: u32) {
    let own = format!("-{attempt}");
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| !entry.file_name().to_string_lossy().ends_with(&own)) {
        let path = entry.path();
        let removed = mount::unmount(&path).map_err(|error| error.to_string()).and_then(|()| {
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let removed = if is_directory { std::fs::remove_dir(&path) } else { std::fs::remove_file(&path) };
            removed.map_err(|error| error.to_string())
        });
        if let Err(error) = removed {
            tracing::warn!(error, path = %path.display(), "cannot remove the mount of an earlier start");
        }
    }
}

/// Checks a sub-path of any kind of volume, after variables have been expanded.
pub fn check(sub_path: &str) -> Result<(), VolumeError> {
    if Path::new(sub_path).is_absolute() {
        return Err(VolumeError::Path(format!("error SubPath `{sub_path}` must not be an absolute path")));
    }
    if Path::new(sub_path).components().any(|part| part.as_os_str() == "..") {
        return Err(VolumeError::Path(format!("unable to provision SubPath `{sub_path}`: must not contain '..'")));
    }
    Ok(())
}

/// A reference to the sub-path of the volume.
fn open_or_create(volume: &Path, sub_path: &str) -> io::Result<OwnedFd> {
    let root = Directory::open(volume)?;
    match root.resolve(Path::new(sub_path), Links::Inside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => root.create_all(Path::new(sub_path)),
        resolved => resolved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn links_out_of_the_volume_are_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let volume = directory.path().join("v");
        std::fs::create_dir_all(volume.join("inside")).expect("made");
        std::os::unix::fs::symlink("/etc", volume.join("out")).expect("made");
        std::os::unix::fs::symlink("inside", volume.join("in")).expect("made");
        for (path, allowed) in [("inside", true), ("in", true), ("out", false), ("out/passwd", false), ("", true)] {
            assert_eq!(open_or_create(&volume, path).is_ok(), allowed, "{path}");
        }
        let target = directory.path().join("target");
        assert!(bind(&volume, "../x", &target).is_err());
        assert!(bind(&volume, "out/new", &target).is_err());
        assert!(!Path::new("/etc/new").exists());
        std::fs::set_permissions(&volume, PermissionsExt::from_mode(0o2770)).expect("set");
        open_or_create(&volume, "in/b/c").expect("made");
        let made = std::fs::metadata(volume.join("inside/b/c")).expect("there");
        assert!(made.is_dir() && made.permissions().mode() & 0o7777 == 0o2770, "as the volume itself");
        std::os::unix::fs::symlink("nothing", volume.join("dangling")).expect("made");
        assert!(open_or_create(&volume, "dangling/new").is_err());
    }

    /// Swaps the directory of the current round for a link and back, as a container could, until the round is zero.
    fn swap(volume: &Path, round: &AtomicUsize) {
        loop {
            let now = round.load(Ordering::Relaxed);
            if now == 0 {
                return;
            }
            let (directory, link) = (volume.join(format!("{now}")), volume.join(format!("link-{now}")));
            let (here, exchange) = (nix::fcntl::AT_FDCWD, nix::fcntl::RenameFlags::RENAME_EXCHANGE);
            while round.load(Ordering::Relaxed) == now {
                let _ = nix::fcntl::renameat2(here, &directory, here, &link, exchange);
            }
        }
    }

    #[test]
    fn a_directory_swapped_for_a_link_changes_nothing_outside() {
        let directory = tempfile::tempdir().expect("a directory");
        let (volume, outside) = (directory.path().join("v"), directory.path().join("outside"));
        std::fs::create_dir(&volume).expect("made");
        std::fs::create_dir(&outside).expect("made");
        std::fs::set_permissions(&volume, PermissionsExt::from_mode(0o777)).expect("set");
        std::fs::set_permissions(&outside, PermissionsExt::from_mode(0o700)).expect("set");
        let round = AtomicUsize::new(1);
        let harmed = std::thread::scope(|scope| {
            scope.spawn(|| swap(&volume, &round));
            let harmed = (1..1_500).find(|now| {
                std::os::unix::fs::symlink(&outside, volume.join(format!("link-{now}"))).expect("made");
                round.store(*now, Ordering::Relaxed);
                // Whether it fails does not matter here.
                let _ = open_or_create(&volume, &format!("{now}/b"));
                let mode = std::fs::metadata(&outside).expect("there").permissions().mode() & 0o7777;
                mode != 0o700 || std::fs::read_dir(&outside).expect("readable").next().is_some()
            });
            round.store(0, Ordering::Relaxed);
            harmed
        });
        assert_eq!(harmed, None, "the round that reached outside");
    }
}
