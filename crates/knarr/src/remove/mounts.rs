//! Unmounts file systems below a directory.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::mount::{MntFlags, umount2};

/// Unmounts everything below a directory, the last mounted first. A mount of the directory itself stays.
pub fn remove_below(directory: &Path) -> anyhow::Result<()> {
    // The kernel lists mounts by their real paths.
    let Ok(directory) = directory.canonicalize() else { return Ok(()) };
    for point in below(&read()?, &directory) {
        match umount2(&point, MntFlags::MNT_DETACH) {
            // Gone together with its parent.
            Ok(()) | Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot unmount {}", point.display())),
        }
    }
    Ok(())
}

/// A mount below a directory, if there is one.
pub fn first_below(directory: &Path) -> anyhow::Result<Option<PathBuf>> {
    let Ok(directory) = directory.canonicalize() else { return Ok(None) };
    Ok(below(&read()?, &directory).into_iter().next())
}

/// Unmounts a directory that is bind-mounted on itself, as a node does to share its mounts. Other mounts stay.
pub fn remove_self_bind(directory: &Path) -> anyhow::Result<()> {
    let Ok(directory) = directory.canonicalize() else { return Ok(()) };
    if is_self_bind(&read()?, &directory) {
        umount2(&directory, MntFlags::MNT_DETACH).with_context(|| format!("cannot unmount {}", directory.display()))?;
    }
    Ok(())
}

/// The fourth field is the mounted directory relative to its own file system, without that file system's mount point.
fn is_self_bind(mounts: &str, directory: &Path) -> bool {
    let mut fields = mounts.lines().map(|line| line.split(' ').skip(3));
    fields.any(|mut fields| {
        let (Some(root), Some(point)) = (fields.next(), fields.next()) else { return false };
        let (root, point) = (unescape(root), PathBuf::from(unescape(point)));
        let inside = root.trim_start_matches('/');
        point == directory && !inside.is_empty() && point.ends_with(inside)
    })
}

/// Whether a directory is a mount point.
pub fn is_point(directory: &Path) -> anyhow::Result<bool> {
    let Ok(directory) = directory.canonicalize() else { return Ok(false) };
    Ok(points(&read()?).any(|point| point == directory))
}

fn read() -> anyhow::Result<String> {
    std::fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")
}

fn points(mounts: &str) -> impl Iterator<Item = PathBuf> + '_ {
    mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(|point| PathBuf::from(unescape(point)))
}

fn below(mounts: &str, directory: &Path) -> Vec<PathBuf> {
    let mut points: Vec<PathBuf> =
        points(mounts).filter(|point| point.starts_with(directory) && point != directory).collect();
    points.reverse();
    points
}

/// The kernel escapes blanks and the like as `\040`.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_self_bind_is_distinguished_from_a_disk() {
        let mounts = "1 0 8:1 / / rw - ext4 a rw\n2 1 8:1 /var/lib/a /var/lib/a rw shared:1 - ext4 a rw\n\
            3 1 8:2 / /var/lib/b rw - ext4 b rw\n4 1 8:3 /lib/c /var/lib/c rw - ext4 c rw\n";
        for (directory, expected) in
            [("/var/lib/a", true), ("/var/lib/b", false), ("/var/lib/c", true), ("/var", false)]
        {
            assert_eq!(is_self_bind(mounts, Path::new(directory)), expected, "{directory}");
        }
    }

    #[test]
    fn the_last_mounted_comes_first_and_others_stay() {
        let mounts = "1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / /data rw - tmpfs b rw\n3 2 0:3 / /data/a\\040b rw - tmpfs c rw\n\
            4 3 0:4 / /data/a\\040b/c rw - tmpfs d rw\n5 1 0:5 / /database rw - tmpfs e rw\n";
        let expected: Vec<PathBuf> = ["/data/a b/c", "/data/a b"].map(PathBuf::from).into();
        assert_eq!(below(mounts, Path::new("/data")), expected);
    }
}
