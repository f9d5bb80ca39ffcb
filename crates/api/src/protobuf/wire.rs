//! The wire format: a writer that fills its buffer from the back, and a reader.

use super::ProtobufError;

pub(crate) const VARINT: u8 = 0;
pub(crate) const FIXED_64: u8 = 1;
pub(crate) const BYTES: u8 = 2;
const START_GROUP: u8 = 3;
const END_GROUP: u8 = 4;
const FIXED_32: u8 = 5;

/// Writes from the end to the start, so that the length of a field is known when its prefix is written.
pub(crate) struct Writer {
    buffer: Vec<u8>,
    start: usize,
}

impl Writer {
    /// An empty writer with room for this many bytes.
    pub fn new(capacity: usize) -> Writer {
        let buffer = vec![0; capacity.max(64)];
        Writer { start: buffer.len(), buffer }
    }

    /// The bytes in the order of reading.
    pub fn finish(mut self) -> Vec<u8> {
        self.buffer.drain(..self.start);
        self.buffer
    }

    /// The number of bytes written.
    pub fn len(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Writes bytes in front of those written before.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        self.start -= bytes.len();
        self.buffer[self.start..self.start + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes a number in the variable-length encoding.
    pub fn varint(&mut self, value: u64) {
        let mut encoded = [0; 10];
        let length = varint(value, &mut encoded);
        self.bytes(&encoded[..length]);
    }

    /// Writes the number and the wire type of a field.
    pub fn tag(&mut self, number: u32, wire_type: u8) {
        self.varint(u64::from(number) << 3 | u64::from(wire_type));
    }

    /// Closes a length-delimited field that was started when `before` bytes had been written.
    pub fn close(&mut self, number: u32, before: usize) {
        self.varint((self.len() - before) as u64);
        self.tag(number, BYTES);
    }

    /// Writes a length-delimited field.
    pub fn text(&mut self, number: u32, text: &[u8]) {
        let before = self.len();
        self.bytes(text);
        self.close(number, before);
    }

    /// Writes a numeric field.
    pub fn number(&mut self, number: u32, value: u64) {
        self.varint(value);
        self.tag(number, VARINT);
    }

    fn reserve(&mut self, additional: usize) {
        if self.start >= additional {
            return;
        }
        let written = self.len();
        let mut buffer = vec![0; (self.buffer.len() * 2).max(written + additional)];
        let start = buffer.len() - written;
        buffer[start..].copy_from_slice(&self.buffer[self.start..]);
        *self = Writer { buffer, start };
    }
}

/// Encodes into the array and returns the number of bytes used.
pub(super) fn varint(mut value: u64, out: &mut [u8; 10]) -> usize {
    let mut length = 0;
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        out[length] = if value == 0 { byte } else { byte | 0x80 };
        length += 1;
        if value == 0 {
            return length;
        }
    }
}

/// Reads the fields of one message.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

/// The content of a field.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Content<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    /// Skipped; no field has this wire type.
    Other(u8),
}

impl<'a> Reader<'a> {
    /// Starts before the first field.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// The next field's number and content; `None` at the end.
    pub fn next(&mut self) -> Result<Option<(u32, Content<'a>)>, ProtobufError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| ProtobufError::Overlong)?;
        let content = match (tag & 7) as u8 {
            VARINT => Content::Varint(self.varint()?),
            FIXED_64 => Content::Fixed64(self.fixed64()?),
            BYTES => Content::Bytes(self.delimited()?),
            START_GROUP => {
                self.skip_group()?;
                Content::Other(START_GROUP)
            }
            FIXED_32 => {
                self.take(4)?;
                Content::Other(FIXED_32)
            }
            other => return Err(ProtobufError::WireType { field: format!("number {number}"), wire_type: other }),
        };
        Ok(Some((number, content)))
    }

    /// Whether everything is read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads a number in the variable-length encoding.
    pub fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(ProtobufError::Truncated)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ProtobufError::Overlong)
    }

    /// Reads a number of eight bytes.
    pub fn fixed64(&mut self) -> Result<u64, ProtobufError> {
        let bytes = self.take(8)?;
        Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| ProtobufError::Truncated)?))
    }

    fn delimited(&mut self) -> Result<&'a [u8], ProtobufError> {
        let length = usize::try_from(self.varint()?).map_err(|_| ProtobufError::Truncated)?;
        self.take(length)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ProtobufError> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(ProtobufError::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Groups are deprecated, but a reader must be able to skip them.
    fn skip_group(&mut self) -> Result<(), ProtobufError> {
        let mut depth = 1usize;
        while depth > 0 {
            match (self.varint()? & 7) as u8 {
                VARINT => {
                    self.varint()?;
                }
                FIXED_64 => {
                    self.take(8)?;
                }
                BYTES => {
                    self.delimited()?;
                }
                START_GROUP => depth += 1,
                END_GROUP => depth -= 1,
                FIXED_32 => {
                    self.take(4)?;
                }
                other => return Err(ProtobufError::WireType { field: "in a group".to_owned(), wire_type: other }),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let mut writer = Writer::new(0);
        writer.number(3, u64::MAX);
        writer.text(2, &[7; 300]);
        writer.number(1, 1);
        let bytes = writer.finish();
        let mut reader = Reader::new(&bytes);
        assert!(matches!(reader.next(), Ok(Some((1, Content::Varint(1))))));
        assert!(matches!(reader.next(), Ok(Some((2, Content::Bytes(text)))) if text == [7; 300]));
        assert!(matches!(reader.next(), Ok(Some((3, Content::Varint(u64::MAX))))));
        assert!(matches!(reader.next(), Ok(None)));
    }

    #[test]
    fn malformed_bytes_are_errors() {
        for (bytes, error) in [
            (&[0x08][..], ProtobufError::Truncated),
            (&[0x0a, 0x05, 0x00], ProtobufError::Truncated),
            (&[0x09, 1, 2, 3], ProtobufError::Truncated),
            (&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], ProtobufError::Overlong),
            (&[0x0b, 0x0b, 0x0c], ProtobufError::Truncated),
            (&[0x0c], ProtobufError::WireType { field: "number 1".to_owned(), wire_type: 4 }),
        ] {
            assert_eq!(Reader::new(bytes).next().unwrap_err(), error, "{bytes:x?}");
        }
        let mut reader = Reader::new(&[0x0b, 0x08, 0x01, 0x0c, 0x0d, 1, 2, 3, 4]);
        assert!(matches!(reader.next(), Ok(Some((1, Content::Other(3))))));
        assert!(matches!(reader.next(), Ok(Some((1, Content::Other(5))))));
    }
}
