//! Fields of type IntOrString that hold a number or a percentage.

use knarr_api::field::{Errors, Path};
use knarr_api::int_or_percent::percent;
use serde_json::Value;

use super::checks;

/// Validates that a value is a non-negative number or a percentage such as `25%`.
pub fn validate(errors: &mut Errors, path: &Path<'_>, value: &Value) {
    match value {
        Value::String(text) if percent(text).is_none() => {
            let detail = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', \
                        regex used for validation is '[0-9]+%')";
            errors.invalid(path, text.as_str(), detail);
        }
        Value::String(_) => {}
        number => checks::non_negative(errors, path, number.as_i64()),
    }
}

/// Validates that a percentage is at most 100%.
pub fn at_most_all(errors: &mut Errors, path: &Path<'_>, value: &Value) {
    if value.as_str().and_then(percent).is_some_and(|percent| percent > 100) {
        errors.invalid(path, value.clone(), "must not be greater than 100%");
    }
}

/// Returns the number of a value, without its percent sign.
pub fn number(value: &Value) -> i64 {
    match value {
        Value::String(text) => percent(text).unwrap_or_else(|| text.parse().unwrap_or(0)),
        number => number.as_i64().unwrap_or(0),
    }
}

/// Renders a value for tables.
pub fn display(value: &Value) -> String {
    value.as_str().map_or_else(|| value.as_i64().unwrap_or(0).to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_and_percentages_are_distinguished() {
        for (value, wrong, more, read) in [
            (json!(3), false, false, 3),
            (json!(-1), true, false, -1),
            (json!("25%"), false, false, 25),
            (json!("125%"), false, true, 125),
            (json!("7"), true, false, 7),
            (json!("x%"), true, false, 0),
        ] {
            let (mut errors, mut above) = (Errors::new(), Errors::new());
            validate(&mut errors, &Path::root("a"), &value);
            at_most_all(&mut above, &Path::root("a"), &value);
            assert_eq!((!errors.is_empty(), !above.is_empty(), number(&value)), (wrong, more, read), "{value}");
        }
    }
}
