//! Field selectors: `metadata.name=a,status.phase!=Running`.

use std::borrow::Cow;
use std::fmt;

use super::SelectorError;

/// A field selector; all of its terms must match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSelector {
    /// The terms, all of which must match.
    pub terms: Vec<FieldRequirement>,
}

/// One requirement on a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRequirement {
    /// The path of the field.
    pub field: String,
    /// The value to compare with.
    pub value: String,
    /// Whether the field must have a different value.
    pub negated: bool,
}

impl FieldSelector {
    /// Reads `metadata.name=one,spec.nodeName!=two`; `\` escapes `,`, `=` and itself in values.
    pub fn parse(text: &str) -> Result<FieldSelector, SelectorError> {
        let mut parts = split_terms(text);
        parts.sort_unstable();
        let terms = parts.into_iter().filter(|part| !part.is_empty()).map(|part| term(text, part));
        Ok(FieldSelector { terms: terms.collect::<Result<_, _>>()? })
    }

    /// Whether the selector matches all objects.
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether the selector matches these values; absent fields are empty.
    pub fn matches_with<'a>(&self, value: impl Fn(&str) -> Cow<'a, str>) -> bool {
        self.terms.iter().all(|term| (value(&term.field) == term.value.as_str()) != term.negated)
    }

    /// The value that the selector requires of a field.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|term| !term.negated && term.field == field).map(|term| term.value.as_str())
    }
}

/// Escapes a value for a field selector.
pub fn escape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for character in value.chars() {
        if matches!(character, '\\' | ',' | '=') {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let operator = if term.negated { "!=" } else { "=" };
            write!(out, "{comma}{}{operator}{}", term.field, escape(&term.value))?;
        }
        Ok(())
    }
}

fn split_terms(text: &str) -> Vec<&str> {
    let mut escaped = false;
    text.split(|character| {
        let splits = !escaped && character == ',';
        escaped = !escaped && character == '\\';
        splits
    })
    .collect()
}

fn term(selector: &str, part: &str) -> Result<FieldRequirement, SelectorError> {
    let not_understood = || SelectorError(format!("invalid selector: '{selector}'; can't understand '{part}'"));
    let at = part.find('=').ok_or_else(not_understood)?;
    let (field, negated) = match part[..at].strip_suffix('!') {
        Some(field) => (field, true),
        None => (&part[..at], false),
    };
    let value = &part[at + 1..];
    let value = if negated { value } else { value.strip_prefix('=').unwrap_or(value) };
    Ok(FieldRequirement { field: field.to_owned(), value: unescape(value)?, negated })
}

fn unescape(value: &str) -> Result<String, SelectorError> {
    let mut out = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some(escaped @ ('\\' | ',' | '=')) => out.push(escaped),
                other => {
                    let sequence: String = ['\\'].into_iter().chain(other).collect();
                    let message = format!("invalid field selector: invalid escape sequence: {sequence}");
                    return Err(SelectorError(message));
                }
            },
            ',' | '=' => {
                let code = character as u32;
                return Err(SelectorError(format!("invalid field selector: unescaped character in value: {code}")));
            }
            plain => out.push(plain),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_read_and_written() {
        for (text, expected) in [
            ("", ""),
            (",", ""),
            ("b=1,a==2", "a=2,b=1"),
            ("a!=1", "a!=1"),
            ("a=", "a="),
            (r"a=x\,y\=z\\", r"a=x\,y\=z\\"),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap().to_string(), expected, "{text}");
        }
        assert_eq!(FieldSelector::parse(r"a=x\,y").unwrap().exact("a"), Some("x,y"));
    }

    #[test]
    fn errors_read_as_in_kubernetes() {
        for (text, message) in [
            ("a", "invalid selector: 'a'; can't understand 'a'"),
            ("a===b", "invalid field selector: unescaped character in value: 61"),
            (r"a=\x", r"invalid field selector: invalid escape sequence: \x"),
            (r"a=\", r"invalid field selector: invalid escape sequence: \"),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap_err().0, message, "{text}");
        }
    }

    #[test]
    fn terms_match() {
        let value = |field: &str| Cow::Borrowed(if field == "metadata.name" { "one" } else { "" });
        for (text, selected) in [
            ("metadata.name=one", true),
            ("metadata.name!=one", false),
            ("spec.nodeName=", true),
            ("spec.nodeName!=", false),
            ("metadata.name=one,spec.nodeName=n", false),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap().matches_with(value), selected, "{text}");
        }
    }
}
