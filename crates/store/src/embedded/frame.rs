//! Frames, the unit in which files are written and checked: a frame holds the data of one sync.
//!
//! A file is a sequence of frames, numbered from 0, that all carry the file's random mark. A frame is written only when
//! the previous one is durable. So a bad frame at the very end may be an incomplete write, but a bad frame before a good
//! one is damage to acknowledged data. The mark keeps a stored value that looks like a frame, by chance or on purpose,
//! from being read as one.
//!
//! | bytes | |
//! | --- | --- |
//! | 4 | `KNRF` |
//! | 4 | length of the payload |
//! | 8 | mark of the file |
//! | 8 | number of the frame |
//! | 4 | checksum of the payload |
//! | 4 | checksum of the 28 bytes before |
//! | n | payload |
//! | 1 | `0x5A`, so that a frame never ends in zeros |

use std::io::{self, Read};

use super::record::OPENING;

pub(super) const HEADER: usize = 32;
const MAGIC: &[u8; 4] = b"KNRF";
const TRAILER: u8 = 0x5A;
/// The maximum length of a payload: a larger one is damage, and no memory is allocated for it.
pub(super) const MAX_PAYLOAD: usize = 64 << 20;
/// The smallest unit that a disk writes atomically.
const SECTOR: usize = 512;

/// Builds frames for one file.
pub(super) struct Framer {
    pub mark: u64,
    pub next: u64,
}

impl Framer {
    /// Clears the buffer and starts a frame in it; the caller appends the payload.
    pub(super) fn start(buffer: &mut Vec<u8>) {
        buffer.clear();
        buffer.resize(HEADER, 0);
    }

    /// Completes the frame started by `start`.
    pub(super) fn finish(&mut self, buffer: &mut Vec<u8>) {
        let payload = &buffer[HEADER..];
        let (length, checksum) = (payload.len() as u32, crc32fast::hash(payload));
        buffer[..4].copy_from_slice(MAGIC);
        buffer[4..8].copy_from_slice(&length.to_le_bytes());
        buffer[8..16].copy_from_slice(&self.mark.to_le_bytes());
        buffer[16..24].copy_from_slice(&self.next.to_le_bytes());
        buffer[24..28].copy_from_slice(&checksum.to_le_bytes());
        let header_checksum = crc32fast::hash(&buffer[..28]);
        buffer[28..32].copy_from_slice(&header_checksum.to_le_bytes());
        buffer.push(TRAILER);
        self.next += 1;
    }
}

/// Why there is no further frame.
#[derive(Debug)]
pub(super) enum Fault {
    /// The file ends inside a frame.
    CutOff,
    Damaged(&'static str),
    Io(io::Error),
}

/// Reads the frames of a file one after the other.
pub(super) struct FrameReader<R> {
    source: R,
    /// Known after the first frame.
    mark: Option<u64>,
    next: u64,
    /// Where the next frame starts.
    offset: u64,
    header: [u8; HEADER],
    payload: Vec<u8>,
    /// The bytes read of the current frame, in case it is bad.
    read_of_bad: Vec<u8>,
}

impl<R: Read> FrameReader<R> {
    pub(super) fn new(source: R) -> Self {
        let (header, payload) = ([0; HEADER], Vec::new());
        Self { source, mark: None, next: 0, offset: 0, header, payload, read_of_bad: Vec::new() }
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// For appending to the file that was read.
    pub(super) fn framer(&self) -> Option<Framer> {
        self.mark.map(|mark| Framer { mark, next: self.next })
    }

    /// The next frame's payload; `None` at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, Fault> {
        let read = fill(&mut self.source, &mut self.header).map_err(Fault::Io)?;
        if read == 0 {
            return Ok(None);
        }
        self.read_of_bad.clear();
        self.read_of_bad.extend_from_slice(&self.header[..read]);
        if read < HEADER {
            return Err(if starts_like_a_frame(&self.header[..read]) {
                Fault::CutOff
            } else {
                Fault::Damaged("no frame starts here")
            });
        }
        let header = Header::parse(&self.header).map_err(Fault::Damaged)?;
        if header.number != self.next {
            return Err(Fault::Damaged("the frame has the wrong number"));
        }
        if *self.mark.get_or_insert(header.mark) != header.mark {
            return Err(Fault::Damaged("the frame belongs to another file"));
        }
        self.payload.resize(header.length + 1, 0);
        let read = fill(&mut self.source, &mut self.payload).map_err(Fault::Io)?;
        let whole = read == self.payload.len();
        let good = whole
            && self.payload[header.length] == TRAILER
            && crc32fast::hash(&self.payload[..header.length]) == header.checksum;
        if !good {
            self.read_of_bad.extend_from_slice(&self.payload[..read]);
            return Err(if whole { Fault::Damaged("the checksum does not match") } else { Fault::CutOff });
        }
        self.next += 1;
        self.offset += (HEADER + self.payload.len()) as u64;
        Ok(Some(&self.payload[..header.length]))
    }

    /// After a fault: whether the rest of the file can be an incomplete write, which was never acknowledged. It cannot be
    /// when a good frame comes after it, nor when every sector of the bad one was written.
    pub(super) fn rest_is_torn(mut self, fault: &Fault) -> io::Result<bool> {
        let mut rest = self.read_of_bad;
        self.source.read_to_end(&mut rest)?;
        let acknowledged = match self.mark {
            Some(mark) => later_frame(&rest, mark, self.next),
            // Nothing else is written before the first frame is durable.
            None => rest.len() > HEADER + OPENING + 1,
        };
        if acknowledged {
            return Ok(false);
        }
        Ok(match fault {
            Fault::CutOff => true,
            Fault::Damaged(_) => has_unwritten_sector(&rest, self.offset),
            Fault::Io(_) => false,
        })
    }
}

struct Header {
    length: usize,
    mark: u64,
    number: u64,
    checksum: u32,
}

impl Header {
    fn parse(bytes: &[u8; HEADER]) -> Result<Self, &'static str> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let double = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if &bytes[..4] != MAGIC {
            return Err("no frame starts here");
        }
        if word(28) != crc32fast::hash(&bytes[..28]) {
            return Err("the header's checksum does not match");
        }
        let length = word(4) as usize;
        if length > MAX_PAYLOAD {
            return Err("the frame is too long");
        }
        Ok(Self { length, mark: double(8), number: double(16), checksum: word(24) })
    }
}

fn starts_like_a_frame(bytes: &[u8]) -> bool {
    let known = bytes.len().min(MAGIC.len());
    bytes[..known] == MAGIC[..known] || bytes.iter().all(|byte| *byte == 0)
}

/// Whether a frame of this file with a higher number starts anywhere in `rest`. Its header is enough: it is only written
/// after the previous frame was durable.
fn later_frame(rest: &[u8], mark: u64, number: u64) -> bool {
    rest.windows(HEADER).filter(|window| &window[..4] == MAGIC).any(|window| {
        let header = window.try_into().ok().and_then(|header| Header::parse(header).ok());
        header.is_some_and(|header| header.mark == mark && header.number > number)
    })
}

/// Whether some sector of the file within `rest`, which starts at `offset`, holds only zeros.
fn has_unwritten_sector(rest: &[u8], offset: u64) -> bool {
    let first = (SECTOR - (offset % SECTOR as u64) as usize).min(rest.len());
    let (head, tail) = rest.split_at(first);
    let zeros = |sector: &[u8]| !sector.is_empty() && sector.iter().all(|byte| *byte == 0);
    zeros(head) || tail.chunks(SECTOR).any(zeros)
}

/// Reads until the buffer is full or the source ends, and returns the number of bytes read.
fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
