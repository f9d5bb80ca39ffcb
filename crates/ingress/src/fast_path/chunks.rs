//! Finds the end of a chunked body in bytes that are forwarded unchanged.

/// Parser state: what is expected next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expect {
    /// The first digit of a chunk size.
    #[default]
    Size,
    /// More digits, or the end of the line.
    MoreSize,
    /// Chunk extensions, which are ignored.
    Extension,
    SizeEnd,
    Data,
    DataReturn,
    DataEnd,
    /// The first byte of a trailer line.
    Trailer,
    TrailerLine,
    TrailerEnd,
    LastEnd,
}

#[derive(Clone, Debug, Default)]
pub struct Chunks {
    expect: Expect,
    left: u64,
    /// Bytes of chunk and trailer lines so far, which are limited.
    lines: usize,
}

/// The body violates the chunked format.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken;

const MAX_LINE_BYTES: usize = 16 * 1024;

impl Chunks {
    /// How many of these bytes belong to the body, and whether it ends there.
    pub fn pass(&mut self, bytes: &[u8]) -> Result<(usize, bool), Broken> {
        let mut at = 0;
        while let Some(byte) = bytes.get(at).copied() {
            if self.expect == Expect::Data {
                let count = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len() - at);
                self.left -= count as u64;
                at += count;
                if self.left == 0 {
                    self.expect = Expect::DataReturn;
                }
                continue;
            }
            at += 1;
            if self.step(byte)? {
                return Ok((at, true));
            }
        }
        Ok((at, false))
    }

    /// Processes a byte that is not data. Returns whether it was the last one.
    fn step(&mut self, byte: u8) -> Result<bool, Broken> {
        self.lines += 1;
        if self.lines > MAX_LINE_BYTES {
            return Err(Broken);
        }
        self.expect = match (self.expect, byte) {
            (Expect::Size | Expect::MoreSize, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = char::from(byte).to_digit(16).ok_or(Broken)?;
                self.left = self.left.checked_mul(16).ok_or(Broken)? + u64::from(digit);
                Expect::MoreSize
            }
            (Expect::MoreSize, b';' | b' ' | b'\t') => Expect::Extension,
            (Expect::MoreSize | Expect::Extension, b'\r') => Expect::SizeEnd,
            (Expect::Extension, byte) if byte != b'\n' => Expect::Extension,
            (Expect::SizeEnd, b'\n') if self.left == 0 => Expect::Trailer,
            (Expect::SizeEnd, b'\n') => {
                self.lines = 0;
                Expect::Data
            }
            (Expect::DataReturn, b'\r') => Expect::DataEnd,
            (Expect::DataEnd, b'\n') => Expect::Size,
            (Expect::Trailer, b'\r') => Expect::LastEnd,
            (Expect::LastEnd, b'\n') => return Ok(true),
            (Expect::Trailer | Expect::TrailerLine, byte) if byte != b'\n' && byte != b'\r' => Expect::TrailerLine,
            (Expect::TrailerLine, b'\r') => Expect::TrailerEnd,
            (Expect::TrailerEnd, b'\n') => Expect::Trailer,
            _ => return Err(Broken),
        };
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_found_however_the_bytes_come() {
        let body = "5\r\nhello\r\n1A;name=value\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nTrailer: x\r\n\r\n";
        let more = format!("{body}HTTP/1.1 200 OK");
        assert_eq!(Chunks::default().pass(more.as_bytes()), Ok((body.len(), true)));
        for piece in 1..body.len() {
            let mut chunks = Chunks::default();
            let mut passed = 0;
            let mut is_over = false;
            for bytes in more.as_bytes().chunks(piece) {
                let (count, over) = chunks.pass(bytes).unwrap();
                passed += count;
                is_over = over;
                if over {
                    break;
                }
                assert_eq!(count, bytes.len());
            }
            assert!(is_over && passed == body.len(), "in pieces of {piece}");
        }
    }

    #[test]
    fn what_is_no_chunk_is_broken() {
        for body in ["x\r\n", "\r\n", "5\nhello", "5\r\nhelloX", "-1\r\n", "11111111111111111\r\n", "0\r\nA: b\n\r\n"] {
            assert_eq!(Chunks::default().pass(body.as_bytes()), Err(Broken), "{body:?}");
        }
        assert_eq!(Chunks::default().pass("1;".repeat(10_000).as_bytes()), Err(Broken), "a line without an end");
    }
}
