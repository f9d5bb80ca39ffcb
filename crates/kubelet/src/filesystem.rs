//! Usage of file systems and directory trees.

use std::fs::{DirEntry, Metadata};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::tree;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesystemUsage {
    pub capacity: u64,
    pub available: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// None where there is no such path.
pub fn usage_of(path: &Path) -> Option<FilesystemUsage> {
    let found = nix::sys::statvfs::statvfs(path).ok()?;
    let block = found.fragment_size();
    Some(FilesystemUsage {
        capacity: found.blocks() * block,
        available: found.blocks_available() * block,
        inodes: found.files(),
        inodes_free: found.files_available(),
    })
}

/// Bytes and files of a directory tree, without other file systems mounted in it. Concurrent changes may be missed. A pod
/// decides how many files it has, so other tasks of this thread do not wait.
pub fn directory_usage(directory: &Path) -> (u64, u64) {
    crate::blocking::in_place(|| measure(directory))
}

fn measure(directory: &Path) -> (u64, u64) {
    let Ok(root) = std::fs::symlink_metadata(directory) else { return (0, 0) };
    let mut sum = Sum { bytes: root.blocks() * 512, files: 1 };
    if root.is_dir()
        && let Err(error) = tree::walk(directory, &mut sum)
    {
        tracing::debug!(%error, directory = %directory.display(), "cannot measure all of a directory");
    }
    (sum.bytes, sum.files)
}

struct Sum {
    bytes: u64,
    files: u64,
}

impl tree::Visitor for Sum {
    fn enter(&mut self, _directory: &OwnedFd, _entry: &DirEntry, metadata: &Metadata) -> std::io::Result<()> {
        self.bytes += metadata.blocks() * 512;
        self.files += 1;
        Ok(())
    }

    /// A pod that moves directories about must not look smaller than others, which would be evicted in its place.
    fn tolerates_moves(&self) -> bool {
        true
    }
}
