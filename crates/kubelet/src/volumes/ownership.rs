//! Giving a volume to the pod's group.

use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

use super::VolumeError;

/// The group may read and write all, may enter folders, and new files inherit it. Unless `always`, a root that is right
/// already says that the rest is.
pub fn give_to_group(root: &Path, group: i64, always: bool) -> Result<(), VolumeError> {
    let Ok(group) = u32::try_from(group) else { return Ok(()) };
    let metadata = std::fs::symlink_metadata(root).map_err(VolumeError::file(root))?;
    if !always && metadata.gid() == group && has_mode(&metadata, wanted_mode(&metadata)) {
        return Ok(());
    }
    give(root, group)
}

fn give(path: &Path, group: u32) -> Result<(), VolumeError> {
    let metadata = std::fs::symlink_metadata(path).map_err(VolumeError::file(path))?;
    if metadata.is_dir() {
        for entry in std::fs::read_dir(path).map_err(VolumeError::file(path))? {
            give(&entry.map_err(VolumeError::file(path))?.path(), group)?;
        }
    }
    lchown(path, None, Some(group)).map_err(VolumeError::file(path))?;
    if metadata.is_symlink() {
        return Ok(());
    }
    let mode = wanted_mode(&metadata);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(VolumeError::file(path))
}

fn wanted_mode(metadata: &Metadata) -> u32 {
    let mode = metadata.permissions().mode() & 0o7777;
    if metadata.is_dir() { mode | 0o2770 } else { mode | 0o660 }
}

fn has_mode(metadata: &Metadata, mode: u32) -> bool {
    metadata.permissions().mode() & 0o7777 == mode
}
