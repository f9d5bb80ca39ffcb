//! The file operations that the embedded store uses, as a trait so that tests can simulate a failing disk.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// A file system.
pub trait Disk: Send + Sync + 'static {
    /// Creates a directory and its parents for this user only, durable when this returns; it may exist.
    fn make_directory(&self, path: &Path) -> io::Result<()>;
    /// The names of the files in a directory.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
    /// Opens a file for reading from its beginning.
    fn read(&self, path: &Path) -> io::Result<Box<dyn Read + Send>>;
    /// Creates an empty file for this user only; an existing file is truncated.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a file for appending.
    fn append(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Renames a file, replacing an existing one.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Allocates space for a file of this size for this user only; it may exist already.
    fn allocate(&self, path: &Path, bytes: u64) -> io::Result<()>;
    /// Deletes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the creations, renames and removals in a directory durable.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
    /// Locks a file exclusively until the result is dropped; `WouldBlock` when another process holds it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>>;
}

/// A file open for appending.
pub trait DiskFile: Send {
    /// Appends data. After an error, any prefix of it may have been written.
    fn append(&mut self, data: &[u8]) -> io::Result<()>;
    /// Makes the appended data durable.
    fn sync(&mut self) -> io::Result<()>;
    /// Truncates the file to `length` bytes.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
}

/// The host's file system.
pub struct RealDisk;

impl Disk for RealDisk {
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        self.make_directory(parent)?;
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            // Losing the directory's name in a crash would lose all its contents.
            _ => self.sync_directory(parent),
        }
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn read(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(File::open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        Ok(Box::new(RealFile(file)))
    }

    fn append(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut file = OpenOptions::new().write(true).open(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Box::new(RealFile(file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn allocate(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let size = bytes.try_into().map_err(io::Error::other)?;
        nix::fcntl::posix_fallocate(&file, 0, size)?;
        file.sync_all()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        file.try_lock()?;
        Ok(Box::new(file))
    }
}

struct RealFile(File);

impl DiskFile for RealFile {
    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        self.0.write_all(data)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.0.set_len(length)?;
        self.0.seek(SeekFrom::Start(length)).map(|_| ())
    }
}

/// Whether an error means that there is no space left, for this user or for all.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// An I/O error with the step that failed and its file.
pub(super) fn describe(step: &str, path: &Path, error: &io::Error) -> String {
    let remedy = if is_full(error) { "; free space on that disk" } else { "" };
    format!("{step} {}: {error}{remedy}", path.display())
}
