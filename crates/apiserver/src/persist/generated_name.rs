//! Names generated from `generateName`.

use rand::Rng;

/// No vowels, so that no words appear, and nothing that looks like another character.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;
const MAX_LENGTH: usize = 63;

/// How many names are tried when the generated ones exist already.
pub const MAX_ATTEMPTS: usize = 8;

/// A name that starts with `base`, cut so that the whole stays a DNS label.
pub fn generate(base: &str) -> String {
    let mut cut = base.len().min(MAX_LENGTH - SUFFIX_LENGTH);
    while !base.is_char_boundary(cut) {
        cut -= 1;
    }
    let mut random = rand::rng();
    let suffix = (0..SUFFIX_LENGTH).map(|_| ALPHABET[random.random_range(0..ALPHABET.len())] as char);
    base[..cut].chars().chain(suffix).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_keep_their_base_and_fit() {
        let name = generate("web-");
        assert!(name.starts_with("web-") && name.len() == 9);
        assert!(name.bytes().skip(4).all(|byte| ALPHABET.contains(&byte)));
        assert_eq!(generate(&"a".repeat(80)).len(), 63);
    }
}
