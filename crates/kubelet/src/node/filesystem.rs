//! How full a file system is.

use std::path::Path;

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

/// Bytes and files below a folder, without what is mounted below it.
pub fn folder_usage(folder: &Path) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    let Ok(root) = std::fs::symlink_metadata(folder) else { return (0, 0) };
    let mut sum = (root.blocks() * 512, 1);
    let mut open = vec![folder.to_path_buf()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(next).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.dev() != root.dev() {
                continue;
            }
            sum.0 += metadata.blocks() * 512;
            sum.1 += 1;
            if metadata.is_dir() {
                open.push(entry.path());
            }
        }
    }
    sum
}
