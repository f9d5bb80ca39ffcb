//! A limit on the directives before a document.
//!
//! The parser compares each `%TAG` directive with all before it, which takes quadratic time.

use super::events::Failure;

/// Documents in use have one `%YAML` directive and a few `%TAG` directives at most.
const MAX_DIRECTIVES: usize = 64;

/// Refuses a text that starts with more than [`MAX_DIRECTIVES`] directives.
///
/// Only the lines before the first document count: later documents are not read.
pub(super) fn check_count(text: &str) -> Result<(), Failure> {
    let mut directives = 0;
    for (at, line) in text.split(is_break).enumerate() {
        let line = line.trim_start_matches('\u{feff}');
        if line.starts_with('%') {
            directives += 1;
            if directives > MAX_DIRECTIVES {
                return Err(Failure(format!("line {}: found more than {MAX_DIRECTIVES} directives", at + 1)));
            }
            continue;
        }
        let content = line.trim_start_matches([' ', '\t']);
        if !content.is_empty() && !content.starts_with('#') {
            return Ok(());
        }
    }
    Ok(())
}

/// The line breaks of YAML 1.1.
fn is_break(character: char) -> bool {
    matches!(character, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_directives_than_documents_use_are_refused() {
        let directives = |count: usize, line_break: &str| format!("%TAG !a! b{line_break}").repeat(count);
        for (text, accepted) in [
            (directives(MAX_DIRECTIVES, "\n"), true),
            (directives(MAX_DIRECTIVES + 1, "\n"), false),
            (directives(MAX_DIRECTIVES + 1, "\r"), false),
            (directives(MAX_DIRECTIVES + 1, "\u{2028}"), false),
            (directives(MAX_DIRECTIVES + 1, "\n\n # comment\n"), false),
            (format!("\u{feff}{}", directives(MAX_DIRECTIVES + 1, "\n")), false),
            (format!("a: |\n{}", directives(MAX_DIRECTIVES + 1, "\n")), true),
        ] {
            assert_eq!(check_count(&text).is_ok(), accepted, "{text:?}");
        }
    }
}
