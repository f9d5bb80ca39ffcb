//! Patches: JSON patch (RFC 6902), merge patch (RFC 7386) and strategic merge patch by schema.
//!
//! In: the object as it is and a patch. Out: the patched object, not yet checked against its schema; decode it with
//! [`crate::decode::value`] to find out whether it still is an object of its kind. Apply has a module of its own.

mod element_order;
mod json;
mod merge;
mod restore;
mod shown;
mod strategic;
mod text;

pub use json::{JsonPatch, MAX_OPERATIONS};
pub use merge::{json_type, merge, read_merge_patch};
pub use restore::cannot_restore;
pub use shown::shown;
pub use strategic::strategic_merge;
pub use text::{TouchedFields, text};

use thiserror::Error;

/// Why a patch was not applied. The variants differ in how a request that brought such a patch is answered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PatchError {
    /// The patch is no patch: a bad request.
    #[error("{0}")]
    Malformed(Box<str>),
    /// The patch has more operations than are allowed.
    #[error("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}")]
    TooManyOperations(usize),
    /// The patch cannot be carried out on this object: an unprocessable entity.
    #[error("{0}")]
    Unprocessable(Box<str>),
    /// The patch and the kind do not fit together; Kubernetes answers this as an error of its own.
    #[error("{0}")]
    Internal(Box<str>),
}
