//! What can be wrong with a body.

use thiserror::Error;

/// A body that is no object of its kind. The text is what a client of Kubernetes expects to read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Not JSON at all.
    #[error("{0}")]
    Syntax(Box<str>),
    /// Not YAML at all.
    #[error("{0}")]
    Yaml(Box<str>),
    /// A value of another type than the field has.
    #[error("{0}")]
    Type(Box<str>),
    /// A value of the right type that cannot be read, such as a time or quantity.
    #[error("{0}")]
    Value(Box<str>),
}

/// What strict field validation objects to, though the object could be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StrictProblem {
    #[error("unknown field {}", crate::decode::path::quoted(.0))]
    Unknown(Box<str>),
    #[error("duplicate field {}", crate::decode::path::quoted(.0))]
    Duplicate(Box<str>),
    /// Keys given twice in YAML, all in one text.
    #[error("{0}")]
    Yaml(Box<str>),
}

impl StrictProblem {
    /// The problem as warnings, one a line of YAML.
    pub fn warnings(&self) -> Vec<String> {
        let text = self.to_string();
        let text = text.strip_prefix("yaml: unmarshal errors:\n").unwrap_or(&text);
        text.split('\n').map(|line| line.trim_start().to_owned()).collect()
    }
}
