//! Translation of Go regular expressions into the syntax of the `regex` crate.
//!
//! A short pattern can be large when compiled, `\p{L}{1,200}` for instance. Patterns come from users, so their size is
//! estimated before they are compiled.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use regex::{Regex, RegexBuilder};
use regex_syntax::hir::{Class, Hir, HirKind};

/// How many repetitions Go accepts, nested ones multiplied.
const MAX_REPETITIONS: u64 = 1000;
/// The longest pattern that is read at all.
const MAX_LENGTH: usize = 64 << 10;
/// The largest pattern by the estimate, in bytes.
const MAX_SIZE: u64 = 8 << 20;
/// How many recent patterns are kept, and how large they may be together.
const MAX_RECENT: usize = 1000;
const MAX_RECENT_SIZE: u64 = 2 * MAX_SIZE;
/// Bytes of one state when compiled.
const STATE: u64 = 64;

/// Compiles a pattern in which `\d`, `\w`, `\s` and `\b` match ASCII only.
pub(crate) fn compile(pattern: &str) -> Result<Regex, String> {
    estimate(pattern)?;
    // The estimate decides; this limit is far above it.
    let limit = 8 * usize::try_from(MAX_SIZE).unwrap_or(usize::MAX / 8);
    RegexBuilder::new(&translate(pattern)).size_limit(limit).build().map_err(|error| last_line(&error.to_string()))
}

/// A cache of recently used patterns: an expression often compares many texts with the same pattern.
static RECENT: LazyLock<Mutex<Recent>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Recent {
    patterns: HashMap<String, (Regex, u64)>,
    size: u64,
}

fn recent() -> MutexGuard<'static, Recent> {
    RECENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Like [`compile`], but keeps what was compiled for the next call.
pub(crate) fn compile_recent(pattern: &str) -> Result<Regex, String> {
    if let Some((regex, _)) = recent().patterns.get(pattern) {
        return Ok(regex.clone());
    }
    let size = estimate(pattern)?;
    let regex = compile(pattern)?;
    let mut recent = recent();
    if recent.size.saturating_add(size) > MAX_RECENT_SIZE || recent.patterns.len() >= MAX_RECENT {
        *recent = Recent::default();
    }
    if recent.patterns.insert(pattern.to_owned(), (regex.clone(), size)).is_none() {
        recent.size += size;
    }
    Ok(regex)
}

/// The size of a pattern that an expression uses; zero for one that cannot be used.
pub(crate) fn size_recent(pattern: &str) -> u64 {
    if let Some((_, size)) = recent().patterns.get(pattern) {
        return *size;
    }
    estimate(pattern).unwrap_or_default()
}

/// The estimated size of a compiled pattern in bytes, or what is wrong with it, with Go's message where that is known.
pub fn estimate(pattern: &str) -> Result<u64, String> {
    if pattern.len() > MAX_LENGTH {
        return Err(TOO_LARGE.to_owned());
    }
    let parsed = regex_syntax::parse(&translate(pattern)).map_err(|error| last_line(&error.to_string()))?;
    check_repetitions(&parsed, MAX_REPETITIONS)?;
    let size = states(&parsed).saturating_mul(STATE);
    if size > MAX_SIZE { Err(TOO_LARGE.to_owned()) } else { Ok(size) }
}

/// The error for a pattern that would be too large.
pub const TOO_LARGE: &str = "expression too large";

/// Errors of the parser show the pattern first.
fn last_line(error: &str) -> String {
    error.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// Parsed patterns nest to a small depth only.
fn states(pattern: &Hir) -> u64 {
    match pattern.kind() {
        HirKind::Empty | HirKind::Look(_) => 1,
        HirKind::Literal(literal) => literal.0.len() as u64,
        // Each range outside ASCII takes several states of UTF-8.
        HirKind::Class(Class::Unicode(class)) => {
            class.ranges().iter().map(|range| if range.end().is_ascii() { 1 } else { 2 }).sum::<u64>().max(1)
        }
        HirKind::Class(Class::Bytes(class)) => (class.ranges().len() as u64).max(1),
        HirKind::Repetition(repetition) => {
            let times = u64::from(repetition.max.unwrap_or(repetition.min).max(1));
            states(&repetition.sub).saturating_add(1).saturating_mul(times)
        }
        HirKind::Capture(capture) => states(&capture.sub).saturating_add(2),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().fold(1, |sum: u64, part| sum.saturating_add(states(part)))
        }
    }
}

