//! The host's file system without waiting for it: for stores of tests, which nobody needs after a loss of power.

use std::io::{self, Read};
use std::path::Path;

use super::disk::{Disk, DiskFile, RealDisk};

/// A file system on which nothing is made durable. A process that is killed loses nothing; a host that loses power may
/// lose everything, in any order.
#[derive(Default)]
pub struct UnsyncedDisk {
    _private: (),
}

impl Disk for UnsyncedDisk {
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        RealDisk.make_directory(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(directory)
    }

    fn read(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        RealDisk.read(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(UnsyncedFile(RealDisk.create(path)?)))
    }

    fn append(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(UnsyncedFile(RealDisk.append(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn allocate(&self, path: &Path, bytes: u64) -> io::Result<()> {
        RealDisk.allocate(path, bytes)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn sync_directory(&self, _directory: &Path) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        RealDisk.lock(path)
    }
}

struct UnsyncedFile(Box<dyn DiskFile>);

impl DiskFile for UnsyncedFile {
    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        self.0.append(data)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.0.truncate(length)
    }
}
