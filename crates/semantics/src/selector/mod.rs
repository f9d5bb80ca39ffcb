//! Label and field selectors.
//!
//! [`LabelSelector`] reads both forms of label selectors, the text of `?labelSelector=` and the object in a spec;
//! [`FieldSelector`] reads `?fieldSelector=`.

mod field;
mod label;
mod parse;

pub use field::{FieldRequirement, FieldSelector, escape};
pub use label::{Expression, LabelSelector, Labels, Operator, Requirement};

/// Why a selector is invalid, with the message of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);
