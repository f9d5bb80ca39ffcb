//! Validation errors of a configuration with their fields, in Kubernetes' own messages.

use std::fmt::Display;

use knarr_api::names::qualified_name;

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
        let wrong = qualified_name(name);
        for why in &wrong {
            self.invalid(field, format!("{name:?}"), why);
        }
        wrong.is_empty()
    }

    /// Checks the key of a selector; all problems become one error.
    pub(super) fn unless_key(&mut self, field: &str, key: &str) {
        let wrong = qualified_name(key);
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
