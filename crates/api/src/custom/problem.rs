//! What validation finds wrong, and how it is told.

use crate::field::{Error, Errors, Fault, Path, quoted};
use serde_json::Value;

/// What came of a check; of several alternatives that fail, the one with most matches comes closest.
#[derive(Default)]
pub(super) struct Outcome {
    pub problems: Vec<Problem>,
    pub matches: usize,
}

impl Outcome {
    /// Problems in the same words are one.
    pub fn add(&mut self, problem: Problem) {
        if !self.problems.iter().any(|other| other.words == problem.words) {
            self.problems.push(problem);
        }
    }

    pub fn merge(&mut self, other: Outcome) {
        other.problems.into_iter().for_each(|problem| self.add(problem));
        self.matches += other.matches;
    }
}

/// One thing that is wrong.
pub(super) struct Problem {
    /// None for what concerns the value as a whole and names its place in words.
    path: Option<String>,
    words: String,
    what: What,
}

/// What kind of wrong it is.
pub(super) enum What {
    WrongType(Value),
    Required,
    TooLong(i64),
    TooMany { size: i64, limit: i64 },
    NotOneOf(Value, Vec<Value>),
    Invalid(Value),
}

impl Problem {
    pub fn new(path: &str, words: String, what: What) -> Self {
        Problem { path: Some(path.to_owned()), words, what }
    }

    pub fn wrong_type(path: &str, expected: &str, found: &str) -> Self {
        let words = format!("{path} in body must be of type {expected}: {}", quoted(found));
        Problem::new(path, words, What::WrongType(found.into()))
    }

    pub fn invalid(path: &str, value: impl Into<Value>, words: String) -> Self {
        Problem::new(path, words, What::Invalid(value.into()))
    }

    pub fn whole(words: String) -> Self {
        Problem { path: None, words, what: What::Invalid("".into()) }
    }

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
        match self.what {
            What::WrongType(value) => errors.type_invalid(&path, value, self.words),
            What::Required => errors.required(&path, ""),
            What::TooLong(limit) => {
                let bytes = if limit == 1 { "byte" } else { "bytes" };
                let detail = format!("may not be more than {limit} {bytes}");
                errors.push(Error { field: path.to_string(), fault: Fault::TooLong, shown: None, detail });
            }
            What::TooMany { size, limit } => {
                let count = |number: i64| usize::try_from(number).unwrap_or_default();
                errors.too_many(&path, count(size), count(limit));
            }
            What::NotOneOf(value, allowed) => {
                let texts: Vec<String> = allowed
                    .iter()
                    .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
                    .collect();
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                errors.not_supported(&path, value, &texts);
            }
            What::Invalid(value) => errors.invalid(&path, value, self.words),
        }
        errors.0.pop().unwrap_or(Error {
            field: String::new(),
            fault: Fault::Internal,
            shown: None,
            detail: String::new(),
        })
    }
}
