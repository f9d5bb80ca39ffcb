//! Quoted text, as `strconv.Quote` and `%q` write it.

use std::fmt::Write as _;

/// Quotes a text.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        escape(&mut quoted, character);
    }
    quoted.push('"');
    quoted
}

/// Appends a character as it stands between quotation marks.
pub fn escape(quoted: &mut String, character: char) {
    match character {
        '"' => quoted.push_str("\\\""),
        '\\' => quoted.push_str("\\\\"),
        '\x07' => quoted.push_str("\\a"),
        '\x08' => quoted.push_str("\\b"),
        '\x0c' => quoted.push_str("\\f"),
        '\n' => quoted.push_str("\\n"),
        '\r' => quoted.push_str("\\r"),
        '\t' => quoted.push_str("\\t"),
        '\x0b' => quoted.push_str("\\v"),
        // Writing to a string cannot fail.
        control if control.is_ascii_control() => drop(write!(quoted, "\\x{:02x}", control as u32)),
        hidden if hidden.is_control() || hidden == '\u{ad}' => drop(write!(quoted, "\\u{:04x}", hidden as u32)),
        plain => quoted.push(plain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_are_not_printable_are_escaped() {
        for (text, quoted) in [
            ("plain é", "\"plain é\""),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("\x07\x08\x0c\n\r\t\x0b", r#""\a\b\f\n\r\t\v""#),
            ("\0\x01\x7f", r#""\x00\x01\x7f""#),
            ("\u{85}\u{ad}", r#""\u0085\u00ad""#),
        ] {
            assert_eq!(quote(text), quoted);
        }
    }
}
