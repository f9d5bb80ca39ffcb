//! Validation and rendering of LabelSelector objects. `knarr_api::selector` evaluates them.

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::selector::LabelSelector;
use knarr_api::value::Read;
use serde_json::{Map, Value};

use super::checks::IMMUTABLE;

/// Validates a selector. `lax_values` accepts invalid label values, for objects that already have some.
pub fn validate(errors: &mut Errors, path: &Path, selector: &Value, lax_values: bool) {
    if let Some(labels) = selector.fields(&["matchLabels"]) {
        validate_labels(errors, &path.child("matchLabels"), labels);
    }
    for (index, requirement) in selector.items(&["matchExpressions"]).iter().enumerate() {
        validate_requirement(errors, &path.child("matchExpressions").index(index), requirement, lax_values);
    }
}

/// Validates `matchLabels`.
pub fn validate_labels(errors: &mut Errors, path: &Path, labels: &Map<String, Value>) {
    for (key, value) in labels {
        names::check(errors, path, key, names::qualified_name);
        let value = value.as_str().unwrap_or_default();
        for wrong in names::label_value(value) {
            errors.invalid(path, value, wrong);
        }
    }
}

fn validate_requirement(errors: &mut Errors, path: &Path, requirement: &Value, lax_values: bool) {
    let values = requirement.items(&["values"]);
    match requirement.text(&["operator"]) {
        "In" | "NotIn" if values.is_empty() => {
            errors.required(&path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors
                .forbidden(&path.child("values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
    }
    names::check(errors, &path.child("key"), requirement.text(&["key"]), names::qualified_name);
    if lax_values {
        return;
    }
    for (index, value) in values.iter().enumerate() {
        let value = value.as_str().unwrap_or_default();
        for wrong in names::label_value(value) {
            errors.invalid(&path.child("values").index(index), value, wrong);
        }
    }
}

/// Reports an error about a whole selector.
pub fn invalid(errors: &mut Errors, path: &Path<'_>, selector: &Value, detail: &str) {
    errors.invalid_verbatim(path, to_json(selector), detail);
}

/// Renders a selector for error messages, with labels before expressions.
pub fn to_json(selector: &Value) -> String {
    if selector.is_null() {
        return "null".to_owned();
    }
    let parts: Vec<String> = ["matchLabels", "matchExpressions"]
        .iter()
        .filter_map(|field| selector.get(field).map(|value| format!("\"{field}\":{value}")))
        .collect();
    format!("{{{}}}", parts.join(","))
}

/// Reports a change of an immutable selector.
pub fn immutable(errors: &mut Errors, path: &Path<'_>, new: &Value, old: &Value) {
    if new != old {
        invalid(errors, path, new, IMMUTABLE);
    }
}

/// Returns whether a stored selector is invalid, so that updates must tolerate it.
pub fn is_invalid(selector: &Value) -> bool {
    let mut errors = Errors::new();
    validate(&mut errors, &Path::default(), selector, false);
    !errors.is_empty()
}

/// Returns whether an expression has a value that is not a valid label value.
pub fn has_invalid_value(selector: &Value) -> bool {
    let expressions = selector.items(&["matchExpressions"]);
    let mut values = expressions.iter().flat_map(|expression| expression.items(&["values"]));
    values.any(|value| !names::label_value(value.as_str().unwrap_or_default()).is_empty())
}

/// Returns whether a selector has no requirements.
pub fn is_empty(selector: &Value) -> bool {
    selector.fields(&["matchLabels"]).is_none_or(Map::is_empty) && selector.items(&["matchExpressions"]).is_empty()
}

/// Renders a selector for tables.
pub fn display(selector: &Value) -> String {
    match LabelSelector::from_object(selector) {
        Err(_) => "<error>".to_owned(),
        Ok(selector) => {
            let text = selector.to_string();
            if text.is_empty() { "<none>".to_owned() } else { text }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selectors_are_shown_and_match() {
        for (selector, text, labels, matches) in [
            (json!({}), "<none>", json!({"a": "b"}), true),
            (Value::Null, "<none>", json!({"a": "b"}), false),
            (json!({"matchLabels": {"b": "1", "a": "2"}}), "a=2,b=1", json!({"a": "2", "b": "1"}), true),
            (
                json!({"matchExpressions": [{"key": "x", "operator": "In", "values": ["b", "a"]}]}),
                "x in (a,b)",
                json!({"x": "a"}),
                true,
            ),
            (
                json!({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["b"]}, {"key": "c", "operator": "DoesNotExist"}]}),
                "!c,x notin (b)",
                json!({"c": "a"}),
                false,
            ),
        ] {
            assert_eq!(display(&selector), text);
            let read = LabelSelector::from_object(&selector).unwrap();
            assert_eq!(read.matches(labels.as_object()), matches, "{selector}");
        }
        assert_eq!(display(&json!({"matchExpressions": [{"key": "x", "operator": "Near"}]})), "<error>");
    }

    #[test]
    fn wrong_selectors_are_reported() {
        let selector = json!({"matchLabels": {"a b": "c d"}, "matchExpressions": [
            {"key": "k", "operator": "In"}, {"key": "k", "operator": "Exists", "values": ["x"]},
            {"key": "", "operator": "Near"}]});
        let mut errors = Errors::new();
        validate(&mut errors, &Path::root("selector"), &selector, false);
        let fields: Vec<&str> = errors.0.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "selector.matchLabels",
                "selector.matchLabels",
                "selector.matchExpressions[0].values",
                "selector.matchExpressions[1].values",
                "selector.matchExpressions[2].operator",
                "selector.matchExpressions[2].key",
                "selector.matchExpressions[2].key",
            ]
        );
    }
}
