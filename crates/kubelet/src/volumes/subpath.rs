//! Mounting a part of a volume, without letting links inside the volume lead out of it.
//!
//! The path is opened component by component by the kernel, which refuses to leave the volume, and what was opened is
//! bound to a place outside the volume. What the pod changes afterwards has no effect on what the container gets.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{VolumeError, mount};

/// Binds `sub_path` of `volume` to `target` and returns where the container finds it. A path that is not there is made
/// as a folder.
pub fn bind(volume: &Path, sub_path: &str, target: &Path) -> Result<PathBuf, VolumeError> {
    if Path::new(sub_path).is_absolute() {
        return Err(VolumeError::Path(format!("error SubPath `{sub_path}` must not be an absolute path")));
    }
    if Path::new(sub_path).components().any(|part| part.as_os_str() == "..") {
        return Err(VolumeError::Path(format!("unable to provision SubPath `{sub_path}`: must not contain '..'")));
    }
    let root = open_root(volume)?;
    let opened = match open_beneath(&root, Path::new(sub_path)) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => make_folders(&root, volume, sub_path)?,
        Err(source) => return Err(VolumeError::File { path: volume.join(sub_path), source }),
    };
    let link = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let is_folder = std::fs::metadata(&link).map_err(VolumeError::file(&link))?.is_dir();
    let parent = target.parent().unwrap_or(target);
    std::fs::create_dir_all(parent).map_err(VolumeError::file(parent))?;
    if mount::is_mount_point(target) {
        mount::unmount(target)?;
    }
    if is_folder {
        if target.is_file() {
            std::fs::remove_file(target).map_err(VolumeError::file(target))?;
        }
        std::fs::create_dir_all(target).map_err(VolumeError::file(target))?;
    } else {
        if target.is_dir() {
            std::fs::remove_dir(target).map_err(VolumeError::file(target))?;
        }
        std::fs::OpenOptions::new().create(true).append(true).open(target).map_err(VolumeError::file(target))?;
    }
    mount::bind(&link, target)?;
    Ok(target.to_path_buf())
}

fn open_root(volume: &Path) -> Result<OwnedFd, VolumeError> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_CLOEXEC)
        .open(volume)
        .map(OwnedFd::from)
        .map_err(VolumeError::file(volume))
}

/// Opens a path as a mere reference. Links are followed as long as they stay below the root.
fn open_beneath(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: an all-zero open_how is valid; the fields that matter are set below.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
    how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_MAGICLINKS;
    // SAFETY: the descriptor is open, the path ends with a zero byte, and `how` is as large as said.
    let result = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            root.as_raw_fd(),
            path.as_ptr(),
            &raw const how,
            std::mem::size_of::<libc::open_how>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let descriptor = i32::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the kernel just gave us this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Makes what is missing, each folder with the access its parent has.
fn make_folders(root: &OwnedFd, volume: &Path, sub_path: &str) -> Result<OwnedFd, VolumeError> {
    let failed = |source: io::Error| VolumeError::File { path: volume.join(sub_path), source };
    let mut reached = PathBuf::new();
    let mut current = open_beneath(root, Path::new(".")).map_err(failed)?;
    for part in Path::new(sub_path).components() {
        let std::path::Component::Normal(part) = part else { continue };
        reached.push(part);
        current = match open_beneath(root, &reached) {
            Ok(next) => next,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let here = PathBuf::from(format!("/proc/self/fd/{}", current.as_raw_fd()));
                let mode = std::fs::metadata(&here).map_err(failed)?.permissions();
                let folder = here.join(part);
                std::fs::create_dir(&folder).map_err(failed)?;
                std::fs::set_permissions(&folder, mode).map_err(failed)?;
                open_beneath(root, &reached).map_err(failed)?
            }
            Err(error) => return Err(failed(error)),
        };
    }
    Ok(current)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_volume_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let volume = folder.path().join("v");
        std::fs::create_dir_all(volume.join("inside")).expect("made");
        std::os::unix::fs::symlink("/etc", volume.join("out")).expect("made");
        std::os::unix::fs::symlink("inside", volume.join("in")).expect("made");
        let root = open_root(&volume).expect("opened");
        for (path, allowed) in [("inside", true), ("in", true), ("out", false), ("out/passwd", false), ("", true)] {
            assert_eq!(open_beneath(&root, Path::new(path)).is_ok(), allowed, "{path}");
        }
        let target = folder.path().join("target");
        assert!(bind(&volume, "../x", &target).is_err());
        assert!(bind(&volume, "out/new", &target).is_err());
        make_folders(&root, &volume, "a/b/c").expect("made");
        assert!(volume.join("a/b/c").is_dir());
    }
}
