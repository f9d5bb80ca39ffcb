//! Names that the server makes up.

use rand::Rng;

/// No vowels, so that no words appear, and nothing that looks like another character.
const CHARACTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX: usize = 5;
const LONGEST: usize = 63;

/// How often a name that is taken already is made up anew.
pub const ATTEMPTS: usize = 8;

/// A name that begins with `base`, cut so that the whole stays a DNS label.
pub fn generate(base: &str) -> String {
    let mut cut = base.len().min(LONGEST - SUFFIX);
    while !base.is_char_boundary(cut) {
        cut -= 1;
    }
    let mut random = rand::rng();
    let suffix = (0..SUFFIX).map(|_| CHARACTERS[random.random_range(0..CHARACTERS.len())] as char);
    base[..cut].chars().chain(suffix).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_keep_their_base_and_fit() {
        let name = generate("web-");
        assert!(name.starts_with("web-") && name.len() == 9);
        assert!(name.bytes().skip(4).all(|byte| CHARACTERS.contains(&byte)));
        assert_eq!(generate(&"a".repeat(80)).len(), 63);
    }
}
