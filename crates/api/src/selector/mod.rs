//! Label and field selectors.
//!
//! [`LabelSelector`] reads both forms of label selectors, the text of `?labelSelector=` and the object in a spec;
//! [`FieldSelector`] reads `?fieldSelector=`, and [`SelectableFields`] knows which fields a kind can be selected by.

mod field;
mod label;
mod parse;
mod selectable;

pub use field::{FieldRequirement, FieldSelector, escape};
pub use label::{LabelSelector, Operator, Requirement};
pub use selectable::SelectableFields;

/// Why a selector is invalid, with the message of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub(crate) String);
