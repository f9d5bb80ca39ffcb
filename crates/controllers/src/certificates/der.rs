//! Writes the few DER types that certificates need.

use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::tz::TimeZone;

pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const OCTETS: u8 = 0x04;
pub(super) const BOOLEAN: u8 = 0x01;

/// A value preceded by its tag and length.
pub(super) fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut written = vec![tag];
    match content.len() {
        short @ ..0x80 => written.push(short as u8),
        long => {
            let bytes: Vec<u8> = long.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
            written.push(0x80 | bytes.len() as u8);
            written.extend(bytes);
        }
    }
    written.extend_from_slice(content);
    written
}

pub(super) fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    element(SEQUENCE, &parts.concat())
}

/// A positive number of any size, the most significant byte first.
pub(super) fn integer(bytes: &[u8]) -> Vec<u8> {
    let mut shortest: Vec<u8> = bytes.iter().copied().skip_while(|byte| *byte == 0).collect();
    if shortest.first().is_none_or(|first| first & 0x80 != 0) {
        shortest.insert(0, 0);
    }
    element(0x02, &shortest)
}

/// A bit string of whole bytes.
pub(super) fn bits(bytes: &[u8]) -> Vec<u8> {
    element(0x03, &[&[0], bytes].concat())
}

/// Named bits, most significant bit first, without trailing zero bits.
pub(super) fn named_bits(byte: u8) -> Vec<u8> {
    if byte == 0 { element(0x03, &[0]) } else { element(0x03, &[byte.trailing_zeros() as u8, byte]) }
}

/// Years have two digits until 2049, four from then on.
pub(super) fn time(at: Timestamp) -> Vec<u8> {
    let at = at.to_zoned(TimeZone::UTC);
    let (tag, form) = if at.year() < 2050 { (0x17, "%y%m%d%H%M%SZ") } else { (0x18, "%Y%m%d%H%M%SZ") };
    element(tag, at.strftime(form).to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_in_their_shortest_form() {
        assert_eq!(element(4, b"ab"), [4, 2, b'a', b'b']);
        assert_eq!(element(4, &[7; 200])[..3], [4, 0x81, 200]);
        assert_eq!(element(4, &[7; 300])[..4], [4, 0x82, 1, 44]);
        assert_eq!(integer(&[0, 0, 5]), [2, 1, 5]);
        assert_eq!(integer(&[0x80]), [2, 2, 0, 0x80]);
        assert_eq!(integer(&[]), [2, 1, 0]);
        assert_eq!(named_bits(0b1010_0000), [3, 2, 5, 0b1010_0000]);
        assert_eq!(named_bits(0), [3, 1, 0]);
        assert_eq!(sequence(&[&[1], &[2]]), [0x30, 2, 1, 2]);
    }

    #[test]
    fn times_change_their_form_in_2050() {
        let written = |text: &str| time(text.parse().unwrap());
        assert_eq!(written("2026-01-02T03:04:05Z")[2..], *b"260102030405Z");
        assert_eq!(written("2050-01-02T03:04:05Z"), [&[0x18, 15][..], b"20500102030405Z"].concat());
    }
}
