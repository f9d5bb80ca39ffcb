//! Walks directory trees that containers created and may change during the walk, without leaving them.
//!
//! A tree may be deeper than paths can be long and than a process may have files open: one directory is open at a time,
//! none is reached by its path, and `..` must lead back to where the walk came from.

use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::UnlinkatFlags;

use crate::beneath::{link_to, metadata};

/// Callbacks of a walk.
pub trait Visitor {
    /// An entry of an open directory, before anything below it.
    fn enter(&mut self, directory: &OwnedFd, entry: &DirEntry, metadata: &Metadata) -> io::Result<()>;

    /// A directory of an open directory, after everything below it.
    fn leave(&mut self, _parent: &OwnedFd, _name: &OsStr) -> io::Result<()> {
        Ok(())
    }

    /// Whether the walk continues without a directory that is moved while it is visited. Otherwise that is an error.
    fn tolerates_moves(&self) -> bool {
        false
    }
}

struct Level {
    name: OsString,
    identity: (u64, u64),
    /// Its subdirectories that are still to be visited.
    pending: Vec<OsString>,
}

/// How many moves a walk tolerates: each may cost as much as the tree is deep.
const MAX_MOVES: usize = 1000;
const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC).union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW);

/// Visits everything below the root, but not the root itself and nothing that is mounted below it: a volume may be a
/// directory of the same file system.
pub fn walk(root: &Path, visitor: &mut impl Visitor) -> io::Result<()> {
    let path = root;
    let mut current = nix::fcntl::open(path, DIRECTORY, Mode::empty())?;
    let root = metadata(&current)?;
    let device = root.dev();
    let pending = list(&current, device, visitor)?;
    let mut levels = vec![Level { name: OsString::new(), identity: identity(&root), pending }];
    let mut moves = 0;
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.pending.pop() {
            let next = match nix::fcntl::openat(&current, name.as_os_str(), DIRECTORY, Mode::empty()) {
                Ok(next) => next,
                // Removed or replaced meanwhile.
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => continue,
                Err(error) => return Err(error.into()),
            };
            let found = metadata(&next)?;
            if found.dev() != device || is_mount_point(&next) {
                continue;
            }
            let pending = list(&next, device, visitor)?;
            levels.push(Level { name, identity: identity(&found), pending });
            current = next;
            continue;
        }
        let done = levels.pop();
        let (Some(done), Some(parent)) = (done, levels.last()) else { break };
        match nix::fcntl::openat(&current, "..", DIRECTORY, Mode::empty()) {
            Ok(above) if identity(&metadata(&above)?) == parent.identity => {
                current = above;
                visitor.leave(&current, &done.name)?;
            }
            // A directory that is removed has no parent.
            Ok(_) | Err(Errno::ENOENT) if visitor.tolerates_moves() && moves < MAX_MOVES => {
                moves += 1;
                current = reopen(path, &mut levels)?;
            }
            Ok(_) => return Err(io::Error::other("a directory was moved during the walk of its tree")),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Opens the deepest of these directories that is still where it was, and drops those below it.
fn reopen(root: &Path, levels: &mut Vec<Level>) -> io::Result<OwnedFd> {
    let mut current = nix::fcntl::open(root, DIRECTORY, Mode::empty())?;
    for index in 1..levels.len() {
        let level = &levels[index];
        match nix::fcntl::openat(&current, level.name.as_os_str(), DIRECTORY, Mode::empty()) {
            Ok(next) if identity(&metadata(&next)?) == level.identity => current = next,
            Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {
                levels.truncate(index);
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(current)
}

fn is_mount_point(directory: &OwnedFd) -> bool {
    /// From the kernel's interface; older kernels never set it.
    const ATTRIBUTE_MOUNT_ROOT: u64 = 0x2000;
    let mut found = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let (descriptor, flags) = (directory.as_raw_fd(), libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW);
    // SAFETY: the descriptor is open, the path is an empty string, and the kernel fills the buffer, which is zeroed and
    // valid as it is.
    let found = unsafe {
        match libc::statx(descriptor, c"".as_ptr(), flags, 0, found.as_mut_ptr()) {
            0 => found.assume_init(),
            _ => return false,
        }
    };
    found.stx_attributes & ATTRIBUTE_MOUNT_ROOT != 0
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn list(directory: &OwnedFd, device: u64, visitor: &mut impl Visitor) -> io::Result<Vec<OsString>> {
    let mut directories = Vec::new();
    for entry in std::fs::read_dir(link_to(directory))? {
        let entry = entry?;
        let found = match entry.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            found => found?,
        };
        if found.dev() == device {
            visitor.enter(directory, &entry, &found)?;
            if found.is_dir() {
                directories.push(entry.file_name());
            }
        }
    }
    Ok(directories)
}

/// Removes a directory and everything below it. Fails if another file system is mounted there.
pub fn remove(root: &Path) -> io::Result<()> {
    match walk(root, &mut Remove) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => std::fs::remove_dir(root),
    }
}

struct Remove;

impl Visitor for Remove {
    fn enter(&mut self, directory: &OwnedFd, entry: &DirEntry, metadata: &Metadata) -> io::Result<()> {
        match metadata.is_dir() {
            true => Ok(()),
            false => Ok(nix::unistd::unlinkat(directory, entry.file_name().as_os_str(), UnlinkatFlags::NoRemoveDir)?),
        }
    }

    fn leave(&mut self, parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
        Ok(nix::unistd::unlinkat(parent, name, UnlinkatFlags::RemoveDir)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts, and moves a directory out of the walk's way, as a container that hides what it has would.
    struct Mover<'a> {
        root: &'a Path,
        seen: Vec<OsString>,
        tolerates: bool,
    }

    impl Visitor for Mover<'_> {
        fn enter(&mut self, _directory: &OwnedFd, entry: &DirEntry, _metadata: &Metadata) -> io::Result<()> {
            self.seen.push(entry.file_name());
            if entry.file_name() == "moving" {
                std::fs::rename(self.root.join("x/a"), self.root.join("y/a"))?;
            }
            if entry.file_name() == "removing" {
                std::fs::remove_dir_all(self.root.join("z/b"))?;
            }
            Ok(())
        }

        fn tolerates_moves(&self) -> bool {
            self.tolerates
        }
    }

    #[test]
    fn moves_hide_nothing_but_what_is_moved() {
        for tolerates in [true, false] {
            let directory = tempfile::tempdir().expect("a directory");
            let root = directory.path();
            for path in ["x/a/moving", "y", "z/b/removing", "data/one", "x/c", "z/c"] {
                std::fs::create_dir_all(root.join(path)).expect("made");
            }
            let mut mover = Mover { root, seen: Vec::new(), tolerates };
            assert_eq!(walk(root, &mut mover).is_ok(), tolerates);
            if tolerates {
                for name in ["x", "y", "z", "data", "one"] {
                    assert!(mover.seen.iter().any(|seen| seen == name), "{name} in {:?}", mover.seen);
                }
                assert_eq!(mover.seen.iter().filter(|seen| *seen == "c").count(), 2);
            }
        }
    }

    #[derive(Default)]
    struct Count(usize);

    impl Visitor for Count {
        fn enter(&mut self, _directory: &OwnedFd, _entry: &DirEntry, _metadata: &Metadata) -> io::Result<()> {
            self.0 += 1;
            Ok(())
        }
    }

    #[test]
    fn directories_mounted_from_the_same_file_system_are_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let (volume, pod) = (directory.path().join("volume"), directory.path().join("pod"));
        std::fs::create_dir_all(pod.join("mount")).expect("made");
        std::fs::create_dir(&volume).expect("made");
        std::fs::write(volume.join("data"), vec![1; 1 << 20]).expect("written");
        crate::mount::bind(&volume, &pod.join("mount")).expect("bound");
        let (bytes, files) = crate::filesystem::directory_usage(&pod);
        let removed = remove(&pod);
        crate::mount::unmount(&pod.join("mount")).expect("unmounted");
        assert!(bytes < 1 << 20 && files == 2, "{bytes} {files}: the volume is no usage of the pod");
        assert!(removed.is_err(), "it is mounted");
        assert_eq!(std::fs::metadata(volume.join("data")).expect("kept").len(), 1 << 20);
        remove(&pod).expect("removed");
    }

    #[test]
    fn trees_of_any_depth_are_walked_and_removed() {
        // Paths end at some two thousand.
        const DEPTH: usize = 3_000;
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path().join("deep");
        std::fs::create_dir(&root).expect("made");
        std::fs::create_dir(directory.path().join("host")).expect("made");
        std::fs::write(directory.path().join("host/file"), "host").expect("written");
        let mut current = nix::fcntl::open(&root, DIRECTORY, Mode::empty()).expect("opened");
        nix::unistd::symlinkat(directory.path().join("host").as_path(), &current, "link").expect("made");
        for _ in 0..DEPTH {
            nix::sys::stat::mkdirat(&current, "d", Mode::S_IRWXU).expect("made");
            current = nix::fcntl::openat(&current, "d", DIRECTORY, Mode::empty()).expect("opened");
        }
        let mut count = Count::default();
        let walked = walk(&root, &mut count);
        let usage = crate::filesystem::directory_usage(&root).1;
        let removed = remove(&root);
        assert!(walked.is_ok() && removed.is_ok(), "{walked:?} {removed:?}");
        assert_eq!(count.0, DEPTH + 1);
        assert_eq!(usage, DEPTH as u64 + 2, "nothing is hidden from limits by its depth");
        assert!(!root.exists());
        assert_eq!(std::fs::read_to_string(directory.path().join("host/file")).expect("kept"), "host");
        remove(&root).expect("nothing is left to do");
    }
}
