//! Field errors of validation, with the messages of Kubernetes.

use std::fmt;

use serde_json::Value;

/// Quotes a text with Go's escapes, as Kubernetes' messages do.
pub use knarr_go_duration::quote as quoted;

/// The path of a field: `spec.containers[0].name`, `metadata.labels[app]`.
///
/// A path is a chain of steps that borrow their parents, so that walking an object does not allocate; it becomes text
/// only when there is an error to report. A path in a variable needs its parent in one too:
/// `let containers = spec.child("containers"); let first = containers.index(0);`, or `spec.item("containers", 0)`.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Name(&'a str),
    Index(usize),
    Key(&'a str),
    Item(&'a str, usize),
}

impl<'a> Path<'a> {
    /// The first step; an empty name stands for the object itself.
    pub const fn root(name: &'a str) -> Self {
        Path { parent: None, step: Step::Name(name) }
    }

    /// The field of that name.
    pub const fn child<'b>(&'b self, name: &'b str) -> Path<'b> {
        Path { parent: Some(self), step: Step::Name(name) }
    }

    /// The list element at that index.
    pub const fn index(&self, index: usize) -> Path<'_> {
        Path { parent: Some(self), step: Step::Index(index) }
    }

    /// The map entry with that key.
    pub const fn key<'b>(&'b self, key: &'b str) -> Path<'b> {
        Path { parent: Some(self), step: Step::Key(key) }
    }

    /// An item of a list that is a child: `child(name).index(index)` in one step.
    pub const fn item<'b>(&'b self, name: &'b str, index: usize) -> Path<'b> {
        Path { parent: Some(self), step: Step::Item(name, index) }
    }

    /// Another field of the same object.
    pub const fn sibling<'b>(&'b self, name: &'b str) -> Path<'b> {
        Path { parent: self.parent, step: Step::Name(name) }
    }

    fn write(&self, text: &mut String) {
        if let Some(parent) = self.parent {
            parent.write(text);
        }
        match self.step {
            Step::Name(name) => write_name(text, name),
            Step::Index(index) => write_index(text, index),
            Step::Key(key) => {
                text.push('[');
                text.push_str(key);
                text.push(']');
            }
            Step::Item(name, index) => {
                write_name(text, name);
                write_index(text, index);
            }
        }
    }
}

fn write_name(text: &mut String, name: &str) {
    if !text.is_empty() && !name.is_empty() {
        text.push('.');
    }
    text.push_str(name);
}

fn write_index(text: &mut String, index: usize) {
    text.push('[');
    text.push_str(&index.to_string());
    text.push(']');
}

/// The object itself.
impl Default for Path<'_> {
    fn default() -> Self {
        Path::root("")
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write(&mut text);
        f.write_str(&text)
    }
}

/// The type of a field error; each has its own reason in a Status cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorType {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    TypeInvalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooShort,
    TooMany,
    TooFew,
    Internal,
}

impl ErrorType {
    /// The `reason` of the Status cause.
    pub fn reason(self) -> &'static str {
        match self {
            ErrorType::NotFound => "FieldValueNotFound",
            ErrorType::Required => "FieldValueRequired",
            ErrorType::Duplicate => "FieldValueDuplicate",
            ErrorType::Invalid => "FieldValueInvalid",
            ErrorType::TypeInvalid => "FieldValueTypeInvalid",
            ErrorType::NotSupported => "FieldValueNotSupported",
            ErrorType::Forbidden => "FieldValueForbidden",
            ErrorType::TooLong => "FieldValueTooLong",
            ErrorType::TooShort => "FieldValueTooShort",
            ErrorType::TooMany => "FieldValueTooMany",
            ErrorType::TooFew => "FieldValueTooFew",
            ErrorType::Internal => "InternalError",
        }
    }

    fn title(self) -> &'static str {
        match self {
            ErrorType::NotFound => "Not found",
            ErrorType::Required => "Required value",
            ErrorType::Duplicate => "Duplicate value",
            ErrorType::Invalid | ErrorType::TypeInvalid => "Invalid value",
            ErrorType::NotSupported => "Unsupported value",
            ErrorType::Forbidden => "Forbidden",
            ErrorType::TooLong => "Too long",
            ErrorType::TooShort => "Too short",
            ErrorType::TooMany => "Too many",
            ErrorType::TooFew => "Too few",
            ErrorType::Internal => "Internal error",
        }
    }
}

/// An error about one field.
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    /// The path of the field.
    pub field: String,
    /// The type of the error.
    pub error_type: ErrorType,
    /// The invalid value as the message prints it; `None` if the message has no value.
    pub bad_value: Option<String>,
    /// The explanation, or empty.
    pub detail: String,
}

