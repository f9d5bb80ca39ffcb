//! Validation of names and labels, with the messages of Kubernetes.

use crate::field::{Errors, Path};

const LABEL_FORM: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";

/// Checks a name and returns the errors; empty if the name is valid.
pub type Check = fn(&str) -> Vec<String>;

/// An RFC 1123 label.
pub fn dns_label(name: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if name.len() > 63 {
        wrong.push(too_long(63));
    }
    if !is_label(name) && is_subdomain(name) {
        wrong.push("must not contain dots".to_owned());
    } else if !is_label(name) {
        wrong.push(format!(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
             end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
             '{LABEL_FORM}')"
        ));
    }
    wrong
}

/// An RFC 1123 subdomain with the message for its length that declarative validation uses.
pub fn long_name(name: &str) -> Vec<String> {
    dns_subdomain(name)
        .into_iter()
        .map(|wrong| if wrong == too_long(253) { "must be no more than 253 bytes".to_owned() } else { wrong })
        .collect()
}

/// An RFC 1123 subdomain.
pub fn dns_subdomain(name: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if name.len() > 253 {
        wrong.push(too_long(253));
    }
    if !is_subdomain(name) {
        wrong.push(format!(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '{LABEL_FORM}(\\.{LABEL_FORM})*')"
        ));
    }
    wrong
}

/// An RFC 1035 label, which starts with a letter: the names of Services.
pub fn dns_1035_label(name: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if name.len() > 63 {
        wrong.push(too_long(63));
    }
    if !is_label(name) || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        wrong.push(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
             validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
                .to_owned(),
        );
    }
    wrong
}

/// A name that is one segment of a path: the names of RBAC objects.
pub fn path_segment(name: &str) -> Vec<String> {
    if name == "." || name == ".." {
        return vec![format!("may not be '{name}'")];
    }
    let mut wrong = Vec::new();
    for character in ['/', '%'] {
        if name.contains(character) {
            wrong.push(format!("may not contain '{character}'"));
        }
    }
    wrong
}

/// A label or annotation key: an optional DNS prefix and a name.
pub fn qualified_name(name: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let parts: Vec<&str> = name.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                wrong.push("prefix part must be non-empty".to_owned());
            } else {
                let in_bytes = |text: String| if text == too_long(253) { too_long_bytes(253) } else { text };
                wrong.extend(dns_subdomain(prefix).into_iter().map(in_bytes).map(|text| format!("prefix part {text}")));
            }
            *name
        }
        _ => {
            return vec![
                "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
                 with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for \
                 validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and \
                 '/' (e.g. 'example.com/MyName')"
                    .to_owned(),
            ];
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        wrong.push(format!("name part {}", too_long_bytes(63)));
    }
    if !is_qualified_part(name) {
        wrong.push(
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
             alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
             '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
                .to_owned(),
        );
    }
    wrong
}

/// The value of a label.
pub fn label_value(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > 63 {
        wrong.push(too_long_bytes(63));
    }
    if !value.is_empty() && !is_qualified_part(value) {
        wrong.push(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
             for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
                .to_owned(),
        );
    }
    wrong
}

/// Checks a name and adds its errors.
pub fn check(errors: &mut Errors, path: &Path<'_>, name: &str, check: Check) {
    for wrong in check(name) {
        errors.invalid(path, name, wrong);
    }
}

/// The message for long names. It says characters, but bytes are counted; labels have one that says bytes.
pub fn too_long(limit: usize) -> String {
    format!("must be no more than {limit} characters")
}

fn too_long_bytes(limit: usize) -> String {
    format!("must be no more than {limit} bytes")
}

/// Whether a name has the form of an RFC 1123 label, of any length.
pub fn is_label(name: &str) -> bool {
    let bytes = name.as_bytes();
    let ends = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    bytes.first().is_some_and(ends) && bytes.last().is_some_and(ends) && bytes.iter().all(|b| ends(b) || *b == b'-')
}

/// Whether a name has the form of an RFC 1123 subdomain, of any length.
pub fn is_subdomain(name: &str) -> bool {
    name.split('.').all(is_label)
}

fn is_qualified_part(name: &str) -> bool {
    let bytes = name.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_accepted_or_refused() {
        let long = "a".repeat(64);
        for (check, name, accepted) in [
            (dns_label as Check, "a-1", true),
            (dns_label, "a.b", false),
            (dns_label, "", false),
            (dns_label, &long, false),
            (dns_subdomain, "a.b-c", true),
            (dns_subdomain, "a..b", false),
            (dns_subdomain, "Bad_Name", false),
            (dns_1035_label, "1a", false),
            (dns_1035_label, "a1", true),
            (qualified_name, "example.com/My_Name", true),
            (qualified_name, "a b", false),
            (qualified_name, "/x", false),
            (qualified_name, "a/b/c", false),
            (label_value, "", true),
            (label_value, "-a", false),
            (path_segment, "system:node", true),
            (path_segment, "a/b", false),
            (path_segment, "..", false),
        ] {
            assert_eq!(check(name).is_empty(), accepted, "{name}");
        }
    }
    #[test]
    fn keys_are_names_with_an_optional_domain() {
        for (text, errors) in [
            ("a", 0),
            ("example.org/a-b_c.d", 0),
            ("", 2),
            ("/a", 1),
            ("A.b/c", 1),
            ("a/b/c", 1),
            ("-a", 1),
            (&"a".repeat(64), 1),
            (&format!("{}/a", "a".repeat(254)), 1),
        ] {
            let found = qualified_name(text);
            assert_eq!(found.len(), errors, "{text}: {found:?}");
        }
    }
}
