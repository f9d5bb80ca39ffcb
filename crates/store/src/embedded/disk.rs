//! The file operations the embedded store is built on, so that tests can stand in for a failing disk.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

pub trait Disk: Send + Sync + 'static {
    /// Makes a directory for this user only, and those it is in, durable when this returns; it may be there already.
    fn make_directory(&self, path: &Path) -> io::Result<()>;
    /// The names of the files in a directory.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
    /// Opens a file for reading from its beginning.
    fn read(&self, path: &Path) -> io::Result<Box<dyn Read + Send>>;
    /// Makes a new, empty file for this user only; a file of that name is emptied.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a file for appending.
    fn append(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes what was created, renamed and removed in a directory durable.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
    /// Takes a file for this process alone for as long as the answer lives; `WouldBlock` when another has it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>>;
}

pub trait DiskFile: Send {
    /// Writes at the end. After an error, any part of the data may be there.
    fn append(&mut self, data: &[u8]) -> io::Result<()>;
    /// Makes what was appended durable.
    fn sync(&mut self) -> io::Result<()>;
    /// Cuts the file to `length` bytes.
    fn cut(&mut self, length: u64) -> io::Result<()>;
}

/// The disk of the machine.
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
            // A directory whose name is lost takes all that is in it along.
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

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.0.set_len(length)?;
        self.0.seek(SeekFrom::Start(length)).map(|_| ())
    }
}

/// An error of the disk with the file it was about and what was to be done.
pub(super) fn describe(step: &str, path: &Path, error: &io::Error) -> String {
    let remedy = if error.kind() == io::ErrorKind::StorageFull { "; make room on that disk" } else { "" };
    format!("{step} {}: {error}{remedy}", path.display())
}
