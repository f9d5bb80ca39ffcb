//! An in-memory disk for tests: it fails on demand, and loses unsynced data when its power is cut.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rand::Rng;

use super::disk::{Disk, DiskFile};
use super::{Embedded, Options};
use crate::contract::Error;

const SECTOR: usize = 512;

/// What a planned fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Append,
    Sync,
    Truncate,
    Rename,
    Remove,
    SyncDirectory,
}

/// The `nth` operation of a kind from now on (counted from 0) fails with the operating system's error `code`; an append
/// has written `written` bytes by then.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub operation: Operation,
    pub nth: usize,
    pub code: i32,
    pub written: usize,
}

/// A disk in memory that fails as a test plans it. Clones share its content.
#[derive(Clone, Default)]
pub struct FakeDisk(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    files: HashMap<u64, FileData>,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    locked: HashSet<PathBuf>,
    faults: Vec<Fault>,
    /// Syncs wait while this is set.
    syncs_held: bool,
    released: Arc<Condvar>,
    /// How many operations are left before the power is cut.
    power_left: Option<usize>,
}

#[derive(Clone, Default)]
struct FileData {
    content: Vec<u8>,
    durable: Vec<u8>,
}

impl FakeDisk {
    /// Lets an operation fail.
    pub fn plan(&self, fault: Fault) {
        self.0.lock().faults.push(fault);
    }

    /// Keeps syncs waiting until they are released.
    pub fn hold_syncs(&self) {
        self.0.lock().syncs_held = true;
    }

    /// Lets waiting syncs continue.
    pub fn release_syncs(&self) {
        let mut inner = self.0.lock();
        inner.syncs_held = false;
        inner.released.notify_all();
    }

    fn await_release(&self) {
        let mut inner = self.0.lock();
        let released = inner.released.clone();
        released.wait_while(&mut inner, |inner| inner.syncs_held);
    }

    /// Cuts the power after this many operations.
    pub fn cut_power_after(&self, operations: usize) {
        self.0.lock().power_left = Some(operations);
    }

    /// What a running process reads from a file.
    pub fn content(&self, path: &Path) -> Vec<u8> {
        let inner = self.0.lock();
        inner.names.get(path).map(|id| inner.files[id].content.clone()).unwrap_or_default()
    }

    /// A copy of the disk with its power on and no locks.
    pub fn copy(&self) -> Self {
        let inner = self.0.lock();
        Self(Arc::new(Mutex::new(Inner {
            files: inner.files.clone(),
            names: inner.names.clone(),
            durable_names: inner.durable_names.clone(),
            ..Inner::default()
        })))
    }

    /// A copy of the disk with other bytes in one file, all of them durable.
    pub fn with(&self, path: &Path, content: Vec<u8>) -> Self {
        let copy = self.copy();
        {
            let mut inner = copy.0.lock();
            let id = inner.names[path];
            inner.files.insert(id, FileData { durable: content.clone(), content });
        }
        copy
    }

    /// A possible state after a power loss: all synced data, and any subset of the rest.
    pub fn after_power_loss(&self, random: &mut impl Rng) -> Self {
        let inner = self.0.lock();
        let mut names = BTreeMap::new();
        for path in inner.names.keys().chain(inner.durable_names.keys()) {
            let source = if random.random() { &inner.names } else { &inner.durable_names };
            if !names.contains_key(path)
                && let Some(id) = source.get(path)
            {
                names.insert(path.clone(), *id);
            }
        }
        let files = inner.files.iter().map(|(id, file)| (*id, file.after_power_loss(random))).collect();
        Self(Arc::new(Mutex::new(Inner { files, durable_names: names.clone(), names, ..Inner::default() })))
    }
}

impl FileData {
    fn after_power_loss(&self, random: &mut impl Rng) -> Self {
        let start = self.durable.len();
        let left = if self.content.len() <= start || random.random_bool(0.3) {
            self.durable.clone()
        } else {
            let mut left = self.content.clone();
            if random.random() {
                left.truncate(random.random_range(start..=left.len()));
            } else {
                lose_sectors(&mut left, start, random);
            }
            left
        };
        Self { content: left.clone(), durable: left }
    }
}

/// Zeroes at least one of the sectors after the synced data.
fn lose_sectors(content: &mut [u8], durable: usize, random: &mut impl Rng) {
    let first = durable / SECTOR;
    let sectors = content.len().div_ceil(SECTOR) - first;
    let certain = random.random_range(0..sectors);
    for sector in 0..sectors {
        if sector == certain || random.random_bool(0.3) {
            let start = ((first + sector) * SECTOR).max(durable);
            let end = ((first + sector + 1) * SECTOR).min(content.len());
            content[start..end].fill(0);
        }
    }
}

