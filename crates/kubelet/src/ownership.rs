//! Sets the group ownership of a volume (`fsGroup`).
//!
//! Other pods may use the volume at the same time: files are changed through their descriptors, so that no link to a
//! file of the host can be put in their place.

use std::fs::{DirEntry, Metadata, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::Mode;
use nix::unistd::Gid;

use crate::mount::MountError;
use crate::{beneath, tree};

/// The group may read and write everything, and new files inherit it. Unless `always`, a correct root means that the
/// rest is correct.
pub fn apply_group(root: &Path, group: i64, always: bool) -> Result<(), MountError> {
    let Ok(group) = u32::try_from(group) else { return Ok(()) };
    let metadata = std::fs::symlink_metadata(root).map_err(MountError::file(root))?;
    if !always && metadata.gid() == group && has_mode(&metadata, group_mode(&metadata)) {
        return Ok(());
    }
    if metadata.is_dir() {
        tree::walk(root, &mut GroupOwnership(group)).map_err(MountError::file(root))?;
    }
    // The root comes last, as it marks that the rest is done.
    let opened = nix::fcntl::open(root, REFERENCE, Mode::empty()).map_err(io::Error::from);
    opened.and_then(|opened| set_group(&opened, group)).map_err(MountError::file(root))
}

const REFERENCE: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

struct GroupOwnership(u32);

impl tree::Visitor for GroupOwnership {
    fn enter(&mut self, directory: &OwnedFd, entry: &DirEntry, _metadata: &Metadata) -> io::Result<()> {
        match nix::fcntl::openat(directory, entry.file_name().as_os_str(), REFERENCE, Mode::empty()) {
            Ok(opened) => set_group(&opened, self.0),
            Err(nix::Error::ENOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn set_group(opened: &OwnedFd, group: u32) -> io::Result<()> {
    let metadata = beneath::metadata(opened)?;
    nix::unistd::fchownat(opened, "", None, Some(Gid::from_raw(group)), AtFlags::AT_EMPTY_PATH)?;
    if metadata.is_symlink() {
        return Ok(());
    }
    std::fs::set_permissions(beneath::link_to(opened), Permissions::from_mode(group_mode(&metadata)))
}

fn group_mode(metadata: &Metadata) -> u32 {
    let mode = metadata.permissions().mode() & 0o7777;
    if metadata.is_dir() { mode | 0o2770 } else { mode | 0o660 }
}

fn has_mode(metadata: &Metadata, mode: u32) -> bool {
    metadata.permissions().mode() & 0o7777 == mode
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn the_group_gets_all_but_what_links_lead_to() {
        let directory = tempfile::tempdir().expect("a directory");
        let (volume, host) = (directory.path().join("v"), directory.path().join("host"));
        std::fs::create_dir_all(volume.join("d")).expect("made");
        std::fs::write(volume.join("d/f"), "").expect("written");
        std::fs::write(&host, "").expect("written");
        let set = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
        set(&volume.join("d/f"), 0o600);
        set(&host, 0o600);
        std::os::unix::fs::symlink(&host, volume.join("d/link")).expect("made");
        apply_group(&volume, 4242, true).expect("given");
        let group_and_mode = |path: &Path| {
            let metadata = std::fs::symlink_metadata(path).expect("there");
            (metadata.gid(), metadata.permissions().mode() & 0o7777)
        };
        assert_eq!(group_and_mode(&volume.join("d/f")), (4242, 0o660));
        assert_eq!(group_and_mode(&volume.join("d")).0, 4242);
        assert_eq!(group_and_mode(&volume).1 & 0o2770, 0o2770);
        assert_eq!(group_and_mode(&volume.join("d/link")).0, 4242);
        assert_eq!(group_and_mode(&host).1, 0o600);
    }

    #[test]
    fn a_file_swapped_for_a_link_changes_nothing_outside() {
        let directory = tempfile::tempdir().expect("a directory");
        let (volume, host) = (directory.path().join("v"), directory.path().join("host"));
        std::fs::create_dir(&volume).expect("made");
        std::fs::write(&host, "").expect("written");
        std::fs::set_permissions(&host, Permissions::from_mode(0o600)).expect("set");
        std::fs::write(volume.join("file"), "").expect("written");
        std::os::unix::fs::symlink(&host, volume.join("link")).expect("made");
        let stop = AtomicBool::new(false);
        let harmed = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (here, exchange) = (nix::fcntl::AT_FDCWD, nix::fcntl::RenameFlags::RENAME_EXCHANGE);
                while !stop.load(Ordering::Relaxed) {
                    let _ = nix::fcntl::renameat2(here, &volume.join("file"), here, &volume.join("link"), exchange);
                }
            });
            let harmed = (0..20_000).find(|_| {
                // Whether it fails does not matter here.
                let _ = apply_group(&volume, 4242, true);
                let metadata = std::fs::metadata(&host).expect("there");
                metadata.permissions().mode() & 0o7777 != 0o600 || metadata.gid() == 4242
            });
            stop.store(true, Ordering::Relaxed);
            harmed
        });
        assert_eq!(harmed, None, "the round that reached outside");
    }
}
