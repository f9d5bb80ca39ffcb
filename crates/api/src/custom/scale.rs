//! Validation of the replica counts that a definition's scale subresource points at.

use crate::field::{Error, ErrorType, Errors, Path};
use crate::value::go_type;
use serde_json::Value;

/// The field paths of the scale subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    /// Each with its leading dot.
    pub spec_replicas: String,
    /// `statusReplicasPath`.
    pub status_replicas: String,
    /// `labelSelectorPath`.
    pub label_selector: Option<String>,
}

impl ScalePaths {
    pub(super) fn check_spec(&self, object: &Value, errors: &mut Errors) {
        check_replicas(object, &self.spec_replicas, errors);
    }

    pub(super) fn check_status(&self, object: &Value, errors: &mut Errors) {
        check_replicas(object, &self.status_replicas, errors);
        if let Some(path) = &self.label_selector
            && let Ok(Some(found)) = find(object, path)
            && !found.is_string()
        {
            errors.invalid(&Path::root(path), "", accessor_error(path, found, "string"));
        }
    }
}

fn check_replicas(object: &Value, path: &str, errors: &mut Errors) {
    let at = Path::root(path);
    match find(object, path) {
        Ok(None) => {}
        Ok(Some(found)) => match found.as_i64() {
            None => errors.invalid(&at, 0, accessor_error(path, found, "int64")),
            Some(count) if count < 0 => errors.invalid(&at, count, "should be a non-negative integer"),
            Some(count) if count > i64::from(i32::MAX) => {
                errors.invalid(&at, count, format!("should be less than or equal to {}", i32::MAX));
            }
            Some(_) => {}
        },
        Err(message) => errors.push(Error {
            field: at.to_string(),
            error_type: ErrorType::Invalid,
            bad_value: Some("0".to_owned()),
            detail: message,
        }),
    }
}

/// The value at a path, or an error if a value on the way is not an object.
fn find<'v>(object: &'v Value, path: &str) -> Result<Option<&'v Value>, String> {
    let names: Vec<&str> = path.trim_start_matches('.').split('.').collect();
    let mut value = object;
    for (depth, name) in names.iter().enumerate() {
        match value {
            Value::Object(fields) => match fields.get(*name) {
                Some(found) => value = found,
                None => return Ok(None),
            },
            Value::Null => return Ok(None),
            other => {
                let passed = names[..=depth].join(".");
                return Err(format!(
                    ".{passed} accessor error: {} is of the type {}, expected map[string]interface{{}}",
                    crate::patch::go_format(other),
                    go_type(other)
                ));
            }
        }
    }
    Ok((!value.is_null()).then_some(value))
}

fn accessor_error(path: &str, found: &Value, expected: &str) -> String {
    let path = path.trim_start_matches('.');
    format!(
        ".{path} accessor error: {} is of the type {}, expected {expected}",
        crate::patch::go_format(found),
        go_type(found)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn replica_counts_must_be_counts() {
        let paths = ScalePaths {
            spec_replicas: ".spec.oars".to_owned(),
            status_replicas: ".status.oars".to_owned(),
            label_selector: None,
        };
        for (object, expected) in [
            (json!({"spec": {"oars": 3}}), None),
            (json!({}), None),
            (
                json!({"spec": {"oars": "x"}}),
                Some(
                    ".spec.oars: Invalid value: 0: .spec.oars accessor error: x is of the type string, expected int64",
                ),
            ),
            (json!({"spec": {"oars": -1}}), Some(".spec.oars: Invalid value: -1: should be a non-negative integer")),
        ] {
            let mut errors = Errors::new();
            paths.check_spec(&object, &mut errors);
            assert_eq!(errors.0.first().map(ToString::to_string).as_deref(), expected, "{object}");
        }
    }
}
