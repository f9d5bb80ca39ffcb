//! Opening a data directory: the image and the log that follows it become an index again.
//!
//! The disk holds what memory holds: an image of the state at the compaction floor, and the log of all changes since.

use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use super::disk::{Disk, describe};
use super::frame::{Fault, FrameReader, Framer};
use super::image::read_image;
use super::log::{LogWriter, Segment, UNFINISHED, image_name, log_name, named_revision};
use super::record::{Opening, Record, Records};
use crate::contract::{Error, Revision};
use crate::index::{Change, Index};

/// The revision of a store that nothing was written to. Not 0, which clients take for "any".
const FIRST: Revision = 1;
const READ_BUFFER: usize = 256 << 10;

pub(super) struct Recovered {
    pub index: Index,
    pub segments: Vec<Segment>,
    pub writer: LogWriter,
}

pub(super) fn recover(disk: &Arc<dyn Disk>, directory: &Path) -> Result<Recovered, Error> {
    let names = disk.list(directory).map_err(|error| Error::Open(describe("listing", directory, &error)))?;
    for name in names.iter().filter(|name| name.ends_with(UNFINISHED)) {
        let path = directory.join(name);
        disk.remove(&path).map_err(|error| Error::Open(describe("removing", &path, &error)))?;
    }
    let index = load_image(disk, directory, &names)?;
    let firsts = needed_segments(&names, index.revision());
    let mut replay = Replay { disk, directory, index: &index, segments: Vec::new() };
    let mut tail = None;
    for (position, first) in firsts.iter().enumerate() {
        tail = replay.segment(*first, position + 1 == firsts.len())?;
    }
    let mut segments = replay.segments;
    let writer = match tail {
        Some(tail) => tail,
        None => {
            let first = index.revision() + 1;
            segments.push(Segment { first, bytes: 0 });
            LogWriter::create(disk, directory, first).map_err(|failure| Error::Open(failure.message))?
        }
    };
    Ok(Recovered { index, segments, writer })
}

fn load_image(disk: &Arc<dyn Disk>, directory: &Path, names: &[String]) -> Result<Index, Error> {
    let Some(revision) = names.iter().filter_map(|name| named_revision(name, "image")).max() else {
        // The first write is revision 2, and nothing at all comes before it.
        return Ok(Index::new(Vec::new(), FIRST, 0));
    };
    let path = directory.join(image_name(revision));
    let file = disk.read(&path).map_err(|error| Error::Open(describe("opening", &path, &error)))?;
    let (named, entries) = read_image(BufReader::with_capacity(READ_BUFFER, file))
        .map_err(|error| Error::Corrupt(format!("{}: {error}", path.display())))?;
    if named != revision {
        return Err(Error::Corrupt(format!("{}: the image is of revision {named}", path.display())));
    }
    Ok(Index::new(entries, revision, revision))
}

/// The first revisions of the segments that hold anything after `revision`, in order.
fn needed_segments(names: &[String], revision: Revision) -> Vec<Revision> {
    let mut firsts: Vec<Revision> = names.iter().filter_map(|name| named_revision(name, "log")).collect();
    firsts.sort_unstable();
    let covered = firsts.iter().skip(1).take_while(|next| **next <= revision + 1).count();
    firsts.split_off(covered)
}

struct Replay<'a> {
    disk: &'a Arc<dyn Disk>,
    directory: &'a Path,
    index: &'a Index,
    segments: Vec<Segment>,
}

impl Replay<'_> {
    /// Takes in one segment. The last one is opened for writing, unless it has to be made anew.
    fn segment(&mut self, first: Revision, last: bool) -> Result<Option<LogWriter>, Error> {
        let path = self.directory.join(log_name(first));
        let file = self.disk.read(&path).map_err(|error| Error::Open(describe("opening", &path, &error)))?;
        let mut frames = FrameReader::new(BufReader::with_capacity(READ_BUFFER, file));
        let corrupt =
            |offset: u64, what: &str| Error::Corrupt(format!("{} at offset {offset}: {what}", path.display()));
        if first > self.index.revision() + 1 {
            let missing = self.index.revision() + 1;
            return Err(corrupt(0, &format!("the log before it, from revision {missing} on, is missing")));
        }
        let mut opened = false;
        let fault = loop {
            let offset = frames.offset();
            match frames.next() {
                Ok(None) => break None,
                Ok(Some(payload)) if opened => self.take(payload).map_err(|what| corrupt(offset, what))?,
                Ok(Some(payload)) => {
                    if Opening::decode(payload).map_err(|what| corrupt(0, what))? != (Opening::Log { first }) {
                        return Err(corrupt(0, "the file's name and its opening do not agree"));
                    }
                    opened = true;
                }
                Err(fault) => break Some(fault),
            }
        };
        let length = frames.offset();
        let framer = frames.framer();
        let cut_off = match &fault {
            None if last || opened => None,
            None => return Err(corrupt(0, "the file is empty")),
            Some(Fault::Io(error)) => return Err(Error::Open(describe("reading", &path, error))),
            Some(fault) => {
                let what = match fault {
                    Fault::Damaged(what) => what,
                    _ => "the file is cut off",
                };
                let torn =
                    frames.rest_is_torn(fault).map_err(|error| Error::Open(describe("reading", &path, &error)))?;
                if !last || !torn {
                    return Err(corrupt(length, what));
                }
                Some(what)
            }
        };
        if let Some(what) = cut_off {
            tracing::warn!(file = %path.display(), offset = length, what, "cutting off a write that was never completed");
        }
        if !last {
            self.segments.push(Segment { first, bytes: length });
            return Ok(None);
        }
        if !opened {
            // The crash came while the segment was being made: it never held anything.
            self.disk.remove(&path).map_err(|error| Error::Open(describe("removing", &path, &error)))?;
            return Ok(None);
        }
        self.segments.push(Segment { first, bytes: length });
        self.open_tail(&path, framer, length, cut_off.is_some()).map(Some)
    }

    fn open_tail(&self, path: &Path, framer: Option<Framer>, length: u64, cut: bool) -> Result<LogWriter, Error> {
        let open = || {
            let mut file = self.disk.append(path)?;
            if cut {
                file.cut(length)?;
            }
            // What was read may still be only in the page cache: it is served, so it has to be durable.
            file.sync()?;
            self.disk.sync_directory(self.directory)?;
            Ok(file)
        };
        let file = open().map_err(|error| Error::Open(describe("opening for writing", path, &error)))?;
        let framer = framer.ok_or_else(|| Error::Corrupt(format!("{}: no frame", path.display())))?;
        Ok(LogWriter { path: path.to_owned(), file, framer, length, buffer: Vec::new() })
    }

    /// Takes in the records of a frame that are newer than what is known.
    fn take(&self, payload: &[u8]) -> Result<(), &'static str> {
        let mut records = Records::new(payload);
        let mut newest = self.index.revision();
        let mut changes: Vec<Change> = Vec::new();
        while let Some(record) = records.next()? {
            let Record::Change(change) = record else { return Err("there is an end of an image in a log") };
            if change.revision <= self.index.revision() {
                continue;
            }
            if change.revision != newest + 1 {
                return Err("a revision is missing");
            }
            newest = change.revision;
            changes.push(change);
        }
        self.index.apply(changes, newest).wake();
        Ok(())
    }
}
