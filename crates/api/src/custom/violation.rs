//! Violations that schema validation finds, and the field errors they become.

use super::place::Place;
use crate::field::{Error, ErrorType, Errors, Path, quoted};
use serde_json::Value;
use std::collections::HashSet;

/// Violations with more text than this, or more of them, are not collected: the object is refused anyway, and its author
/// decides how many there are and how long their paths.
const MAX_BYTES: usize = 1 << 20;
const MAX_VIOLATIONS: usize = 10_000;

/// The result of validating one value.
///
/// Of several alternatives that fail, the one with the most matches is reported.
#[derive(Default)]
pub(super) struct Outcome {
    pub violations: Vec<Violation>,
    pub matches: usize,
    messages: HashSet<String>,
    bytes: usize,
}

impl Outcome {
    /// Adds a violation unless one with the same message is there.
    pub fn add(&mut self, violation: Violation) {
        if !self.is_full() && self.messages.insert(violation.message.clone()) {
            self.bytes += violation.message.len() + violation.path.as_ref().map_or(0, String::len);
            self.violations.push(violation);
        }
    }

    /// Whether there are so many violations that no more are looked for.
    pub fn is_full(&self) -> bool {
        self.bytes >= MAX_BYTES || self.violations.len() >= MAX_VIOLATIONS
    }

    /// The same result with its violations dropped.
    pub fn without_violations(self) -> Self {
        Outcome { matches: self.matches, ..Outcome::default() }
    }

    /// Adds what another check found.
    pub fn merge(&mut self, other: Outcome) {
        other.violations.into_iter().for_each(|violation| self.add(violation));
        self.matches += other.matches;
    }
}

/// One violation of a schema.
pub(super) struct Violation {
    /// None if the message itself names the field.
    path: Option<String>,
    message: String,
    kind: ViolationKind,
}

/// The kind of a violation, with the values that its field error shows.
pub(super) enum ViolationKind {
    WrongType(Value),
    Required,
    TooLong(i64),
    TooMany { size: i64, limit: i64 },
    NotOneOf(Value, Vec<Value>),
    Invalid(Value),
}

impl Violation {
    /// A violation at a path.
    pub fn new(path: &Place<'_>, message: String, kind: ViolationKind) -> Self {
        Violation { path: Some(path.to_string()), message, kind }
    }

    /// A value of a wrong type.
    pub fn wrong_type(path: &Place<'_>, expected: &str, found: &str) -> Self {
        let message = format!("{path} in body must be of type {expected}: {}", quoted(found));
        Violation::new(path, message, ViolationKind::WrongType(found.into()))
    }

    /// A value that is not allowed.
    pub fn invalid(path: &Place<'_>, value: impl Into<Value>, message: String) -> Self {
        Violation::new(path, message, ViolationKind::Invalid(value.into()))
    }

    /// A violation of the object as a whole.
    pub fn whole(message: String) -> Self {
        Violation { path: None, message, kind: ViolationKind::Invalid("".into()) }
    }

    /// The field error, with its path below a prefix.
    pub fn into_error(self, prefix: &str) -> Error {
        let below = self.path.as_deref().map(|path| path.trim_start_matches('.')).unwrap_or_default();
        let field = match (prefix, below) {
            ("", "") => "<nil>".to_owned(),
            ("", below) => below.to_owned(),
            (prefix, "") => prefix.to_owned(),
            (prefix, below) => format!("{prefix}.{below}"),
        };
        let path = Path::root(&field);
        let mut errors = Errors::new();
        match self.kind {
            ViolationKind::WrongType(value) => errors.type_invalid(&path, value, self.message),
            ViolationKind::Required => errors.required(&path, ""),
            ViolationKind::TooLong(limit) => {
                let bytes = if limit == 1 { "byte" } else { "bytes" };
                let detail = format!("may not be more than {limit} {bytes}");
                errors.push(Error { field: path.to_string(), error_type: ErrorType::TooLong, bad_value: None, detail });
            }
            ViolationKind::TooMany { size, limit } => {
                let count = |number: i64| usize::try_from(number).unwrap_or_default();
                errors.too_many(&path, count(size), count(limit));
            }
            ViolationKind::NotOneOf(value, allowed) => {
                let texts: Vec<String> = allowed
                    .iter()
                    .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
                    .collect();
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                errors.not_supported(&path, value, &texts);
            }
            ViolationKind::Invalid(value) => errors.invalid(&path, value, self.message),
        }
        errors.0.pop().unwrap_or(Error {
            field: String::new(),
            error_type: ErrorType::Internal,
            bad_value: None,
            detail: String::new(),
        })
    }
}
