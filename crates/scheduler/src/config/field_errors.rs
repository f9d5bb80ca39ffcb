//! Validation errors of a configuration with their fields, in Kubernetes' own messages.

use std::fmt::Display;

/// All errors, in the order of the file.
#[derive(Default)]
pub(super) struct FieldErrors(Vec<String>);

impl FieldErrors {
    pub(super) fn invalid(&mut self, field: &str, value: impl Display, why: &str) {
        self.add(format!("{field}: Invalid value: {value}: {why}"));
    }

    pub(super) fn required(&mut self, field: &str, why: &str) {
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        self.add(format!("{field}: Required value{why}"));
    }

    pub(super) fn forbidden(&mut self, field: &str, why: &str) {
        self.add(format!("{field}: Forbidden: {why}"));
    }

    pub(super) fn duplicate(&mut self, field: &str, value: impl Display) {
        self.add(format!("{field}: Duplicate value: {value}"));
    }

    pub(super) fn unsupported(&mut self, field: &str, value: &str, supported: &[&str]) {
        let supported: Vec<String> = supported.iter().map(|known| format!("{known:?}")).collect();
        self.add(format!("{field}: Unsupported value: {value:?}: supported values: {}", supported.join(", ")));
    }

    /// Checks a qualified name (of a label or resource).
    pub(super) fn unless_qualified(&mut self, field: &str, name: &str) -> bool {
        let wrong = name_errors(name);
        for why in &wrong {
            self.invalid(field, format!("{name:?}"), why);
        }
        wrong.is_empty()
    }

    /// Checks the key of a selector; all problems become one error.
    pub(super) fn unless_key(&mut self, field: &str, key: &str) {
        let wrong = name_errors(key);
        if !wrong.is_empty() {
            self.invalid(field, format!("{key:?}"), &wrong.join("; "));
        }
    }

    fn add(&mut self, error: String) {
        if !self.0.contains(&error) {
            self.0.push(error);
        }
    }

    /// All errors as one text; `None` when there are none.
    pub(super) fn text(self) -> Option<String> {
        match self.0.len() {
            0 => None,
            1 => self.0.into_iter().next(),
            _ => Some(format!("[{}]", self.0.join(", "))),
        }
    }
}

/// Why a name is not a qualified name with an optional domain prefix.
fn name_errors(name: &str) -> Vec<String> {
    const FORM: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    const DOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    let mut wrong = Vec::new();
    let parts: Vec<&str> = name.split('/').collect();
    let own = match parts[..] {
        [own] => own,
        [domain, own] => {
            if domain.is_empty() {
                wrong.push("prefix part must be non-empty".to_owned());
            } else if !is_domain(domain) {
                wrong.push(format!("prefix part {DOMAIN}"));
            }
            own
        }
        _ => {
            return vec![format!(
                "a valid label key {FORM} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if own.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if own.len() > 63 {
        wrong.push("name part must be no more than 63 bytes".to_owned());
    }
    if !has_form(own, |sign| sign.is_ascii_alphanumeric(), |sign| matches!(sign, '-' | '_' | '.')) {
        wrong.push(format!("name part {FORM}"));
    }
    wrong
}

fn is_domain(text: &str) -> bool {
    let is_outer = |sign: char| sign.is_ascii_lowercase() || sign.is_ascii_digit();
    text.len() <= 253 && text.split('.').all(|label| has_form(label, is_outer, |sign| sign == '-'))
}

/// Whether all characters are allowed, and the first and the last one are among those allowed at the ends.
fn has_form(text: &str, is_outer: fn(char) -> bool, is_inner: fn(char) -> bool) -> bool {
    text.starts_with(is_outer) && text.ends_with(is_outer) && text.chars().all(|sign| is_outer(sign) || is_inner(sign))
}
