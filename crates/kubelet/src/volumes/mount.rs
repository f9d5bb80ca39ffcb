//! Mounts and what the kernel says about them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::mount::{MntFlags, MsFlags, umount2};

use super::VolumeError;

/// A file system in memory, which is kept out of swap where the kernel can do that.
pub fn tmpfs(path: &Path, options: &str, flags: MsFlags) -> Result<(), VolumeError> {
    // A kernel that can't complains in its log, so it is asked once.
    static CAN_KEEP: AtomicBool = AtomicBool::new(true);
    let mount = |options: &str| nix::mount::mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(options));
    let kept = if options.is_empty() { "noswap".to_string() } else { format!("{options},noswap") };
    let mounted = match CAN_KEEP.load(Ordering::Relaxed) {
        true => match mount(&kept) {
            Err(nix::Error::EINVAL | nix::Error::EPERM) => {
                mount(options).inspect(|()| CAN_KEEP.store(false, Ordering::Relaxed))
            }
            other => other,
        },
        false => mount(options),
    };
    mounted.map_err(|source| VolumeError::Mount { path: path.to_path_buf(), source })
}

pub fn hugetlbfs(path: &Path, options: &str) -> Result<(), VolumeError> {
    nix::mount::mount(Some("nodev"), path, Some("hugetlbfs"), MsFlags::empty(), Some(options))
        .map_err(|source| VolumeError::Mount { path: path.to_path_buf(), source })
}

pub fn bind(from: &Path, to: &Path) -> Result<(), VolumeError> {
    nix::mount::mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .map_err(|source| VolumeError::Mount { path: to.to_path_buf(), source })
}

/// Gone even if a process still has it open: the mount disappears now, its resources when the last user lets go.
pub fn unmount(path: &Path) -> Result<(), VolumeError> {
    match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) | Err(nix::Error::EINVAL | nix::Error::ENOENT) => Ok(()),
        Err(source) => Err(VolumeError::Mount { path: path.to_path_buf(), source }),
    }
}

pub fn is_mount_point(path: &Path) -> bool {
    mount_points().iter().any(|point| point == path)
}

/// Deepest first, so that they can be unmounted in this order.
pub fn mounts_below(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = mount_points().into_iter().filter(|point| point.starts_with(folder)).collect();
    found.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    found
}

fn mount_points() -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(|line| line.split(' ').nth(4)).map(|point| PathBuf::from(unescape(point))).collect()
}

/// Blanks and the like are written as octal numbers.
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
    #[test]
    fn octal_escapes_are_read() {
        assert_eq!(super::unescape("/a\\040b\\134c"), "/a b\\c");
        assert_eq!(super::unescape("/plain"), "/plain");
    }
}