impl Inner {
    /// Lets an operation pass or fail; for a failing append also returns how many bytes are written.
    fn strike(&mut self, operation: Operation) -> Result<(), (usize, io::Error)> {
        if let Some(left) = &mut self.power_left {
            *left = left.checked_sub(1).ok_or_else(|| (0, io::Error::other("the power is off")))?;
        }
        let mut struck = None;
        self.faults.retain_mut(|fault| {
            if fault.operation != operation {
                return true;
            }
            if fault.nth == 0 {
                struck = Some((fault.written, io::Error::from_raw_os_error(fault.code)));
                return false;
            }
            fault.nth -= 1;
            true
        });
        struck.map_or(Ok(()), Err)
    }

    fn pass(&mut self, operation: Operation) -> io::Result<()> {
        self.strike(operation).map_err(|(_, error)| error)
    }

    fn id(&self, path: &Path) -> io::Result<u64> {
        self.names.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for FakeDisk {
    fn make_directory(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let inner = self.0.lock();
        let inside = inner.names.keys().filter(|path| path.parent() == Some(directory));
        Ok(inside.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }

    fn read(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        let inner = self.0.lock();
        Ok(Box::new(Cursor::new(inner.files[&inner.id(path)?].content.clone())))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut inner = self.0.lock();
        inner.pass(Operation::Create)?;
        let id = inner.files.len() as u64;
        inner.files.insert(id, FileData::default());
        inner.names.insert(path.to_owned(), id);
        Ok(Box::new(FakeFile { disk: self.clone(), id }))
    }

    fn append(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let id = self.0.lock().id(path)?;
        Ok(Box::new(FakeFile { disk: self.clone(), id }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut inner = self.0.lock();
        inner.pass(Operation::Rename)?;
        let id = inner.id(from)?;
        inner.names.remove(from);
        inner.names.insert(to.to_owned(), id);
        Ok(())
    }

    fn allocate(&self, path: &Path, _bytes: u64) -> io::Result<()> {
        self.create(path).map(drop)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.0.lock();
        inner.pass(Operation::Remove)?;
        inner.id(path)?;
        inner.names.remove(path);
        Ok(())
    }

    fn sync_directory(&self, _directory: &Path) -> io::Result<()> {
        let mut inner = self.0.lock();
        inner.pass(Operation::SyncDirectory)?;
        inner.durable_names = inner.names.clone();
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        if !self.0.lock().locked.insert(path.to_owned()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(FakeLock { disk: self.clone(), path: path.to_owned() }))
    }
}

struct FakeLock {
    disk: FakeDisk,
    path: PathBuf,
}

impl Drop for FakeLock {
    fn drop(&mut self) {
        self.disk.0.lock().locked.remove(&self.path);
    }
}

struct FakeFile {
    disk: FakeDisk,
    id: u64,
}

impl FakeFile {
    fn change<T>(&self, change: impl FnOnce(&mut Inner, u64) -> T) -> T {
        change(&mut self.disk.0.lock(), self.id)
    }
}

impl DiskFile for FakeFile {
    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        self.change(|inner, id| {
            let (written, outcome) = match inner.strike(Operation::Append) {
                Ok(()) => (data.len(), Ok(())),
                Err((written, error)) => (written.min(data.len()), Err(error)),
            };
            inner.files.entry(id).or_default().content.extend_from_slice(&data[..written]);
            outcome
        })
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.await_release();
        self.change(|inner, id| {
            inner.pass(Operation::Sync)?;
            let file = inner.files.entry(id).or_default();
            file.durable.clone_from(&file.content);
            Ok(())
        })
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.change(|inner, id| {
            inner.pass(Operation::Truncate)?;
            inner.files.entry(id).or_default().content.truncate(length as usize);
            Ok(())
        })
    }
}

/// The error of a full disk.
pub const ENOSPC: i32 = 28;
/// The error of a broken disk.
pub const EIO: i32 = 5;

/// The directory of the store on a fake disk.
pub fn directory() -> &'static Path {
    Path::new("/store")
}

/// A store on a fake disk.
pub fn open(disk: &FakeDisk, segment_bytes: u64) -> Result<Embedded, Error> {
    Embedded::open(directory(), Options { segment_bytes, disk: Arc::new(disk.clone()), ..Options::default() })
}
