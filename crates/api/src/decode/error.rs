//! Errors of decoding.

use thiserror::Error;

/// A body that is not an object of its kind, with the message of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Not JSON.
    #[error("{0}")]
    Syntax(Box<str>),
    /// Not YAML.
    #[error("{0}")]
    Yaml(Box<str>),
    /// A value of the wrong type.
    #[error("{0}")]
    Type(Box<str>),
    /// An invalid value of the right type, such as a time or quantity.
    #[error("{0}")]
    Value(Box<str>),
}

/// A problem that strict field validation reports, although the object could be decoded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StrictProblem {
    #[error("unknown field {}", crate::decode::path::quoted(.0))]
    Unknown(Box<str>),
    #[error("duplicate field {}", crate::decode::path::quoted(.0))]
    Duplicate(Box<str>),
    /// Duplicate keys in YAML, all in one text.
    #[error("{0}")]
    Yaml(Box<str>),
}

impl StrictProblem {
    /// The problem as warnings, one for each line of YAML.
    pub fn warnings(&self) -> Vec<String> {
        let text = self.to_string();
        let text = text.strip_prefix("yaml: unmarshal errors:\n").unwrap_or(&text);
        text.split('\n').map(|line| line.trim_start().to_owned()).collect()
    }
}
