//! JSON schemas as custom resource definitions write them, with their string formats and patterns.
//!
//! Both the validation of custom resources and the types of CEL expressions are built from these.

mod formats;
mod pattern;
mod props;

pub(crate) use formats::by_name as format_named;
pub use pattern::{TOO_LARGE as PATTERN_TOO_LARGE, estimate as estimate_pattern};
pub(crate) use pattern::{compile as compile_pattern, compile_recent, size_recent};
pub use props::{AdditionalProperties, JsonSchemaProps, ValidationRule};
