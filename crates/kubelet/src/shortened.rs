//! Limits texts that others write: output of containers, errors of drivers and the runtime.

/// Cuts a text to at most so many bytes, between characters.
pub fn shorten(text: &mut String, limit: usize) {
    text.truncate(text.floor_char_boundary(limit));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        for (text, limit, expected) in [("abc", 5, "abc"), ("abc", 2, "ab"), ("aäb", 2, "a"), ("ä", 0, "")] {
            let mut text = text.to_string();
            shorten(&mut text, limit);
            assert_eq!(text, expected);
        }
    }
}
