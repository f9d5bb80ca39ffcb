//! Reads a data directory into an index: the image of the state at the compaction floor, and the log of all changes
//! since. Changes nothing on the disk.

use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use super::disk::{Disk, describe};
use super::frame::{Fault, FrameReader, Framer};
use super::image::read_image;
use super::log::{Segment, image_name, log_name, named_revision};
use super::record::{Opening, Record, Records};
use crate::contract::{Error, Revision};
use crate::index::{Change, Index};

/// The revision of an empty store. Not 0, which means "any" to clients.
const FIRST: Revision = 1;
const READ_BUFFER: usize = 256 << 10;

pub(super) struct Replayed {
    pub index: Index,
    /// The needed segments of the log in order, including the last one.
    pub segments: Vec<Segment>,
    /// The last segment of the log, if any.
    pub tail: Option<Tail>,
}

/// The end of the log.
pub(super) struct Tail {
    pub first: Revision,
    /// The length of its valid data.
    pub length: u64,
    /// Whether an incomplete write comes after it, which must be truncated.
    pub torn: bool,
    /// For appending; `None` when not even the opening frame is complete.
    pub framer: Option<Framer>,
}

pub(super) fn replay(disk: &Arc<dyn Disk>, directory: &Path, names: &[String]) -> Result<Replayed, Error> {
    let index = load_image(disk, directory, names)?;
    let firsts = needed_segments(names, index.revision());
    let replay = Replay { disk, directory, index: &index };
    let (mut segments, mut tail) = (Vec::new(), None);
    for (position, first) in firsts.iter().enumerate() {
        let end = replay.segment(*first, position + 1 == firsts.len())?;
        if end.framer.is_some() {
            segments.push(Segment { first: *first, bytes: end.length });
        }
        tail = Some(end);
    }
    Ok(Replayed { index, segments, tail })
}

/// The same up to the first damage in the log, which is described.
pub(super) fn replay_undamaged(
    disk: &Arc<dyn Disk>,
    directory: &Path,
    names: &[String],
) -> Result<(Replayed, Option<String>), Error> {
    let index = load_image(disk, directory, names)?;
    let firsts = needed_segments(names, index.revision());
    let (mut segments, mut tail) = (Vec::new(), None);
    for (position, first) in firsts.iter().enumerate() {
        // What comes before the damage is applied.
        match (Replay { disk, directory, index: &index }).segment(*first, position + 1 == firsts.len()) {
            Ok(end) => {
                segments.push(Segment { first: *first, bytes: end.length });
                tail = Some(end);
            }
            Err(Error::Corrupt(damage)) => return Ok((Replayed { index, segments, tail: None }, Some(damage))),
            Err(error) => return Err(error),
        }
    }
    Ok((Replayed { index, segments, tail }, None))
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
}

impl Replay<'_> {
    /// Applies one segment. Only the last one may end in an incomplete write.
    fn segment(&self, first: Revision, last: bool) -> Result<Tail, Error> {
        let path = self.directory.join(log_name(first));
        let file = self.disk.read(&path).map_err(|error| Error::Open(describe("opening", &path, &error)))?;
        let mut frames = FrameReader::new(BufReader::with_capacity(READ_BUFFER, file));
        let corrupt =
            |offset: u64, what: &str| Error::Corrupt(format!("{} at offset {offset}: {what}", path.display()));
        let unreadable = |error: &std::io::Error| Error::Open(describe("reading", &path, error));
        if first > self.index.revision() + 1 {
            let missing = self.index.revision() + 1;
            return Err(corrupt(0, &format!("the log from revision {missing} up to this file is missing")));
        }
        let fault = loop {
            let offset = frames.offset();
            match frames.next() {
                Ok(None) => break None,
                Ok(Some(payload)) if offset == 0 => {
                    if Opening::decode(payload).map_err(|what| corrupt(0, what))? != (Opening::Log { first }) {
                        return Err(corrupt(0, "the file's name and its opening do not agree"));
                    }
                }
                Ok(Some(payload)) => self.apply(payload).map_err(|what| corrupt(offset, what))?,
                Err(fault) => break Some(fault),
            }
        };
        let length = frames.offset();
        let framer = frames.framer().filter(|_| length > 0);
        let what = match &fault {
            None if last || framer.is_some() => return Ok(Tail { first, length, torn: false, framer }),
            None => return Err(corrupt(0, "the file is empty")),
            Some(Fault::Io(error)) => return Err(unreadable(error)),
            Some(Fault::Damaged(what)) => what,
            Some(Fault::CutOff) => "the file is cut off",
        };
        let torn = fault.map_or(Ok(true), |fault| frames.rest_is_torn(&fault)).map_err(|error| unreadable(&error))?;
        if !last || !torn {
            return Err(corrupt(length, what));
        }
        tracing::warn!(file = %path.display(), offset = length, what, "ignoring an incomplete write at the end of the log");
        Ok(Tail { first, length, torn, framer })
    }

    /// Applies the records of a frame that are newer than the index.
    fn apply(&self, payload: &[u8]) -> Result<(), &'static str> {
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