fn check_repetitions(pattern: &Hir, left: u64) -> Result<(), String> {
    match pattern.kind() {
        HirKind::Repetition(repetition) => {
            let count = u64::from(repetition.max.unwrap_or(repetition.min));
            if count > left {
                let text = match repetition.max {
                    None => format!("{{{},}}", repetition.min),
                    Some(max) if max == repetition.min => format!("{{{max}}}"),
                    Some(max) => format!("{{{},{max}}}", repetition.min),
                };
                return Err(format!("invalid repeat count: `{text}`"));
            }
            check_repetitions(&repetition.sub, left / count.max(1))
        }
        HirKind::Capture(capture) => check_repetitions(&capture.sub, left),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().try_for_each(|part| check_repetitions(part, left))
        }
        _ => Ok(()),
    }
}

fn translate(pattern: &str) -> String {
    let mut translated = String::with_capacity(pattern.len() + 16);
    let mut in_class = false;
    let mut characters = pattern.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\\' => match characters.next() {
                Some('Q') => quote_until_end(&mut characters, &mut translated),
                Some(escaped) => translated.push_str(&escape(escaped, in_class)),
                None => translated.push('\\'),
            },
            '[' if in_class && characters.peek() != Some(&':') => translated.push_str("\\["),
            '[' if !in_class => {
                in_class = true;
                translated.push('[');
                if characters.peek() == Some(&'^') {
                    translated.extend(characters.next());
                }
                // A bracket that closes nothing yet is one of the characters.
                if characters.peek() == Some(&']') {
                    characters.next();
                    translated.push_str("\\]");
                }
            }
            '[' => {
                // A named class such as [:alpha:], up to its own end.
                translated.push('[');
                let mut last = ' ';
                for named in characters.by_ref() {
                    translated.push(named);
                    if named == ']' && last == ':' {
                        break;
                    }
                    last = named;
                }
            }
            ']' => {
                in_class = false;
                translated.push(']');
            }
            '&' | '~' if in_class => {
                translated.push('\\');
                translated.push(c);
            }
            _ => translated.push(c),
        }
    }
    translated
}

fn escape(c: char, in_class: bool) -> String {
    let (members, negated) = match c {
        'd' | 'D' => ("0-9", c == 'D'),
        'w' | 'W' => ("0-9A-Za-z_", c == 'W'),
        's' | 'S' => (r"\t\n\f\r ", c == 'S'),
        'b' | 'B' if !in_class => return format!(r"(?-u:\{c})"),
        '/' | '-' | '"' | '\'' | '#' | ' ' | '@' | '%' | '!' | '=' | ':' | ',' | ';' | '<' | '>' | '`' | '&' | '~'
        | '_' => {
            return format!(r"\x{{{:x}}}", c as u32);
        }
        _ => return format!(r"\{c}"),
    };
    match (in_class, negated) {
        (true, false) => members.to_owned(),
        (true, true) => format!("[^{members}]"),
        (false, false) => format!("[{members}]"),
        (false, true) => format!("[^{members}]"),
    }
}

fn quote_until_end(characters: &mut std::iter::Peekable<std::str::Chars<'_>>, translated: &mut String) {
    while let Some(c) = characters.next() {
        if c == '\\' && characters.peek() == Some(&'E') {
            characters.next();
            return;
        }
        translated.push_str(&regex::escape(&c.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_say() {
        for (pattern, text, matches) in [
            (r"^\d+$", "123", true),
            (r"^\d+$", "١٢", false),
            (r"^[\w.-]+$", "a_b.c-d", true),
            (r"^[^\s]+$", "a b", false),
            (r"^\Qa.b\E$", "a.b", true),
            (r"^\Qa.b\E$", "axb", false),
            (r"^[[:alpha:]]+$", "abc", true),
            (r"^[a&&b]$", "&", true),
            (r"^[]x]$", "]", true),
            (r"^a\/b\-c$", "a/b-c", true),
            (r"\bx\b", "a x b", true),
        ] {
            assert_eq!(compile(pattern).map(|regex| regex.is_match(text)), Ok(matches), "{pattern} on {text}");
        }
        assert!(compile("(").is_err());
    }

    /// Patterns that are small as text are refused before they take time and memory.
    #[test]
    fn large_patterns_are_refused_without_being_compiled() {
        for (pattern, expected) in [
            ("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$".to_owned(), ""),
            (r"^[\p{L}\p{N}_-]{1,63}$".to_owned(), ""),
            ("(a{100}){10}".to_owned(), ""),
            ("a{1001}".to_owned(), "invalid repeat count: `{1001}`"),
            ("(a{100}){11}".to_owned(), "invalid repeat count: `{100}`"),
            (r"(\p{L}{1,200}){1,5}".to_owned(), TOO_LARGE),
            (r"\p{L}".repeat(5_000), TOO_LARGE),
            ("a".repeat(MAX_LENGTH + 1), TOO_LARGE),
        ] {
            let found = compile(&pattern).err().unwrap_or_default();
            assert_eq!(found, expected, "{}", &pattern[..pattern.len().min(40)]);
        }
    }
}
