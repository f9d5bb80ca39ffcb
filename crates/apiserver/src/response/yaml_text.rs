//! Chooses the style of a string in YAML: plain where every parser reads it as that string, quoted otherwise.

use knarr_api::decode;
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Plain,
    Single,
    Double,
    /// A literal block, after a bar.
    Literal,
}

/// The style of a string.
pub fn style(text: &str) -> Style {
    let found = Findings::of(text);
    if text.contains('\n') {
        return if found.block_allowed() { Style::Literal } else { Style::Double };
    }
    if text.is_empty() || found.plain_allowed() && is_read_as_another_type(text) {
        return Style::Double;
    }
    match (found.plain_allowed(), found.special) {
        (true, _) => Style::Plain,
        (false, false) => Style::Single,
        (false, true) => Style::Double,
    }
}

pub fn single_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

pub fn double_quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\0' => out.push_str("\\0"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            '\u{1b}' => out.push_str("\\e"),
            '\u{85}' => out.push_str("\\N"),
            '\u{a0}' => out.push_str("\\_"),
            '\u{2028}' => out.push_str("\\L"),
            '\u{2029}' => out.push_str("\\P"),
            plain if is_printable(plain) => out.push(plain),
            other if u32::from(other) <= 0xff => out.push_str(&format!("\\x{:02X}", u32::from(other))),
            other if u32::from(other) <= 0xffff => out.push_str(&format!("\\u{:04X}", u32::from(other))),
            other => out.push_str(&format!("\\U{:08X}", u32::from(other))),
        }
    }
    out.push('"');
    out
}

/// The properties of a string that require quotes.
#[derive(Default)]
struct Findings {
    indicators: bool,
    special: bool,
    blank_at_the_edge: bool,
    ends_in_space: bool,
    space_before_break: bool,
}

impl Findings {
    fn of(text: &str) -> Findings {
        let mut found = Findings {
            indicators: text.starts_with("---") || text.starts_with("..."),
            blank_at_the_edge: text.starts_with([' ', '\n']) || text.ends_with([' ', '\n']),
            ends_in_space: text.ends_with(' '),
            space_before_break: text.contains(" \n"),
            special: false,
        };
        let mut before: Option<char> = None;
        let mut rest = text.chars().peekable();
        while let Some(character) = rest.next() {
            let then_blank = rest.peek().is_none_or(|next| matches!(next, ' ' | '\t'));
            let after_blank = before.is_none_or(|before| matches!(before, ' ' | '\t' | '\n'));
            found.indicators |= match character {
                ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`' => {
                    before.is_none()
                }
                '?' | '-' => before.is_none() && then_blank,
                ':' => then_blank,
                '#' => after_blank,
                _ => false,
            };
            found.special |= character != '\n' && !is_printable(character);
            before = Some(character);
        }
        found
    }

    fn plain_allowed(&self) -> bool {
        !self.indicators && !self.special && !self.blank_at_the_edge && !self.space_before_break
    }

    fn block_allowed(&self) -> bool {
        !self.ends_in_space && !self.special && !self.space_before_break
    }
}

fn is_printable(character: char) -> bool {
    match u32::from(character) {
        0x20..=0x7e | 0xa0..=0xd7ff | 0x1_0000.. => true,
        code @ 0xe000..=0xfffd => code != 0xfeff,
        _ => false,
    }
}

/// Whether a parser would read the string as a number, a time or a keyword of YAML.
fn is_read_as_another_type(text: &str) -> bool {
    if text == "<<" || is_time(text) || is_sexagesimal(text) {
        return true;
    }
    match decode::untyped_yaml(text.as_bytes()) {
        Ok(read) => !matches!(read.value, Value::String(read) if read == text),
        Err(_) => true,
    }
}

/// A date, or a date with a time of day.
fn is_time(text: &str) -> bool {
    let digits = |part: &str, max: usize| {
        !part.is_empty() && part.len() <= max && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    let mut parts = text.splitn(3, '-');
    let (Some(year), Some(month), Some(rest)) = (parts.next(), parts.next(), parts.next()) else { return false };
    if year.len() != 4 || !digits(year, 4) || !digits(month, 2) {
        return false;
    }
    let (day, clock) = match rest.split_once(['T', 't', ' ']) {
        Some((day, clock)) => (day, Some(clock)),
        None => (rest, None),
    };
    let is_clock = |clock: &str| {
        let clock = clock.split_once(['Z', '+', '-']).map_or(clock, |(clock, _)| clock);
        let clock = clock.split_once('.').map_or(clock, |(clock, _)| clock);
        clock.split(':').count() == 3 && clock.split(':').all(|part| digits(part, 2))
    };
    digits(day, 2) && clock.is_none_or(is_clock)
}

/// A number in base 60, such as `12:30:45`, as YAML 1.1 reads it.
fn is_sexagesimal(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let whole = unsigned.split_once('.').map_or(unsigned, |(whole, _)| whole);
    let mut parts = whole.split(':');
    let first = parts.next().unwrap_or_default();
    let starts_with_digit = first.starts_with(|c: char| c.is_ascii_digit())
        && first.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    let rest: Vec<&str> = parts.collect();
    starts_with_digit
        && !rest.is_empty()
        && rest.iter().all(|part| part.len() <= 2 && part.parse::<u8>().is_ok_and(|it| it < 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted_where_necessary() {
        for (text, expected) in [
            ("plain", Style::Plain),
            ("f:spec", Style::Plain),
            (".", Style::Plain),
            ("k:{\"name\":\"c\"}", Style::Plain),
            ("a b", Style::Plain),
            ("/x", Style::Plain),
            ("AAE=", Style::Plain),
            ("", Style::Double),
            ("1", Style::Double),
            ("1.5", Style::Double),
            ("true", Style::Double),
            ("yes", Style::Double),
            ("null", Style::Double),
            ("2026-01-02T03:04:05Z", Style::Double),
            ("2026-01-02", Style::Double),
            ("12:30", Style::Double),
            ("*", Style::Single),
            ("x: y", Style::Single),
            (" x", Style::Single),
            ("- x", Style::Single),
            ("x\ty", Style::Double),
            ("a\nb", Style::Literal),
            ("a \nb", Style::Double),
        ] {
            assert_eq!(style(text), expected, "{text:?}");
        }
    }
}
