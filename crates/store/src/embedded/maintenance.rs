//! Maintenance of a store that no process uses: check, repair and compaction.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::checkpoint::{remove_replaced, save_image};
use super::disk::{Disk, RealDisk, describe};
use super::log::{LOCK_NAME, UNFINISHED, named_revision};
use super::replay::{Replayed, replay, replay_undamaged};
use crate::contract::{Error, Range, Revision};

/// What is in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    pub revision: Revision,
    pub entries: usize,
    /// The size of its files.
    pub disk_bytes: u64,
    /// The size of the current entries.
    pub data_bytes: u64,
    /// Whether an incomplete write at the end of the log will be dropped when the store is opened; it was never
    /// acknowledged.
    pub torn: bool,
}

/// A directory that no other process uses.
struct Exclusive<'a> {
    disk: Arc<dyn Disk>,
    directory: &'a Path,
    _lock: Box<dyn Send + Sync>,
}

impl<'a> Exclusive<'a> {
    fn open(directory: &'a Path) -> Result<Self, Error> {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        if !directory.join(LOCK_NAME).exists() {
            return Err(Error::Open(format!("there is no store in {}", directory.display())));
        }
        let lock = disk.lock(&directory.join(LOCK_NAME)).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => {
                Error::Open(format!("{} is in use by another process: stop the server first", directory.display()))
            }
            _ => Error::Open(describe("locking", directory, &error)),
        })?;
        Ok(Self { disk, directory, _lock: lock })
    }

    fn names(&self) -> Result<Vec<String>, Error> {
        self.disk.list(self.directory).map_err(|error| Error::Open(describe("listing", self.directory, &error)))
    }

    fn report(&self, replayed: &Replayed) -> Result<CheckReport, Error> {
        // Without the reserve, which holds no data.
        let has_data = |name: &&String| named_revision(name, "log").or(named_revision(name, "image")).is_some();
        let size = |name: &String| std::fs::metadata(self.directory.join(name)).map_or(0, |file| file.len());
        Ok(CheckReport {
            revision: replayed.index.revision(),
            entries: replayed.index.range(&Range::default())?.entries.len(),
            disk_bytes: self.names()?.iter().filter(has_data).map(size).sum(),
            data_bytes: replayed.index.current_bytes() as u64,
            torn: replayed.tail.as_ref().is_some_and(|tail| tail.torn),
        })
    }

    /// Replaces all files by an image of the newest state.
    fn rewrite(&self, replayed: &Replayed) -> Result<(), Error> {
        let page = replayed.index.range(&Range::default())?;
        save_image(&self.disk, self.directory, &page.entries, page.revision, |_| true).map_err(Error::Unavailable)?;
        for name in self.names()?.iter().filter(|name| named_revision(name, "log").is_some()) {
            self.remove(name)?;
        }
        for name in self.names()?.iter().filter(|name| name.ends_with(UNFINISHED)) {
            self.remove(name)?;
        }
        remove_replaced(&self.disk, self.directory, page.revision).map_err(Error::Unavailable)
    }

    fn remove(&self, name: &str) -> Result<(), Error> {
        let path = self.directory.join(name);
        self.disk.remove(&path).map_err(|error| Error::Unavailable(describe("removing", &path, &error)))
    }
}

/// Reads everything and verifies it. Changes nothing.
pub fn check(directory: &Path) -> Result<CheckReport, Error> {
    let store = Exclusive::open(directory)?;
    let replayed = replay(&store.disk, directory, &store.names()?)?;
    store.report(&replayed)
}

/// Replaces the log by an image of the newest state. History is lost: watches start again from a list.
pub fn compact(directory: &Path) -> Result<CheckReport, Error> {
    let store = Exclusive::open(directory)?;
    let replayed = replay(&store.disk, directory, &store.names()?)?;
    store.rewrite(&replayed)?;
    store.report(&replayed)
}

