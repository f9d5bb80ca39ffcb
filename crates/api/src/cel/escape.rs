//! Escaping of property names that are not identifiers in expressions.

use std::borrow::Cow;

/// Reserved words of the language, which are no identifiers.
pub const RESERVED_WORDS: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

fn is_reserved(name: &str) -> bool {
    RESERVED_WORDS.contains(&name) || name == "__unused__"
}

const PARTS: [(&str, &str); 4] = [("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__")];

/// The escaped name of a property, or none if it has none.
pub fn escape(name: &str) -> Option<Cow<'_, str>> {
    let mut characters = name.chars();
    let first = characters.next()?;
    if !(first.is_ascii_alphabetic() || first == '_')
        || !characters.all(|c| c.is_ascii_alphanumeric() || "_.-/".contains(c))
    {
        return None;
    }
    if is_reserved(name) {
        return Some(format!("__{name}__").into());
    }
    if !PARTS.iter().any(|(plain, _)| name.contains(plain)) {
        return Some(name.into());
    }
    let mut escaped = String::new();
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        match PARTS.iter().find(|(plain, _)| rest.starts_with(plain)) {
            Some((plain, written)) => {
                escaped.push_str(written);
                rest = &rest[plain.len()..];
            }
            None => {
                escaped.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    Some(escaped.into())
}

/// The property with that escaped name.
pub fn unescape(written: &str) -> Cow<'_, str> {
    if !written.contains("__") {
        return written.into();
    }
    if let Some(inner) = written.strip_prefix("__").and_then(|rest| rest.strip_suffix("__"))
        && is_reserved(inner)
    {
        return inner.to_owned().into();
    }
    let mut name = String::new();
    let mut rest = written;
    while let Some(c) = rest.chars().next() {
        match PARTS.iter().find(|(_, written)| rest.starts_with(written)) {
            Some((plain, written)) => {
                name.push_str(plain);
                rest = &rest[written.len()..];
            }
            None => {
                name.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_round_trip() {
        for (name, written) in [
            ("plain", "plain"),
            ("a.b-c/d", "a__dot__b__dash__c__slash__d"),
            ("a__b", "a__underscores__b"),
            ("namespace", "__namespace__"),
        ] {
            assert_eq!(escape(name).as_deref(), Some(written));
            assert_eq!(unescape(written), name);
        }
        assert_eq!(escape("1x"), None);
        assert_eq!(escape("a b"), None);
    }
}