impl Error {
    /// The message of a Status cause, which does not contain the path.
    pub fn body(&self) -> String {
        let mut text = self.error_type.title().to_owned();
        if let Some(value) = &self.bad_value {
            text.push_str(": ");
            text.push_str(value);
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// How many errors are kept, and how much text they have together. An object can be wrong in as many places as its author
/// likes, and each error repeats a path and a value: more than this is of no use, and must not fill memory.
const MAX_ERRORS: usize = 10_000;
const MAX_BYTES: usize = 2 << 20;

/// The errors of an object, in the order in which they were found, and the length of their texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors(pub Vec<Error>, usize);

impl Errors {
    /// No errors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there are no errors.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends other errors.
    pub fn extend(&mut self, other: Errors) {
        other.0.into_iter().for_each(|error| self.push(error));
    }

    /// Appends an error, unless there are too many.
    pub fn push(&mut self, error: Error) {
        if !self.is_full() {
            self.1 += error.field.len() + error.bad_value.as_ref().map_or(0, String::len) + error.detail.len();
            self.0.push(error);
        }
    }

    /// Whether further errors are not kept: there are more than anybody reads.
    pub fn is_full(&self) -> bool {
        self.0.len() >= MAX_ERRORS || self.1 >= MAX_BYTES
    }

    fn add(&mut self, path: &Path<'_>, error_type: ErrorType, bad_value: Option<String>, detail: impl Into<String>) {
        if !self.is_full() {
            self.push(Error { field: path.to_string(), error_type, bad_value, detail: detail.into() });
        }
    }

    /// A value as a message prints it; nothing if no more messages are kept.
    fn print(&self, value: impl Into<Value>) -> Option<String> {
        (!self.is_full()).then(|| format_value(&value.into()))
    }

    /// Adds an error for an absent value.
    pub fn required(&mut self, path: &Path<'_>, detail: impl Into<String>) {
        self.add(path, ErrorType::Required, None, detail);
    }

    /// Adds an error for an invalid value.
    pub fn invalid(&mut self, path: &Path<'_>, value: impl Into<Value>, detail: impl Into<String>) {
        let value = self.print(value);
        self.add(path, ErrorType::Invalid, value, detail);
    }

    /// Adds an error for an invalid value that is printed verbatim, for values that have no JSON form.
    pub fn invalid_verbatim(&mut self, path: &Path<'_>, value: impl Into<String>, detail: impl Into<String>) {
        self.add(path, ErrorType::Invalid, Some(value.into()), detail);
    }

    /// Adds an error for a value of the wrong type.
    pub fn type_invalid(&mut self, path: &Path<'_>, value: impl Into<Value>, detail: impl Into<String>) {
        let value = self.print(value);
        self.add(path, ErrorType::TypeInvalid, value, detail);
    }

    /// Adds an error for a value that occurs twice.
    pub fn duplicate(&mut self, path: &Path<'_>, value: impl Into<Value>) {
        let value = self.print(value);
        self.add(path, ErrorType::Duplicate, value, "");
    }

    /// Adds an error for a reference to an absent value.
    pub fn not_found(&mut self, path: &Path<'_>, value: impl Into<Value>) {
        let value = self.print(value);
        self.add(path, ErrorType::NotFound, value, "");
    }

    /// Adds an error for a value outside an enumeration.
    pub fn not_supported(&mut self, path: &Path<'_>, value: impl Into<Value>, supported: &[&str]) {
        let detail = if supported.is_empty() {
            String::new()
        } else {
            let names: Vec<String> = supported.iter().map(|name| quoted(name)).collect();
            format!("supported values: {}", names.join(", "))
        };
        let value = self.print(value);
        self.add(path, ErrorType::NotSupported, value, detail);
    }

    /// Adds an error for a field that must not be set.
    pub fn forbidden(&mut self, path: &Path<'_>, detail: impl Into<String>) {
        self.add(path, ErrorType::Forbidden, None, detail);
    }

    /// Adds an error for a text of more than `limit` bytes.
    pub fn too_long(&mut self, path: &Path<'_>, limit: usize) {
        self.add(path, ErrorType::TooLong, None, format!("may not be more than {limit} bytes"));
    }

    /// Adds an error for a list of more than `limit` items.
    pub fn too_many(&mut self, path: &Path<'_>, actual: usize, limit: usize) {
        let items = if limit == 1 { "item" } else { "items" };
        self.add(path, ErrorType::TooMany, Some(actual.to_string()), format!("must have at most {limit} {items}"));
    }

    /// Adds an error of the server.
    pub fn internal(&mut self, path: &Path<'_>, detail: impl Into<String>) {
        self.add(path, ErrorType::Internal, None, detail);
    }
}

/// Formats a value for messages: strings quoted, numbers and booleans plain, the rest as JSON.
fn format_value(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_as_kubernetes_writes_them() {
        let spec = Path::root("spec");
        assert_eq!(spec.item("containers", 1).child("env").index(0).to_string(), "spec.containers[1].env[0]");
        assert_eq!(quoted("a\"\n\u{1}é"), r#""a\"\n\x01é""#);
        let mut errors = Errors::new();
        errors.required(&spec.child("containers"), "");
        errors.invalid(
            &spec.child("containers").index(0).child("ports"),
            99999,
            "must be between 1 and 65535, inclusive",
        );
        errors.not_supported(&spec.child("restartPolicy"), "Sometimes", &["Always", "Never"]);
        errors.duplicate(&spec.child("name"), "c");
        errors.forbidden(&spec.key("a"), "no");
        errors.too_many(&spec, 3, 1);
        let read: Vec<String> = errors.0.iter().map(Error::to_string).collect();
        assert_eq!(
            read,
            [
                "spec.containers: Required value",
                "spec.containers[0].ports: Invalid value: 99999: must be between 1 and 65535, inclusive",
                "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"Never\"",
                "spec.name: Duplicate value: \"c\"",
                "spec[a]: Forbidden: no",
                "spec: Too many: 3: must have at most 1 item",
            ]
        );
    }

    #[test]
    fn errors_without_end_do_not_fill_memory() {
        let long = "x".repeat(100_000);
        let mut errors = Errors::new();
        for index in 0..20_000 {
            errors.invalid(&Path::root("list").index(index), long.as_str(), "wrong");
        }
        assert!((1..100).contains(&errors.0.len()), "{}", errors.0.len());
        let mut short = Errors::new();
        (0..100_000).for_each(|index| short.required(&Path::root("list").index(index), ""));
        assert_eq!(short.0.len(), MAX_ERRORS);
        errors.extend(short);
        assert!(errors.0.iter().map(|error| error.to_string().len()).sum::<usize>() < 2 * MAX_BYTES);
    }
}
