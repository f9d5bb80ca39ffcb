//! Whether a single value fits a schema, as the defaults in a schema must.

use super::props::Props;
use super::validate::{Validator, validate};
use crate::field::{Errors, Path};
use serde_json::Value;

/// All that is wrong with a value that is held to a schema on its own.
pub fn check_value(path: &Path<'_>, schema: &Value, value: &Value) -> Errors {
    validate(&Validator::new(&Props::read(schema)), value, None, &path.to_string())
}
