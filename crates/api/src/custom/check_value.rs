//! Validation of a single value against a schema, such as the defaults in a schema.

use super::validate::{Validator, validate};
use crate::field::{Errors, Path};
use crate::json_schema::JsonSchemaProps;
use serde_json::Value;

/// Validates a value against a schema and returns all errors.
pub fn check_value(path: &Path<'_>, schema: &Value, value: &Value) -> Errors {
    validate(&Validator::new(&JsonSchemaProps::read(schema)), value, None, &path.to_string())
}
