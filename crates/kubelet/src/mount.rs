//! Mount operations and the kernel's mount table.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::mount::{MntFlags, MsFlags, umount2};

/// Why a file system could not be mounted or changed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("mount of {path}: {source}")]
    Mount { path: PathBuf, source: nix::Error },
    #[error("{path} is mounted again and again")]
    Endless { path: PathBuf },
}

impl MountError {
    pub fn file(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::File { path: path.to_path_buf(), source }
    }
}

/// Mounts a tmpfs, without swap if the kernel supports that.
pub fn tmpfs(path: &Path, options: &str, flags: MsFlags) -> Result<(), MountError> {
    // A kernel without `noswap` logs an error, so it is tried once.
    static SUPPORTS_NOSWAP: AtomicBool = AtomicBool::new(true);
    let mount = |options: &str| nix::mount::mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(options));
    let with_noswap = if options.is_empty() { "noswap".to_string() } else { format!("{options},noswap") };
    let mounted = match SUPPORTS_NOSWAP.load(Ordering::Relaxed) {
        true => match mount(&with_noswap) {
            Err(nix::Error::EINVAL | nix::Error::EPERM) => {
                mount(options).inspect(|()| SUPPORTS_NOSWAP.store(false, Ordering::Relaxed))
            }
            other => other,
        },
        false => mount(options),
    };
    mounted.map_err(|source| MountError::Mount { path: path.to_path_buf(), source })
}

pub fn hugetlbfs(path: &Path, options: &str) -> Result<(), MountError> {
    nix::mount::mount(Some("nodev"), path, Some("hugetlbfs"), MsFlags::empty(), Some(options))
        .map_err(|source| MountError::Mount { path: path.to_path_buf(), source })
}

pub fn bind(from: &Path, to: &Path) -> Result<(), MountError> {
    nix::mount::mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .map_err(|source| MountError::Mount { path: to.to_path_buf(), source })
}

/// Detaches a mount even if a process still uses it: its resources are freed with the last user.
pub fn unmount(path: &Path) -> Result<(), MountError> {
    match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) | Err(nix::Error::EINVAL | nix::Error::ENOENT) => Ok(()),
        Err(source) => Err(MountError::Mount { path: path.to_path_buf(), source }),
    }
}

/// Makes a directory's mount shared, so that containers can propagate mounts to and from it. Needed on hosts with
/// private mounts only.
pub fn share(path: &Path) -> Result<(), MountError> {
    let real = path.canonicalize().map_err(MountError::file(path))?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if is_shared(&mounts, &real) {
        return Ok(());
    }
    let failed = |source| MountError::Mount { path: real.clone(), source };
    if !mount_points().contains(&real) {
        bind(&real, &real)?;
    }
    let flags = MsFlags::MS_SHARED | MsFlags::MS_REC;
    nix::mount::mount(None::<&str>, &real, None::<&str>, flags, None::<&str>).map_err(failed)
}

/// Whether the mount that contains a path is shared. The optional fields come before the dash.
fn is_shared(mounts: &str, path: &Path) -> bool {
    let holding = mounts.lines().filter_map(|line| {
        let (fields, _) = line.split_once(" - ")?;
        let point = PathBuf::from(unescape(fields.split(' ').nth(4)?));
        let is_shared = fields.split(' ').skip(6).any(|field| field.starts_with("shared:"));
        path.starts_with(&point).then(|| (point.components().count(), is_shared))
    });
    // Of several mounts at one point the last one is on top.
    holding.max_by_key(|(depth, _)| *depth).is_some_and(|(_, is_shared)| is_shared)
}

pub fn is_mount_point(path: &Path) -> bool {
    // The kernel lists mounts by their real paths. The last component is not resolved: a hung mount would block here.
    let real = path.parent().and_then(|parent| Some(parent.canonicalize().ok()?.join(path.file_name()?)));
    let points = mount_points();
    points.iter().any(|point| point == path || Some(point) == real.as_ref())
}

/// Detaches all mounts at a path, which may be stacked.
pub fn unmount_all_at(path: &Path) -> Result<(), MountError> {
    const MAX_STACKED: usize = 64;
    for _ in 0..MAX_STACKED {
        if !is_mount_point(path) {
            return Ok(());
        }
        unmount(path)?;
    }
    Err(MountError::Endless { path: path.to_path_buf() })
}

/// Deepest first, so that they can be unmounted in this order.
pub fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = mount_points().into_iter().filter(|point| point.starts_with(directory)).collect();
    found.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    found
}

fn mount_points() -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(|line| line.split(' ').nth(4)).map(|point| PathBuf::from(unescape(point))).collect()
}

/// Decodes octal escapes of blanks and other special characters.
fn unescape(text: &str) -> String {
    let mut result = Vec::with_capacity(text.len());
    let bytes = text.as_bytes();
    let mut position = 0;
    while position < bytes.len() {
        let octal = (bytes[position] == b'\\').then(|| text.get(position + 1..position + 4)).flatten();
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                result.push(byte);
                position += 4;
            }
            None => {
                result.push(bytes[position]);
                position += 1;
            }
        }
    }
    String::from_utf8_lossy(&result).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_mounts_are_recognised() {
        let mounts = "27 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                      30 27 0:5 / /var/lib/x rw - tmpfs tmpfs rw\n\
                      31 27 0:6 / /var/lib/x/y rw master:3 shared:2 - tmpfs tmpfs rw\n";
        for (path, expected) in
            [("/etc", true), ("/var/lib/x", false), ("/var/lib/x/z", false), ("/var/lib/x/y/z", true)]
        {
            assert_eq!(is_shared(mounts, Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn a_directory_is_shared_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().canonicalize().expect("a path");
        let points = || mount_points().into_iter().filter(|point| *point == path).count();
        share(&path).expect("shared");
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let (shared, count) = (is_shared(&mounts, &path), points());
        share(&path).expect("shared again");
        let again = points();
        unmount(&path).expect("unmounted");
        assert!(shared);
        assert_eq!(count, again, "the second time nothing changes");
    }

    #[test]
    fn stacked_mounts_are_detached_through_links_too() {
        let directory = tempfile::tempdir().expect("a directory");
        let real = directory.path().join("real");
        let point = real.join("point");
        std::fs::create_dir_all(&point).expect("made");
        std::os::unix::fs::symlink(&real, directory.path().join("link")).expect("made");
        bind(&real, &point).expect("bound");
        bind(&real, &point).expect("bound");
        let linked = directory.path().join("link/point");
        assert!(is_mount_point(&linked));
        unmount_all_at(&linked).expect("unmounted");
        assert!(!is_mount_point(&point));
    }

    #[test]
    fn octal_escapes_are_read() {
        assert_eq!(super::unescape("/a\\040b\\134c"), "/a b\\c");
        assert_eq!(super::unescape("/plain"), "/plain");
    }
}
