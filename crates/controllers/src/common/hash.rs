//! Short names for contents: FNV-1a hashes in an alphabet that forms no words.

const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// 32-bit FNV-1 of the concatenated chunks.
pub fn fnv1(parts: &[&[u8]]) -> u32 {
    parts.iter().flat_map(|part| part.iter()).fold(OFFSET, |sum, byte| sum.wrapping_mul(PRIME) ^ u32::from(*byte))
}

/// 32-bit FNV-1a of the concatenated chunks.
pub fn fnv1a(parts: &[&[u8]]) -> u32 {
    parts.iter().flat_map(|part| part.iter()).fold(OFFSET, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(PRIME))
}

/// 128-bit FNV-1a.
pub fn fnv1a_128(bytes: &[u8]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = (1 << 88) + 0x13b;
    bytes.iter().fold(OFFSET, |sum, byte| (sum ^ u128::from(*byte)).wrapping_mul(PRIME))
}

const OFFSET: u32 = 2_166_136_261;
const PRIME: u32 = 16_777_619;

/// Maps each character of the text to the safe alphabet.
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
        assert_eq!(fnv1a_128(b"foobar"), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
        assert_eq!(safe("0123456789"), "456789bcdf");
    }
}
