//! Opens a data directory: replays it, removes what a crash left incomplete, and prepares the end of the log for writing.

use std::path::Path;
use std::sync::Arc;

use super::disk::{Disk, describe};
use super::log::{LogWriter, Segment, UNFINISHED, log_name};
use super::replay::{Replayed, Tail, replay};
use crate::contract::Error;
use crate::index::Index;

pub(super) struct Recovered {
    pub index: Index,
    pub segments: Vec<Segment>,
    pub writer: LogWriter,
}

pub(super) fn recover(disk: &Arc<dyn Disk>, directory: &Path) -> Result<Recovered, Error> {
    let names = disk.list(directory).map_err(|error| Error::Open(describe("listing", directory, &error)))?;
    for name in names.iter().filter(|name| name.ends_with(UNFINISHED)) {
        remove(disk, &directory.join(name))?;
    }
    let Replayed { index, mut segments, tail } = replay(disk, directory, &names)?;
    let writer = match tail.map(|tail| open_tail(disk, directory, tail)).transpose()?.flatten() {
        Some(writer) => writer,
        None => {
            let first = index.revision() + 1;
            segments.push(Segment { first, bytes: 0 });
            LogWriter::create(disk, directory, first).map_err(|failure| Error::Open(failure.message))?
        }
    };
    Ok(Recovered { index, segments, writer })
}

/// Opens the end of the log for writing; `None` when not even its opening frame is complete.
fn open_tail(disk: &Arc<dyn Disk>, directory: &Path, tail: Tail) -> Result<Option<LogWriter>, Error> {
    let Tail { first, length, torn, framer } = tail;
    let path = directory.join(log_name(first));
    let Some(framer) = framer else {
        return remove(disk, &path).map(|()| None);
    };
    let open = || {
        let mut file = disk.append(&path)?;
        if torn {
            file.truncate(length)?;
        }
        // Replayed data may still be only in the page cache: it will be served, so it must be durable.
        file.sync()?;
        disk.sync_directory(directory)?;
        Ok(file)
    };
    let file = open().map_err(|error| Error::Open(describe("opening for writing", &path, &error)))?;
    Ok(Some(LogWriter { path, file, framer, length, buffer: Vec::new() }))
}

fn remove(disk: &Arc<dyn Disk>, path: &Path) -> Result<(), Error> {
    disk.remove(path).map_err(|error| Error::Open(describe("removing", path, &error)))
}
