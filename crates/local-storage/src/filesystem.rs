//! The programs that create and grow filesystems.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use crate::error::Error;

/// The filesystems whose programs are installed.
pub fn installed() -> Vec<String> {
    let programs = [("ext4", &["mkfs.ext4", "resize2fs", "e2fsck"][..]), ("xfs", &["mkfs.xfs", "xfs_growfs"][..])];
    let complete = programs.iter().filter(|(_, needed)| needed.iter().all(|program| is_installed(program)));
    complete.map(|(name, _)| (*name).to_string()).collect()
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(Into::into);
    std::env::split_paths(&path).chain(usual).any(|directory| directory.join(program).is_file())
}

/// Creates a filesystem in an image.
pub fn create(fs_type: &str, image: &Path) -> Result<(), Error> {
    match fs_type {
        // No blocks are reserved for root: the user asked for all of them. The image is a hole, there is nothing to discard.
        "ext4" => run("mkfs.ext4", ["-q", "-F", "-m", "0", "-E", "nodiscard"], image),
        "xfs" => run("mkfs.xfs", ["-q", "-f", "-K"], image),
        other => Err(Error::Invalid(format!("the filesystem {other} is not supported"))),
    }
}

/// Grows a mounted filesystem to the size of its device; does nothing if it has that size. Containers without
/// `CAP_SYS_RESOURCE` may not: that is [`Error::Precondition`].
pub fn grow_mounted(fs_type: &str, device: &Path, mounted: &Path) -> Result<(), Error> {
    match fs_type {
        "ext4" => run("resize2fs", [] as [&str; 0], device).map_err(not_permitted),
        "xfs" => run("xfs_growfs", [] as [&str; 0], mounted),
        other => Err(Error::Invalid(format!("the filesystem {other} cannot grow"))),
    }
}

fn not_permitted(error: Error) -> Error {
    match error {
        Error::Program { message, .. } if message.contains("Permission denied to resize") => Error::Precondition(
            "a mounted filesystem cannot grow here, as the driver lacks CAP_SYS_RESOURCE; it grows when it is mounted next".into(),
        ),
        other => other,
    }
}

/// Grows a filesystem that is not mounted, in an image or on a device. `false` when that is possible only while it is
/// mounted.
pub fn grow_unmounted(fs_type: &str, image: &Path) -> Result<bool, Error> {
    if fs_type != "ext4" {
        return Ok(false);
    }
    // resize2fs wants to see that it was checked.
    run("e2fsck", ["-f", "-p"], image)?;
    run("resize2fs", [] as [&str; 0], image)?;
    Ok(true)
}

/// Runs a program on a path. Services may have a `PATH` without the directories of system programs.
pub fn run<A: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = A>, path: &Path) -> Result<(), Error> {
    let mut search = std::env::var_os("PATH").unwrap_or_default();
    search.push(":/usr/sbin:/sbin:/usr/bin:/bin");
    let output = Command::new(program).args(arguments).arg(path).env("PATH", search).output();
    let output = output.map_err(|error| Error::Program { program: program.into(), message: error.to_string() })?;
    // e2fsck has corrected something.
    let corrected = program == "e2fsck" && output.status.code() == Some(1);
    if output.status.success() || corrected {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_string();
    if message.contains("No space left on device") {
        return Err(Error::Exhausted(format!("{program}: {message}")));
    }
    Err(Error::Program { program: program.into(), message })
}
