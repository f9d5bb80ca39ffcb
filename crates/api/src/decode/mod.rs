//! From bytes to objects, by schema.
//!
//! In: a request's body and the node of the kind it should hold. Out: the object with unknown fields gone, quantities and
//! times in their canonical form, and the list of problems that strict field validation objects to. Errors read as the
//! ones clients of Kubernetes know.

mod error;
mod kind;
mod normalize;
mod path;
mod scanner;
mod time;
mod typed;
mod untyped;
mod yaml;

pub use error::{DecodeError, StrictProblem};
pub use kind::{TypeMeta, type_meta};
pub use normalize::{normalize, zero};
pub(crate) use path::quoted;

use crate::schema::NodeRef;
use serde_json::Value;

/// What a body held.
#[derive(Debug)]
pub struct Decoded {
    pub value: Value,
    /// In the order of the document. The caller refuses, warns or ignores.
    pub problems: Vec<StrictProblem>,
}

/// Decodes JSON into an object of the kind that `node` describes.
pub fn json(bytes: &[u8], node: NodeRef<'_>) -> Result<Decoded, DecodeError> {
    typed::decode(bytes, node)
}

/// Decodes YAML the same way; keys written twice are problems of their own.
pub fn yaml(bytes: &[u8], node: NodeRef<'_>) -> Result<Decoded, DecodeError> {
    let (value, duplicates) = yaml::read(bytes)?;
    let mut decoded = reread(&value, node)?;
    decoded.problems.splice(0..0, duplicates);
    Ok(decoded)
}

/// Decodes an object that is already JSON in memory, such as one that a patch made.
pub fn value(value: &Value, node: NodeRef<'_>) -> Result<Decoded, DecodeError> {
    reread(value, node)
}

/// Reads any JSON; only fields given twice are problems.
pub fn untyped_json(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    untyped::decode(bytes)
}

/// Reads any YAML as JSON; only keys given twice are problems.
pub fn untyped_yaml(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let (value, problems) = yaml::read(bytes)?;
    Ok(Decoded { value, problems: problems.into_iter().collect() })
}

fn reread(value: &Value, node: NodeRef<'_>) -> Result<Decoded, DecodeError> {
    typed::decode(value.to_string().as_bytes(), node)
}