/// Keeps everything before the first damage, and sets the damaged files aside in a new directory beside the store's. What
/// was written after the damage is lost. Returns the report, what was damaged, and the directory with the old files.
pub fn repair(directory: &Path) -> Result<(CheckReport, Option<String>, Option<PathBuf>), Error> {
    let store = Exclusive::open(directory)?;
    let names = store.names()?;
    let (replayed, damage) = replay_undamaged(&store.disk, directory, &names)?;
    let Some(damage) = damage else {
        return Ok((store.report(&replayed)?, None, None));
    };
    let kept = aside(directory);
    store.disk.make_directory(&kept).map_err(|error| Error::Open(describe("creating", &kept, &error)))?;
    for name in
        names.iter().filter(|name| named_revision(name, "log").is_some() || named_revision(name, "image").is_some())
    {
        let (from, to) = (directory.join(name), kept.join(name));
        // The originals are removed below: the copies must be on the disk before.
        let copied = std::fs::copy(&from, &to).and_then(|_| std::fs::File::open(&to)?.sync_all());
        copied.map_err(|error| Error::Open(describe("copying", &from, &error)))?;
    }
    store.disk.sync_directory(&kept).map_err(|error| Error::Open(describe("syncing", &kept, &error)))?;
    store.rewrite(&replayed)?;
    Ok((store.report(&replayed)?, Some(damage), Some(kept)))
}

/// A directory for the old files that does not exist yet.
fn aside(directory: &Path) -> PathBuf {
    let candidate = |number: usize| {
        let mut name = directory.file_name().unwrap_or_default().to_os_string();
        name.push(if number == 0 { "-damaged".to_owned() } else { format!("-damaged-{number}") });
        directory.with_file_name(name)
    };
    (0..).map(candidate).find(|path| !path.exists()).unwrap_or_else(|| candidate(0))
}

#[cfg(test)]
mod tests {
    use super::super::log::{image_name, log_name};
    use super::*;
    use crate::{Embedded, Options, Store};
    use bytes::Bytes;

    async fn written(directory: &Path, count: usize) {
        let options = Options { segment_bytes: 3000, ..Options::default() };
        let store = Embedded::open(directory, options).unwrap();
        for number in 0..count {
            store.create(&format!("/r/pods/{number:03}"), Bytes::from(vec![b'x'; 500]), None).await.unwrap();
        }
        store.delete("/r/pods/000", 2).await.unwrap();
    }

    fn count(directory: &Path) -> usize {
        Embedded::open(directory, Options::default()).unwrap().count("")
    }

    #[tokio::test]
    async fn a_store_is_checked_and_compacted() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("store");
        assert!(matches!(check(&directory), Err(Error::Open(message)) if message.contains("there is no store")));
        written(&directory, 20).await;
        let report = check(&directory).unwrap();
        assert_eq!((report.revision, report.entries, report.torn), (22, 19, false));
        let compacted = compact(&directory).unwrap();
        assert!(compacted.disk_bytes < report.disk_bytes, "{compacted:?} {report:?}");
        let names = RealDisk.list(&directory).unwrap();
        assert!(names.contains(&image_name(22)) && !names.contains(&log_name(2)), "{names:?}");
        assert_eq!(check(&directory).unwrap(), compacted);
        assert_eq!(count(&directory), 19);
        let _store = Embedded::open(&directory, Options::default()).unwrap();
        assert!(matches!(check(&directory), Err(Error::Open(message)) if message.contains("stop the server")));
    }

    #[tokio::test]
    async fn a_damaged_store_is_repaired_up_to_the_damage() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("store");
        written(&directory, 20).await;
        assert_eq!(repair(&directory).unwrap().1, None, "nothing to repair");
        let mut logs: Vec<String> = RealDisk
            .list(&directory)
            .unwrap()
            .into_iter()
            .filter(|name| named_revision(name, "log").is_some())
            .collect();
        logs.sort();
        let damaged = directory.join(&logs[2]);
        let mut bytes = std::fs::read(&damaged).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&damaged, bytes).unwrap();
        assert!(matches!(check(&directory), Err(Error::Corrupt(_))));
        let (report, damage, kept) = repair(&directory).unwrap();
        assert!(damage.unwrap().contains(&logs[2]));
        assert!(report.entries > 5 && report.entries < 19, "{report:?}");
        assert_eq!(check(&directory).unwrap().entries, report.entries);
        assert_eq!(count(&directory), report.entries);
        assert!(kept.unwrap().join(&logs[2]).exists(), "the damaged files are kept");
    }
}
