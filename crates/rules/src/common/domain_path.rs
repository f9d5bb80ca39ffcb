//! Validation of names with a domain prefix, such as `example.com/controller`.

use knarr_api::field::{Errors, Path};
use knarr_api::names;

const FORM: &str = "[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+";

/// Validates a name with a domain prefix.
pub fn validate(errors: &mut Errors, path: &Path<'_>, text: &str) {
    match text.split_once('/') {
        _ if text.is_empty() => errors.required(path, ""),
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            names::check(errors, path, domain, names::dns_subdomain);
            if !rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte)) {
                errors.invalid(path, rest, format!("Invalid path (regex used for validation is '{FORM}')"));
            }
        }
        _ => errors.invalid(path, text, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_need_a_domain() {
        for (text, wrong) in [
            ("example.com/a", vec![]),
            ("", vec!["a: Required value"]),
            ("a", vec!["a: Invalid value: \"a\": must be a domain-prefixed path (such as \"acme.io/foo\")"]),
            (
                "a.b/ ",
                vec![
                    "a: Invalid value: \" \": Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')",
                ],
            ),
        ] {
            let mut errors = Errors::new();
            validate(&mut errors, &Path::root("a"), text);
            let read: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
            assert_eq!(read, wrong);
        }
    }
}
