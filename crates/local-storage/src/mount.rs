//! Mounting and unmounting.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags};

use crate::error::Error;
use crate::mount_table;

/// Mount options: flags of the system call, and the rest for the filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub flags: MsFlags,
    pub data: String,
}

/// Splits `mountOptions` as mount(8) does.
pub fn options(names: &[String]) -> Result<Options, Error> {
    let (mut flags, mut data) = (MsFlags::empty(), Vec::new());
    for name in names.iter().flat_map(|names| names.split(',')).filter(|name| !name.is_empty()) {
        match flag(name) {
            Some((bits, true)) => flags.insert(bits),
            Some((bits, false)) => flags.remove(bits),
            // A bind or move would mount something else than the volume.
            None if ["bind", "rbind", "move", "remount", "loop"].contains(&name) || name.starts_with("loop=") => {
                return Err(Error::Invalid(format!("the mount option {name} is not allowed")));
            }
            None => data.push(name),
        }
    }
    Ok(Options { flags, data: data.join(",") })
}

fn flag(name: &str) -> Option<(MsFlags, bool)> {
    Some(match name {
        "ro" => (MsFlags::MS_RDONLY, true),
        "rw" => (MsFlags::MS_RDONLY, false),
        "nosuid" => (MsFlags::MS_NOSUID, true),
        "suid" => (MsFlags::MS_NOSUID, false),
        "nodev" => (MsFlags::MS_NODEV, true),
        "dev" => (MsFlags::MS_NODEV, false),
        "noexec" => (MsFlags::MS_NOEXEC, true),
        "exec" => (MsFlags::MS_NOEXEC, false),
        "sync" => (MsFlags::MS_SYNCHRONOUS, true),
        "async" => (MsFlags::MS_SYNCHRONOUS, false),
        "dirsync" => (MsFlags::MS_DIRSYNC, true),
        "noatime" => (MsFlags::MS_NOATIME, true),
        "atime" => (MsFlags::MS_NOATIME, false),
        "nodiratime" => (MsFlags::MS_NODIRATIME, true),
        "diratime" => (MsFlags::MS_NODIRATIME, false),
        "relatime" => (MsFlags::MS_RELATIME, true),
        "norelatime" => (MsFlags::MS_RELATIME, false),
        "strictatime" => (MsFlags::MS_STRICTATIME, true),
        "nostrictatime" => (MsFlags::MS_STRICTATIME, false),
        "lazytime" => (MsFlags::MS_LAZYTIME, true),
        "nolazytime" => (MsFlags::MS_LAZYTIME, false),
        "defaults" => (MsFlags::empty(), true),
        _ => return None,
    })
}

/// Mounts a device.
pub fn device(device: &Path, fs_type: &str, target: &Path, options: &Options) -> Result<(), Error> {
    let data = (!options.data.is_empty()).then_some(options.data.as_str());
    match nix::mount::mount(Some(device), target, Some(fs_type), options.flags, data) {
        Err(Errno::EINVAL) => Err(Error::Invalid(format!(
            "cannot mount {} as {fs_type}: the filesystem does not accept the mount options {:?}",
            device.display(),
            options.data
        ))),
        mounted => mounted.map_err(Error::system("mount at", target)),
    }
}

/// Mounts a directory or file at another place, with the flags that a single mount can have.
pub fn bind(source: &Path, target: &Path, flags: MsFlags) -> Result<(), Error> {
    nix::mount::mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(Error::system("bind to", target))?;
    // The flags of a bind mount are ignored until it is remounted.
    if !flags.is_empty() {
        let flags = flags | MsFlags::MS_BIND | MsFlags::MS_REMOUNT;
        let remounted = nix::mount::mount(None::<&str>, target, None::<&str>, flags, None::<&str>);
        if let Err(error) = remounted.map_err(Error::system("restrict the mount at", target)) {
            unmount(target)?;
            return Err(error);
        }
    }
    Ok(())
}

/// Unmounts everything at a path; succeeds when nothing is mounted or the path does not exist.
pub fn unmount(target: &Path) -> Result<(), Error> {
    while mount_table::at(&mount_table::read()?, target).is_some() {
        match nix::mount::umount2(target, MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(Errno::EBUSY) => {
                return Err(Error::Precondition(format!("{} is in use and cannot be unmounted", target.display())));
            }
            Err(errno) => return Err(Error::system("unmount", target)(errno)),
        }
    }
    Ok(())
}

/// Creates the directory to mount at.
pub fn create_directory(target: &Path) -> Result<(), Error> {
    DirBuilder::new().recursive(true).mode(0o750).create(target).map_err(Error::file("create", target))
}

/// Creates the file to mount a device at.
pub fn create_file(target: &Path) -> Result<(), Error> {
    if let Some(parent) = target.parent() {
        create_directory(parent)?;
    }
    match File::options().write(true).create_new(true).open(target) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && target.is_file() => Ok(()),
        created => created.map(drop).map_err(Error::file("create", target)),
    }
}

/// Removes the directory or file that was mounted at. Never what is in it: that would be data.
pub fn remove_target(target: &Path) -> Result<(), Error> {
    let removed = match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() => fs::remove_dir(target),
        Ok(_) => fs::remove_file(target),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(Error::file("remove", target)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_split_into_flags_and_data() {
        let split = |names: &[&str]| options(&names.iter().map(|name| (*name).to_string()).collect::<Vec<_>>());
        let found = split(&["noatime", "nodev,rw,data=journal", "ro", "commit=30"]).expect("options");
        assert_eq!(found.flags, MsFlags::MS_NOATIME | MsFlags::MS_NODEV | MsFlags::MS_RDONLY);
        assert_eq!(found.data, "data=journal,commit=30");
        assert_eq!(split(&["ro", "rw"]).expect("options").flags, MsFlags::empty());
        for option in ["bind", "rbind", "move", "remount", "loop", "loop=/dev/loop0"] {
            assert!(matches!(split(&[option]), Err(Error::Invalid(_))), "{option}");
        }
    }
}
