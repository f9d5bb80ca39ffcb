//! Checks of the format of strings and numbers. Each reports or returns its errors; there are none for a valid value.

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use serde_json::Value;

use super::checks::between;

/// Returns whether a number is a valid port.
pub fn is_port(port: i64) -> bool {
    (1..=65535).contains(&port)
}

/// Checks a port number.
pub fn port_number(errors: &mut Errors, path: &Path<'_>, port: i64) {
    if !is_port(port) {
        errors.invalid(path, port, between(1, 65535));
    }
}

/// Checks a port number or the name of a container port.
pub fn port_number_or_name(errors: &mut Errors, path: &Path<'_>, port: &Value) {
    match port {
        Value::String(name) => names::check(errors, path, name, port_name),
        other => port_number(errors, path, other.as_i64().unwrap_or_default()),
    }
}

/// Checks a port name, which must be an IANA service name: `http`, `dns-tcp`.
pub fn port_name(name: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if name.len() > 15 {
        wrong.push(names::too_long(15));
    }
    let plain = |byte: u8| byte == b'-' || byte.is_ascii_lowercase() || byte.is_ascii_digit();
    if name.is_empty() || !name.bytes().all(plain) {
        wrong.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !name.bytes().any(|byte| byte.is_ascii_lowercase()) {
        wrong.push("must contain at least one letter (a-z)".to_owned());
    }
    if name.contains("--") {
        wrong.push("must not contain consecutive hyphens".to_owned());
    }
    if name.starts_with('-') || name.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".to_owned());
    }
    wrong
}

/// Checks the name of an environment variable: printable ASCII without `=`.
pub fn variable_name(name: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if name.is_empty() {
        wrong.push("environment variable name must be non-empty".to_owned());
    }
    if !name.bytes().all(|byte| (0x20..0x7f).contains(&byte) && byte != b'=') {
        let text = "a valid environment variable name must consist only of printable ASCII characters other than '='";
        wrong.push(text.to_owned());
    }
    wrong
}

/// Checks a key of a ConfigMap or Secret.
pub fn config_key(key: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if key.len() > 253 {
        wrong.push(names::too_long(253));
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if key.is_empty() || !key.bytes().all(plain) {
        wrong.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
             'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                .to_owned(),
        );
    }
    match key {
        "." => wrong.push("must not be '.'".to_owned()),
        ".." => wrong.push("must not be '..'".to_owned()),
        _ if key.starts_with("..") => wrong.push("must not start with '..'".to_owned()),
        _ => {}
    }
    wrong
}

/// Checks the name of an HTTP header.
pub fn header_name(name: &str) -> Vec<String> {
    if !name.is_empty() && name.bytes().all(|byte| byte == b'-' || byte.is_ascii_alphanumeric()) {
        return Vec::new();
    }
    vec![
        "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for \
         validation is '[-A-Za-z0-9]+')"
            .to_owned(),
    ]
}

/// Checks a DNS search domain: a subdomain that may contain underscores.
pub fn search_domain(name: &str) -> Vec<String> {
    const LABEL: &str = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
    let mut wrong = Vec::new();
    if name.len() > 253 {
        wrong.push(names::too_long(253));
    }
    let is_label = |label: &str| {
        let rest = label.strip_prefix('_').unwrap_or(label).as_bytes();
        let ends = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        rest.first().is_some_and(ends)
            && rest.last().is_some_and(ends)
            && rest.iter().all(|byte| ends(byte) || matches!(byte, b'-' | b'_'))
    };
    if !name.split('.').all(is_label) {
        wrong.push(format!(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and \
             must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '{LABEL}(\\.{LABEL})*')"
        ));
    }
    wrong
}

/// Checks a relative path inside a volume, which must not leave it.
pub fn local_descending_path(errors: &mut Errors, path: &Path<'_>, target: &str) {
    if target.starts_with('/') {
        errors.invalid(path, target, "must be a relative path");
    }
    reject_parent_references(errors, path, target);
}

/// Rejects `..` in a path.
pub fn reject_parent_references(errors: &mut Errors, path: &Path<'_>, target: &str) {
    if target.split('/').any(|part| part == "..") {
        errors.invalid(path, target, "must not contain '..'");
    }
}

/// The same, where the path must not start with `..`, which the kubelet reserves.
pub fn local_non_reserved_path(errors: &mut Errors, path: &Path<'_>, target: &str) {
    local_descending_path(errors, path, target);
    if target.starts_with("..") && !target.starts_with("../") {
        errors.invalid(path, target, "must not start with '..'");
    }
}

/// Checks a file mode.
pub fn file_mode(errors: &mut Errors, path: &Path<'_>, mode: Option<i64>) {
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        errors.invalid(path, mode, "must be a number between 0 and 0777 (octal), both inclusive");
    }
}

/// Checks a user or group ID.
pub fn user_number(errors: &mut Errors, path: &Path<'_>, number: Option<i64>) {
    let limit = i64::from(i32::MAX);
    if let Some(number) = number.filter(|number| !(0..=limit).contains(number)) {
        errors.invalid(path, number, between(0, limit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_api::names::Check;

    #[test]
    fn forms_are_accepted_or_rejected() {
        for (check, text, accepted) in [
            (port_name as Check, "http", true),
            (port_name, "", false),
            (port_name, "80", false),
            (port_name, "a--b", false),
            (port_name, "-a", false),
            (port_name, "sixteen-letters-x", false),
            (variable_name, "A b$", true),
            (variable_name, "A=B", false),
            (variable_name, "é", false),
            (config_key, "a.b_c-D", true),
            (config_key, "..", false),
            (config_key, "..a", false),
            (config_key, "a/b", false),
            (header_name, "X-A", true),
            (header_name, "X A", false),
            (search_domain, "_tcp.example.com", true),
            (search_domain, "A", false),
        ] {
            assert_eq!(check(text).is_empty(), accepted, "{text}");
        }
    }

    #[test]
    fn paths_stay_inside() {
        for (target, count) in [("a/b", 0), ("/a", 1), ("a/../b", 1), ("..a", 1), ("../a", 1), ("a..b", 0)] {
            let mut errors = Errors::new();
            local_non_reserved_path(&mut errors, &Path::root("path"), target);
            assert_eq!(errors.0.len(), count, "{target}");
        }
    }
}
