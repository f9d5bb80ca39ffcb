//! Checkpoints: an image of the state at the compaction floor replaces the log segments before it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::disk::{Disk, describe};
use super::image::write_image;
use super::log::{Segment, UNFINISHED, image_name, log_name, named_revision};
use crate::contract::{Entry, Error, Range, Revision};
use crate::index::Index;

/// How many bytes of the log an image at `floor` would replace: segments that end at or before it.
pub(super) fn replaceable(segments: &[Segment], floor: Revision) -> u64 {
    let complete = segments.windows(2).take_while(|pair| pair[1].first <= floor + 1);
    complete.map(|pair| pair[0].bytes).sum()
}

/// Whether a checkpoint is worth its cost: it replaces at least a segment, and half of what it will hold.
pub(super) fn worthwhile(replaceable: u64, segment_bytes: u64, current_bytes: usize) -> bool {
    replaceable >= segment_bytes.max(current_bytes as u64 / 2)
}

/// Writes the image of the floor and removes what it replaces. Each change of the directory is durable before the next,
/// so that the directory is consistent at any moment. `allows` says whether the image may have so many bytes.
pub(super) fn checkpoint(
    disk: &Arc<dyn Disk>,
    directory: &Path,
    index: &Index,
    allows: impl Fn(u64) -> bool,
) -> Result<Revision, Error> {
    let page = loop {
        let floor = index.floor();
        match index.range(&Range { at: Some(floor), ..Range::default() }) {
            Ok(page) => break page,
            // The floor rose in between.
            Err(Error::Compacted { .. }) => {}
            Err(error) => return Err(error),
        }
    };
    save_image(disk, directory, &page.entries, page.revision, allows).map_err(Error::Unavailable)?;
    remove_replaced(disk, directory, page.revision).map_err(Error::Unavailable)?;
    Ok(page.revision)
}

/// Writes a durable image to the directory; it gets its final name only when it is complete.
pub(super) fn save_image(
    disk: &Arc<dyn Disk>,
    directory: &Path,
    entries: &[Arc<Entry>],
    revision: Revision,
    allows: impl Fn(u64) -> bool,
) -> Result<(), String> {
    let path = directory.join(image_name(revision));
    let unfinished = directory.join(image_name(revision) + UNFINISHED);
    let write = || {
        let mut file = disk.create(&unfinished)?;
        let mut written = 0;
        write_image(entries, revision, |piece| {
            written += piece.len() as u64;
            if allows(written) { file.append(piece) } else { Err(io::ErrorKind::StorageFull.into()) }
        })?;
        file.sync()?;
        disk.rename(&unfinished, &path)?;
        disk.sync_directory(directory)
    };
    write().map_err(|error| {
        // The incomplete file may waste scarce space; if removing it fails too, the next open does it.
        drop(disk.remove(&unfinished));
        describe("writing", &path, &error)
    })
}

pub(super) fn remove_replaced(disk: &Arc<dyn Disk>, directory: &Path, revision: Revision) -> Result<(), String> {
    let names = disk.list(directory).map_err(|error| describe("listing", directory, &error))?;
    let mut logs: Vec<Revision> = names.iter().filter_map(|name| named_revision(name, "log")).collect();
    logs.sort_unstable();
    let covered = logs.windows(2).filter(|pair| pair[1] <= revision + 1).map(|pair| log_name(pair[0]));
    let images = names.iter().filter_map(|name| named_revision(name, "image"));
    let older = images.filter(|image| *image < revision).map(image_name);
    for name in older.chain(covered) {
        let path = directory.join(name);
        disk.remove(&path).map_err(|error| describe("removing", &path, &error))?;
    }
    disk.sync_directory(directory).map_err(|error| describe("syncing", directory, &error))
}
