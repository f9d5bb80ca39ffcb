//! The payload of frames: the opening frame of a file, and the records of changes and entries.

use std::sync::Arc;

use bytes::Bytes;

use crate::contract::{Entry, Revision};
use crate::index::Change;

/// The format version; files of other versions are refused.
const FORMAT: u8 = 1;

/// The length of the opening frame's payload.
pub(super) const OPENING: usize = 10;

/// The kind of a file, stored in its first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// A log whose first record has this revision.
    Log { first: Revision },
    /// All entries as they were at this revision.
    Image { revision: Revision },
}

impl Opening {
    pub(super) fn encode(self, buffer: &mut Vec<u8>) {
        let (kind, revision) = match self {
            Self::Log { first } => (b'L', first),
            Self::Image { revision } => (b'I', revision),
        };
        buffer.extend_from_slice(&[FORMAT, kind]);
        buffer.extend_from_slice(&revision.to_le_bytes());
    }

    pub(super) fn decode(payload: &[u8]) -> Result<Self, &'static str> {
        let mut fields = Fields(payload);
        if fields.byte()? != FORMAT {
            return Err("the file is of another version of the store");
        }
        let opening = match fields.byte()? {
            b'L' => Self::Log { first: fields.number()? },
            b'I' => Self::Image { revision: fields.number()? },
            _ => return Err("the file is neither a log nor an image"),
        };
        fields.end()?;
        Ok(opening)
    }
}

const PUT: u8 = 1;
const DELETE: u8 = 2;
/// Ends an image and holds its number of entries.
const END: u8 = 3;

/// One record of a frame.
pub(super) enum Record {
    Change(Change),
    End { count: u64 },
}

pub(super) fn encode_entry(entry: &Entry, buffer: &mut Vec<u8>) {
    buffer.push(PUT);
    for number in [entry.revision, entry.created, entry.expires] {
        buffer.extend_from_slice(&number.to_le_bytes());
    }
    buffer.extend_from_slice(&(entry.key.len() as u32).to_le_bytes());
    buffer.extend_from_slice(&(entry.value_len() as u32).to_le_bytes());
    buffer.extend_from_slice(entry.key.as_bytes());
    buffer.extend_from_slice(&entry.value());
}

pub(super) fn encode_change(change: &Change, buffer: &mut Vec<u8>) {
    if let Some(entry) = &change.current {
        return encode_entry(entry, buffer);
    }
    buffer.push(DELETE);
    buffer.extend_from_slice(&change.revision.to_le_bytes());
    buffer.extend_from_slice(&(change.key.len() as u32).to_le_bytes());
    buffer.extend_from_slice(change.key.as_bytes());
}

pub(super) fn encode_end(count: u64, buffer: &mut Vec<u8>) {
    buffer.push(END);
    buffer.extend_from_slice(&count.to_le_bytes());
}

/// Reads the records of a frame one after the other.
pub(super) struct Records<'a>(Fields<'a>);

impl<'a> Records<'a> {
    pub(super) fn new(payload: &'a [u8]) -> Self {
        Self(Fields(payload))
    }

    pub(super) fn next(&mut self) -> Result<Option<Record>, &'static str> {
        let fields = &mut self.0;
        if fields.0.is_empty() {
            return Ok(None);
        }
        Ok(Some(match fields.byte()? {
            PUT => Record::Change(fields.put()?),
            DELETE => {
                let revision = fields.number()?;
                let length = fields.length()?;
                Record::Change(Change { revision, key: fields.text(length)?.into(), current: None })
            }
            END => Record::End { count: fields.number()? },
            _ => return Err("there is a record of an unknown kind"),
        }))
    }
}

/// The unread rest of a payload.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn put(&mut self) -> Result<Change, &'static str> {
        let (revision, created, expires) = (self.number()?, self.number()?, self.number()?);
        let (key_length, value_length) = (self.length()?, self.length()?);
        let key: Arc<str> = self.text(key_length)?.into();
        // Copied, so that a value does not keep the whole frame in memory.
        let value = Bytes::copy_from_slice(self.take(value_length)?);
        let entry = Entry::new(key.clone(), value, created, revision).expiring(expires);
        Ok(Change { key, revision, current: Some(Arc::new(entry)) })
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], &'static str> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or("a record is longer than its frame")?;
        self.0 = rest;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, &'static str> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn length(&mut self) -> Result<usize, &'static str> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
    }

    fn number(&mut self) -> Result<u64, &'static str> {
        let mut number = [0; 8];
        number.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(number))
    }

    fn text(&mut self, length: usize) -> Result<&'a str, &'static str> {
        std::str::from_utf8(self.take(length)?).map_err(|_| "a key is not text")
    }

    fn end(&self) -> Result<(), &'static str> {
        if self.0.is_empty() { Ok(()) } else { Err("the opening frame is too long") }
    }
}
