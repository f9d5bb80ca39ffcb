//! Patches: JSON patch (RFC 6902), merge patch (RFC 7386) and strategic merge patch by schema.
//!
//! In: the live object and a patch. Out: the patched object, not yet checked against its schema; decode it with
//! [`crate::decode::value`] to validate its types. Server-side apply is in [`crate::apply`].

mod element_order;
mod go_format;
mod json;
mod merge;
mod restore;
mod strategic;
mod text;

pub use go_format::go_format;
pub use json::{JsonPatch, MAX_OPERATIONS};
pub use merge::{merge, read_merge_patch};
pub use restore::cannot_restore;
pub use strategic::strategic_merge;
pub use text::{TouchedFields, text};

use thiserror::Error;

/// Why a patch was not applied. Each variant has its own response status.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PatchError {
    /// The patch is malformed: 400 BadRequest.
    #[error("{0}")]
    Malformed(Box<str>),
    /// The patch has more operations than are allowed.
    #[error("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}")]
    TooManyOperations(usize),
    /// The patch cannot be applied to this object: 422 Invalid.
    #[error("{0}")]
    Unprocessable(Box<str>),
    /// The patch does not match the kind: 500 InternalError, as in Kubernetes.
    #[error("{0}")]
    Internal(Box<str>),
}
