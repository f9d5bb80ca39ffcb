//! The form of label and annotation keys: a name, optionally after a DNS subdomain and a slash.

const FORM: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
    character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
    must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// Why a text is not a qualified name, in Kubernetes' words; none if it is one.
pub fn errors(text: &str) -> Vec<String> {
    let parts: Vec<&str> = text.split('/').collect();
    let (prefix, name) = match parts.as_slice() {
        [name] => (None, *name),
        [prefix, name] => (Some(*prefix), *name),
        _ => {
            return vec![format!(
                "a valid label key {FORM} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    let mut errors = Vec::new();
    match prefix {
        Some("") => errors.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => {
            if prefix.len() > 253 {
                errors.push("prefix part must be no more than 253 bytes".to_owned());
            }
            if !is_subdomain(prefix) {
                errors.push(format!("prefix part {SUBDOMAIN}"));
            }
        }
        None => {}
    }
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        errors.push("name part must be no more than 63 bytes".to_owned());
    }
    if !is_name(name) {
        errors.push(format!("name part {FORM}"));
    }
    errors
}

fn is_name(name: &str) -> bool {
    name.starts_with(|sign: char| sign.is_ascii_alphanumeric())
        && name.ends_with(|sign: char| sign.is_ascii_alphanumeric())
        && name.chars().all(|sign| sign.is_ascii_alphanumeric() || "-_.".contains(sign))
}

fn is_subdomain(text: &str) -> bool {
    let is_edge = |sign: char| sign.is_ascii_lowercase() || sign.is_ascii_digit();
    text.split('.').all(|label| {
        label.starts_with(is_edge) && label.ends_with(is_edge) && label.chars().all(|sign| is_edge(sign) || sign == '-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_names_with_an_optional_domain() {
        for (text, count) in [
            ("a", 0),
            ("example.org/a-b_c.d", 0),
            ("", 2),
            ("/a", 1),
            ("A.b/c", 1),
            ("a/b/c", 1),
            ("-a", 1),
            (&"a".repeat(64), 1),
        ] {
            assert_eq!(errors(text).len(), count, "{text}: {:?}", errors(text));
        }
    }
}
