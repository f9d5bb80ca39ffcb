//! Short names for contents: FNV-1a sums written in letters that form no words.

const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// 32-bit FNV-1 over the parts, one after the other.
pub fn fnv1(parts: &[&[u8]]) -> u32 {
    parts.iter().flat_map(|part| part.iter()).fold(OFFSET, |sum, byte| sum.wrapping_mul(PRIME) ^ u32::from(*byte))
}

/// 32-bit FNV-1a over the parts, one after the other.
pub fn fnv1a(parts: &[&[u8]]) -> u32 {
    parts.iter().flat_map(|part| part.iter()).fold(OFFSET, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(PRIME))
}

const OFFSET: u32 = 2_166_136_261;
const PRIME: u32 = 16_777_619;

/// Each character of the text as a letter of the safe alphabet.
pub fn safe(text: &str) -> String {
    text.bytes().map(|byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()])).collect()
}

/// The suffix the API server would give a generated name.
pub fn random_suffix() -> String {
    (0..5).map(|_| char::from(ALPHABET[rand::random_range(0..ALPHABET.len())])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_sums() {
        assert_eq!(fnv1a(&[b"foobar"]), 0xbf9c_f968);
        assert_eq!(fnv1a(&[b"foo", b"bar"]), 0xbf9c_f968);
        assert_eq!(fnv1(&[b"foobar"]), 0x31f0_b262);
        assert_eq!(safe("0123456789"), "456789bcdf");
    }
}
