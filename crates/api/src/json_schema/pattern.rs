//! Translation of Go regular expressions into the syntax of the `regex` crate.

use regex::Regex;

/// Compiles a pattern in which `\d`, `\w`, `\s` and `\b` match ASCII only.
pub(crate) fn compile(pattern: &str) -> Result<Regex, String> {
    Regex::new(&translate(pattern)).map_err(|error| error.to_string())
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
}
