//! The image format: all entries of one revision in one checksummed file. Checkpoints and snapshots are images.

use std::io::{self, Read};
use std::sync::Arc;

use super::frame::{Fault, FrameReader, Framer};
use super::record::{Opening, Record, Records, encode_end, encode_entry};
use crate::contract::{Entry, Revision};

/// The approximate size of one frame.
const FRAME_BYTES: usize = 256 << 10;

/// Writes an image piece by piece to `sink`.
pub(super) fn write_image(
    entries: &[Arc<Entry>],
    revision: Revision,
    mut sink: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut framer = Framer { mark: rand::random(), next: 0 };
    let mut buffer = Vec::with_capacity(FRAME_BYTES + (FRAME_BYTES >> 3));
    Framer::start(&mut buffer);
    Opening::Image { revision }.encode(&mut buffer);
    framer.finish(&mut buffer);
    sink(&buffer)?;
    Framer::start(&mut buffer);
    for entry in entries {
        encode_entry(entry, &mut buffer);
        if buffer.len() >= FRAME_BYTES {
            framer.finish(&mut buffer);
            sink(&buffer)?;
            Framer::start(&mut buffer);
        }
    }
    encode_end(entries.len() as u64, &mut buffer);
    framer.finish(&mut buffer);
    sink(&buffer)
}

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImageError {
    #[error("reading at offset {offset}")]
    Io { offset: u64, source: io::Error },
    #[error("at offset {offset}, {what}")]
    Damaged { offset: u64, what: &'static str },
}

/// Reads a whole image and verifies it.
pub(super) fn read_image(source: impl Read) -> Result<(Revision, Vec<Arc<Entry>>), ImageError> {
    let mut frames = FrameReader::new(source);
    let revision = match opening(&mut frames)? {
        Opening::Image { revision } => revision,
        Opening::Log { .. } => return Err(ImageError::Damaged { offset: 0, what: "the file is a log, not an image" }),
    };
    let mut entries = Vec::new();
    loop {
        let offset = frames.offset();
        let damaged = |what| ImageError::Damaged { offset, what };
        let payload = next_frame(&mut frames)?.ok_or(damaged("the image has no end"))?;
        if read_entries(payload, revision, &mut entries).map_err(damaged)? {
            break;
        }
    }
    let offset = frames.offset();
    match next_frame(&mut frames)? {
        None => Ok((revision, entries)),
        Some(_) => Err(ImageError::Damaged { offset, what: "there is data after the end of the image" }),
    }
}

/// Adds a frame's entries, and returns whether it is the last frame of the image.
fn read_entries(payload: &[u8], revision: Revision, entries: &mut Vec<Arc<Entry>>) -> Result<bool, &'static str> {
    let mut records = Records::new(payload);
    while let Some(record) = records.next()? {
        match record {
            Record::End { count } if count == entries.len() as u64 => {
                return if records.next()?.is_none() {
                    Ok(true)
                } else {
                    Err("there is a record after the end of the image")
                };
            }
            Record::End { .. } => return Err("the image does not have as many entries as it says"),
            Record::Change(change) => {
                let entry = change.current.ok_or("there is a deletion in an image")?;
                if entry.revision > revision {
                    return Err("an entry is newer than the image");
                }
                if entries.last().is_some_and(|last| last.key >= entry.key) {
                    return Err("the entries are not in order");
                }
                entries.push(entry);
            }
        }
    }
    Ok(false)
}

fn opening(frames: &mut FrameReader<impl Read>) -> Result<Opening, ImageError> {
    let damaged = |what| ImageError::Damaged { offset: 0, what };
    let payload = next_frame(frames)?.ok_or(damaged("the file is empty"))?;
    Opening::decode(payload).map_err(damaged)
}

fn next_frame<R: Read>(frames: &mut FrameReader<R>) -> Result<Option<&[u8]>, ImageError> {
    let offset = frames.offset();
    frames.next().map_err(|fault| match fault {
        Fault::Io(source) => ImageError::Io { offset, source },
        Fault::CutOff => ImageError::Damaged { offset, what: "the file is cut off" },
        Fault::Damaged(what) => ImageError::Damaged { offset, what },
    })
}
