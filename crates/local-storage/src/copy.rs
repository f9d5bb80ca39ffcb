//! Copies of images and directories: sharing blocks where the filesystem can, else only the data that is there.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use nix::unistd::Whence;

use crate::error::Error;
use crate::filesystem;

const FICLONE: libc::c_ulong = 0x4004_9409;
const BUFFER: usize = 1 << 20;

/// How an image was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// In one moment, sharing blocks.
    Reflink,
    /// Byte by byte.
    Data,
}

/// Copies an image to a new file.
pub fn image(from: &Path, to: &Path) -> Result<Copied, Error> {
    match reflink(from, to)? {
        true => Ok(Copied::Reflink),
        false => data(from, to).map(|()| Copied::Data),
    }
}

/// Tries to share the blocks; `false` when the filesystem cannot.
pub fn reflink(from: &Path, to: &Path) -> Result<bool, Error> {
    let source = File::open(from).map_err(Error::file("open", from))?;
    let target = File::create(to).map_err(Error::file("create", to))?;
    // SAFETY: the argument is a descriptor that is open for the duration of the call.
    let result = unsafe { libc::ioctl(target.as_raw_fd(), FICLONE as _, source.as_raw_fd()) };
    if result >= 0 {
        target.sync_all().map_err(Error::file("sync", to))?;
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL | libc::EXDEV | libc::ENOSYS) => Ok(false),
        _ => Err(Error::file("clone", from)(error)),
    }
}

fn data(from: &Path, to: &Path) -> Result<(), Error> {
    let source = File::open(from).map_err(Error::file("open", from))?;
    let target = File::create(to).map_err(Error::file("create", to))?;
    sparse(&source, &target).and_then(|()| target.sync_all()).map_err(Error::file("copy", from))
}

/// Copies the data and leaves the holes.
fn sparse(source: &File, target: &File) -> io::Result<()> {
    let size = source.metadata()?.len();
    target.set_len(size)?;
    let mut buffer = vec![0; BUFFER];
    let mut position = 0;
    while let Some(start) = seek(source, position, Whence::SeekData)? {
        let end = seek(source, start, Whence::SeekHole)?.unwrap_or(size);
        position = start;
        while position < end {
            let length = usize::try_from(end - position).unwrap_or(BUFFER).min(BUFFER);
            let read = source.read_at(&mut buffer[..length], position)?;
            if read == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter"));
            }
            target.write_all_at(&buffer[..read], position)?;
            position += read as u64;
        }
    }
    Ok(())
}

/// `None` behind the last data.
fn seek(file: &File, from: u64, whence: Whence) -> io::Result<Option<u64>> {
    let offset = i64::try_from(from).map_err(io::Error::other)?;
    match nix::unistd::lseek64(file, offset, whence) {
        Ok(found) => u64::try_from(found).map(Some).map_err(io::Error::other),
        Err(nix::errno::Errno::ENXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Copies a directory that nobody uses: owners, modes, links and extended attributes included.
pub fn directory(from: &Path, to: &Path) -> Result<(), Error> {
    let arguments = ["-a", "--reflink=auto", "--one-file-system", "-T", "--"].map(std::ffi::OsString::from);
    let arguments = arguments.into_iter().chain([from.as_os_str().to_os_string()]);
    filesystem::run("cp", arguments, to)?;
    let open = File::open(to).map_err(Error::file("open", to))?;
    // SAFETY: the descriptor is open.
    let result = unsafe { libc::syncfs(open.as_raw_fd()) };
    if result < 0 { Err(Error::file("sync", to)(io::Error::last_os_error())) } else { Ok(()) }
}

/// The bytes that an image takes on disk.
pub fn allocated(image: &Path) -> Result<u64, Error> {
    Ok(fs::metadata(image).map_err(Error::file("read", image))?.blocks() * 512)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_data_and_the_holes() {
        let directory = tempfile::tempdir().expect("a directory");
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        let file = File::create(&from).expect("a file");
        file.set_len(64 << 20).expect("a hole");
        file.write_all_at(b"start", 0).expect("data");
        file.write_all_at(&[7; 3 << 20], 20 << 20).expect("more data than the buffer");
        file.write_all_at(b"end", (64 << 20) - 3).expect("data at the end");
        file.sync_all().expect("synced");
        image(&from, &to).expect("copies");
        assert!(fs::read(&from).expect("the source") == fs::read(&to).expect("the copy"));
        assert!(allocated(&to).expect("its blocks") < 8 << 20);
    }
}
