//! The log's segments: their names, and the writer that appends to the last one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::disk::{Disk, DiskFile, describe, is_full};
use super::frame::Framer;
use super::metrics;
use super::record::{Opening, encode_change};
use crate::contract::Revision;
use crate::index::Change;

/// A file of the log, identified by the revision of its first record; it ends where the next one starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Segment {
    pub first: Revision,
    pub bytes: u64,
}

/// The file name of a log segment.
pub(super) fn log_name(first: Revision) -> String {
    format!("log-{first:020}")
}

/// The file name of an image.
pub(super) fn image_name(revision: Revision) -> String {
    format!("image-{revision:020}")
}

pub(super) const LOCK_NAME: &str = "lock";
pub(super) const UNFINISHED: &str = ".unfinished";

/// The revision in a file name of that kind; `None` for other files.
pub(super) fn named_revision(name: &str, kind: &str) -> Option<Revision> {
    let digits = name.strip_prefix(kind)?.strip_prefix('-')?;
    (digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// A write that did not become durable.
#[derive(Debug)]
pub(super) struct WriteFailure {
    pub message: String,
    /// Whether the file has been restored to its previous state, so that further writes can be tried.
    pub undone: bool,
    /// Whether the disk is full.
    pub full: bool,
}

/// The segment that is being written.
pub(super) struct LogWriter {
    pub path: PathBuf,
    pub file: Box<dyn DiskFile>,
    pub framer: Framer,
    /// The durable length of the file; all of it between writes.
    pub length: u64,
    pub buffer: Vec<u8>,
}

impl LogWriter {
    /// Starts a new segment, which is durable with its name when this returns. A failure is `undone` only if the new file
    /// is gone: the log must not continue in the previous segment when a later one may exist after a crash.
    pub(super) fn create(disk: &Arc<dyn Disk>, directory: &Path, first: Revision) -> Result<Self, WriteFailure> {
        let path = directory.join(log_name(first));
        let mut framer = Framer { mark: rand::random(), next: 0 };
        let mut buffer = Vec::new();
        Framer::start(&mut buffer);
        Opening::Log { first }.encode(&mut buffer);
        framer.finish(&mut buffer);
        let create = || {
            let mut file = disk.create(&path)?;
            file.append(&buffer)?;
            file.sync()?;
            disk.sync_directory(directory)?;
            Ok(file)
        };
        let file = create().map_err(|error| WriteFailure {
            message: describe("creating", &path, &error),
            full: is_full(&error),
            undone: disk.remove(&path).and_then(|()| disk.sync_directory(directory)).is_ok(),
        })?;
        Ok(Self { length: buffer.len() as u64, path, file, framer, buffer })
    }

    /// Makes changes durable, all or none.
    pub(super) fn write<'a>(&mut self, changes: impl IntoIterator<Item = &'a Change>) -> Result<(), WriteFailure> {
        Framer::start(&mut self.buffer);
        for change in changes {
            encode_change(change, &mut self.buffer);
        }
        self.framer.finish(&mut self.buffer);
        if let Err(error) = self.file.append(&self.buffer) {
            let message = describe("appending to", &self.path, &error);
            return Err(WriteFailure { message, undone: self.undo(), full: is_full(&error) });
        }
        let started = Instant::now();
        let synced = self.file.sync();
        metrics::SYNC.observe(&[], started.elapsed().as_secs_f64());
        if let Err(error) = synced {
            // The kernel may have dropped the failed pages and marked them clean: only reopening the store shows what is
            // on the disk.
            let message = describe("syncing", &self.path, &error);
            return Err(WriteFailure { message, undone: false, full: is_full(&error) });
        }
        self.length += self.buffer.len() as u64;
        Ok(())
    }

    /// Confirms that the previous frame was durable, so that damage to it is not mistaken for an incomplete write.
    pub(super) fn seal(&mut self) -> Result<(), WriteFailure> {
        self.write([])
    }

    /// Reverts a write that failed before it was synced.
    fn undo(&mut self) -> bool {
        self.framer.next -= 1;
        self.file.truncate(self.length).and_then(|()| self.file.sync()).is_ok()
    }
}
