//! Errors about one field of an object, worded as Kubernetes words them.

use std::fmt;

use serde_json::Value;

/// Where a field is: `spec.containers[0].name`, `metadata.labels[app]`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Path(String);

impl Path {
    pub fn root(name: &str) -> Self {
        Path(name.to_owned())
    }

    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() { Path(name.to_owned()) } else { Path(format!("{}.{name}", self.0)) }
    }

    pub fn index(&self, index: usize) -> Self {
        Path(format!("{}[{index}]", self.0))
    }

    pub fn key(&self, key: &str) -> Self {
        Path(format!("{}[{key}]", self.0))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is wrong with a field; each has its own reason in a Status cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    TypeInvalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    Internal,
}

impl Fault {
    pub fn reason(self) -> &'static str {
        match self {
            Fault::NotFound => "FieldValueNotFound",
            Fault::Required => "FieldValueRequired",
            Fault::Duplicate => "FieldValueDuplicate",
            Fault::Invalid => "FieldValueInvalid",
            Fault::TypeInvalid => "FieldValueTypeInvalid",
            Fault::NotSupported => "FieldValueNotSupported",
            Fault::Forbidden => "FieldValueForbidden",
            Fault::TooLong => "FieldValueTooLong",
            Fault::TooMany => "FieldValueTooMany",
            Fault::Internal => "InternalError",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Fault::NotFound => "Not found",
            Fault::Required => "Required value",
            Fault::Duplicate => "Duplicate value",
            Fault::Invalid | Fault::TypeInvalid => "Invalid value",
            Fault::NotSupported => "Unsupported value",
            Fault::Forbidden => "Forbidden",
            Fault::TooLong => "Too long",
            Fault::TooMany => "Too many",
            Fault::Internal => "Internal error",
        }
    }
}

/// One wrong field.
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    pub field: String,
    pub fault: Fault,
    /// The offending value as it is shown; `None` where the kind of fault shows none.
    pub shown: Option<String>,
    pub detail: String,
}

impl Error {
    /// The message without the field's name, as it stands in a cause.
    pub fn body(&self) -> String {
        let mut text = self.fault.title().to_owned();
        if let Some(shown) = &self.shown {
            text.push_str(": ");
            text.push_str(shown);
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

/// All that is wrong with an object, in the order it was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors(pub Vec<Error>);

impl Errors {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn extend(&mut self, other: Errors) {
        self.0.extend(other.0);
    }

    pub fn push(&mut self, error: Error) {
        self.0.push(error);
    }

    fn add(&mut self, path: &Path, fault: Fault, shown: Option<String>, detail: impl Into<String>) {
        self.0.push(Error { field: path.0.clone(), fault, shown, detail: detail.into() });
    }

    pub fn required(&mut self, path: &Path, detail: impl Into<String>) {
        self.add(path, Fault::Required, None, detail);
    }

    pub fn invalid(&mut self, path: &Path, value: impl Into<Value>, detail: impl Into<String>) {
        self.add(path, Fault::Invalid, Some(shown(&value.into())), detail);
    }

    /// An invalid value shown just as given, for values that have no JSON form.
    pub fn invalid_shown(&mut self, path: &Path, shown: impl Into<String>, detail: impl Into<String>) {
        self.add(path, Fault::Invalid, Some(shown.into()), detail);
    }

    pub fn type_invalid(&mut self, path: &Path, value: impl Into<Value>, detail: impl Into<String>) {
        self.add(path, Fault::TypeInvalid, Some(shown(&value.into())), detail);
    }

    pub fn duplicate(&mut self, path: &Path, value: impl Into<Value>) {
        self.add(path, Fault::Duplicate, Some(shown(&value.into())), "");
    }

    pub fn not_found(&mut self, path: &Path, value: impl Into<Value>) {
        self.add(path, Fault::NotFound, Some(shown(&value.into())), "");
    }

    pub fn not_supported(&mut self, path: &Path, value: impl Into<Value>, supported: &[&str]) {
        let detail = if supported.is_empty() {
            String::new()
        } else {
            let names: Vec<String> = supported.iter().map(|name| format!("{name:?}")).collect();
            format!("supported values: {}", names.join(", "))
        };
        self.add(path, Fault::NotSupported, Some(shown(&value.into())), detail);
    }

    pub fn forbidden(&mut self, path: &Path, detail: impl Into<String>) {
        self.add(path, Fault::Forbidden, None, detail);
    }

    pub fn too_long(&mut self, path: &Path, limit: usize) {
        self.add(path, Fault::TooLong, None, format!("may not be more than {limit} bytes"));
    }

    pub fn too_many(&mut self, path: &Path, actual: usize, limit: usize) {
        let items = if limit == 1 { "item" } else { "items" };
        self.add(path, Fault::TooMany, Some(actual.to_string()), format!("must have at most {limit} {items}"));
    }

    pub fn internal(&mut self, path: &Path, detail: impl Into<String>) {
        self.add(path, Fault::Internal, None, detail);
    }
}

/// A value as error messages show it: strings quoted, numbers and booleans plain, the rest as JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_as_kubernetes_writes_them() {
        let spec = Path::root("spec");
        let mut errors = Errors::new();
        errors.required(&spec.child("containers"), "");
        errors.invalid(&spec.child("containers").index(0).child("ports"), 99999, "must be between 1 and 65535, inclusive");
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
}
