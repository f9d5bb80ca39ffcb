//! Values against schemas, with the words in which Kubernetes says what is wrong.

use super::formats;
use super::numbers::Numbers;
use super::past::Past;
use super::pattern;
use super::problem::{Outcome, Problem, What};
use super::props::{Additional, Props};
use crate::field::{Errors, quoted};
use regex::Regex;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A schema made ready to validate values.
#[derive(Debug)]
pub(super) struct Validator {
    kinds: Vec<String>,
    nullable: bool,
    format: String,
    check_format: Option<fn(&str) -> bool>,
    numbers: Numbers,
    max_length: Option<i64>,
    min_length: Option<i64>,
    pattern: Option<(String, Result<Regex, String>)>,
    max_items: Option<i64>,
    min_items: Option<i64>,
    unique_items: bool,
    max_properties: Option<i64>,
    min_properties: Option<i64>,
    required: Vec<String>,
    values: Vec<Value>,
    all_of: Vec<Validator>,
    any_of: Vec<Validator>,
    one_of: Vec<Validator>,
    not: Option<Box<Validator>>,
    properties: BTreeMap<String, Validator>,
    additional: Option<Box<Validator>>,
    closed: bool,
    items: Option<Box<Validator>>,
}

/// Validates a value. With its past given, what did not change is let be.
pub(super) fn validate(validator: &Validator, value: &Value, past: Option<Past<'_>>, prefix: &str) -> Errors {
    let outcome = validator.check_changed(value, past, "");
    Errors(outcome.problems.into_iter().map(|problem| problem.into_error(prefix)).collect())
}

impl Validator {
    pub fn new(props: &Props) -> Self {
        let all = |schemas: &[Props]| schemas.iter().map(Validator::new).collect();
        let format = supported_format(props);
        Validator {
            kinds: props.kinds().iter().map(|kind| (*kind).to_owned()).collect(),
            nullable: props.nullable,
            check_format: formats::by_name(&format),
            format,
            numbers: Numbers::of(props),
            max_length: props.max_length,
            min_length: props.min_length,
            pattern: (!props.pattern.is_empty()).then(|| (props.pattern.clone(), pattern::compile(&props.pattern))),
            max_items: props.max_items,
            min_items: props.min_items,
            unique_items: props.unique_items,
            max_properties: props.max_properties,
            min_properties: props.min_properties,
            required: props.required.clone(),
            values: props.values.clone(),
            all_of: all(&props.all_of),
            any_of: all(&props.any_of),
            one_of: all(&props.one_of),
            not: props.not.as_deref().map(|not| Box::new(Validator::new(not))),
            properties: props.properties.iter().map(|(name, props)| (name.clone(), Validator::new(props))).collect(),
            additional: props.additional_schema().map(|props| Box::new(Validator::new(props))),
            closed: props.additional == Some(Additional::Allowed(false)),
            items: props.items.as_deref().map(|items| Box::new(Validator::new(items))),
        }
    }

    pub fn property(&self, name: &str) -> Option<&Validator> {
        self.properties.get(name)
    }

    /// Validates, and lets what is wrong be where nothing changed.
    fn check_changed(&self, value: &Value, past: Option<Past<'_>>, path: &str) -> Outcome {
        let outcome = self.check(value, past, path);
        if !outcome.problems.is_empty() && past.is_some_and(|past| past.is_unchanged()) {
            return Outcome { problems: Vec::new(), matches: outcome.matches };
        }
        outcome
    }

    fn check(&self, value: &Value, past: Option<Past<'_>>, path: &str) -> Outcome {
        let mut outcome = Outcome::default();
        if value.is_null() {
            self.check_type(value, path, &mut outcome);
            self.check_values(value, path, &mut outcome);
            return outcome;
        }
        if !self.kinds.is_empty() || !self.format.is_empty() {
            self.check_type(value, path, &mut outcome);
            outcome.matches += 1;
        }
        self.check_junctors(value, past, path, &mut outcome);
        outcome.matches += 2;
        match value {
            Value::String(text) => {
                self.check_text(text, path, &mut outcome);
                outcome.matches += 1;
                if let Some(fits) = self.check_format {
                    if !fits(text) {
                        outcome.add(Problem::wrong_type(path, &self.format, text));
                    }
                    outcome.matches += 1;
                }
            }
            Value::Number(_) => {
                self.numbers.check(value, &self.kinds, &self.format, path, &mut outcome);
                outcome.matches += 2;
            }
            Value::Array(items) => {
                self.check_items(items, past, path, &mut outcome);
                outcome.matches += 2;
            }
            _ => {}
        }
        self.check_values(value, path, &mut outcome);
        outcome.matches += 1;
        if let Value::Object(fields) = value {
            self.check_fields(fields, past, path, &mut outcome);
            outcome.matches += 1;
        }
        outcome.matches += 1;
        outcome
    }

    fn check_type(&self, value: &Value, path: &str, outcome: &mut Outcome) {
        let expected = self.kinds.join(",");
        let allows = |kind: &str| self.kinds.iter().any(|other| other == kind);
        let (kind, format) = match value {
            Value::Null => {
                if !self.kinds.is_empty() && !allows("null") && !self.nullable {
                    outcome.add(Problem::wrong_type(path, &expected, "null"));
                }
                return;
            }
            Value::Bool(_) => ("boolean", ""),
            Value::String(_) => ("string", ""),
            Value::Number(number) if number.is_f64() => ("number", "float64"),
            Value::Number(_) => ("integer", "int64"),
            Value::Array(_) => ("array", ""),
            Value::Object(_) => ("object", ""),
        };
        let whole = value.as_f64().is_some_and(|number| number.fract() == 0.0);
        let number_fits = kind == "number" && whole && allows("integer") || kind == "integer" && allows("number");
        let is_text_or_list = matches!(value, Value::String(_) | Value::Array(_));
        let fits = allows(kind) || number_fits;
        if !(is_text_or_list || self.format.is_empty() || fits || format == self.format) {
            return outcome.add(Problem::wrong_type(path, &self.format, format));
        }
        let formatted_text = !self.format.is_empty() && is_text_or_list && !allows("number") && !allows("integer");
        if !(formatted_text || fits) {
            return outcome.add(Problem::wrong_type(path, &expected, kind));
        }
        outcome.matches += 1;
    }

    fn check_text(&self, text: &str, path: &str, outcome: &mut Outcome) {
        let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        if let Some(limit) = self.max_length.filter(|limit| length > *limit) {
            let words = format!("{path} in body should be at most {limit} chars long");
            return outcome.add(Problem::new(path, words, What::TooLong(limit)));
        }
        if let Some(limit) = self.min_length.filter(|limit| length < *limit) {
            let words = format!("{path} in body should be at least {limit} chars long");
            return outcome.add(Problem::invalid(path, text, words));
        }
        match &self.pattern {
            Some((pattern, Ok(regex))) if !regex.is_match(text) => {
                outcome.add(Problem::invalid(path, text, format!("{path} in body should match '{pattern}'")));
            }
            Some((pattern, Err(error))) => {
                let words = format!("{path} in body should match '{pattern}, but pattern is invalid: {error}'");
                outcome.add(Problem::invalid(path, text, words));
            }
            _ => {}
        }
    }

    fn check_items(&self, items: &[Value], past: Option<Past<'_>>, path: &str, outcome: &mut Outcome) {
        if let Some(validator) = &self.items {
            for (at, item) in items.iter().enumerate() {
                let path = format!("{path}[{at}]");
                outcome.merge(validator.check_changed(item, past.and_then(|past| past.element(at)), &path));
            }
        }
        let size = i64::try_from(items.len()).unwrap_or(i64::MAX);
        if let Some(limit) = self.min_items.filter(|limit| size < *limit) {
            let words = format!("{path} in body should have at least {limit} items");
            outcome.add(Problem::invalid(path, size, words));
        }
        if let Some(limit) = self.max_items.filter(|limit| size > *limit) {
            let words = format!("{path} in body should have at most {limit} items");
            outcome.add(Problem::new(path, words, What::TooMany { size, limit }));
        }
        if self.unique_items && (1..items.len()).any(|at| items[..at].contains(&items[at])) {
            outcome.add(Problem::invalid(path, "", format!("{path} in body shouldn't contain duplicates")));
        }
    }

    fn check_values(&self, value: &Value, path: &str, outcome: &mut Outcome) {
        let same = |allowed: &Value| !value.is_null() && crate::apply::same_value(allowed, value);
        if !self.values.is_empty() && !self.values.iter().any(same) {
            let words = format!("{path} in body should be one of {}", crate::patch::shown(&self.values.clone().into()));
            outcome.add(Problem::new(path, words, What::NotOneOf(value.clone(), self.values.clone())));
        }
    }

    fn check_fields(&self, fields: &Map<String, Value>, past: Option<Past<'_>>, path: &str, outcome: &mut Outcome) {
        let size = i64::try_from(fields.len()).unwrap_or(i64::MAX);
        if let Some(limit) = self.min_properties.filter(|limit| size < *limit) {
            let words = format!("{path} in body should have at least {limit} properties");
            outcome.add(Problem::invalid(path, size, words));
        }
        if let Some(limit) = self.max_properties.filter(|limit| size > *limit) {
            let words = format!("{path} in body should have at most {limit} properties");
            outcome.add(Problem::new(path, words, What::TooMany { size, limit }));
        }
        for (name, value) in fields.iter().filter(|(name, _)| !self.properties.contains_key(*name)) {
            if self.closed {
                let words = format!("{path}.{name} in body is a forbidden property");
                outcome.add(Problem::invalid(path, name.as_str(), words));
            } else if let Some(validator) = &self.additional {
                outcome.merge(check_field(validator, name, value, past, &format!("{path}.{name}"), path.is_empty()));
            }
        }
        for (name, validator) in &self.properties {
            if let Some(value) = fields.get(name) {
                let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                outcome.merge(check_field(validator, name, value, past, &below, path.is_empty()));
            }
        }
        for name in self.required.iter().filter(|name| !fields.contains_key(*name)) {
            let path = format!("{path}.{name}");
            let words = format!("{path} in body is required");
            outcome.add(Problem::new(&path, words, What::Required));
        }
    }

    fn check_junctors(&self, value: &Value, past: Option<Past<'_>>, path: &str, outcome: &mut Outcome) {
        let shown = quoted(path);
        if !self.any_of.is_empty() {
            let (found, best) = alternatives(&self.any_of, value, past, path, true);
            if found == 0 {
                outcome.add(Problem::whole(format!("{shown} must validate at least one schema (anyOf)")));
            }
            outcome.merge(best);
        }
        if !self.one_of.is_empty() {
            let (found, best) = alternatives(&self.one_of, value, past, path, false);
            if found != 1 {
                let detail = match found {
                    0 => "Found none valid".to_owned(),
                    _ => format!("Found {found} valid alternatives"),
                };
                let words = format!("{shown} must validate one and only one schema (oneOf). {detail}");
                outcome.add(Problem::whole(words));
            }
            if found <= 1 {
                outcome.merge(best);
            }
        }
        if !self.all_of.is_empty() {
            let mut valid = 0;
            for validator in &self.all_of {
                let one = validator.check(value, past, path);
                valid += usize::from(one.problems.is_empty());
                outcome.merge(one);
            }
            if valid != self.all_of.len() {
                let detail = if valid == 0 { ". None validated" } else { "" };
                outcome.add(Problem::whole(format!("{shown} must validate all the schemas (allOf){detail}")));
            }
        }
        if self.not.as_ref().is_some_and(|not| not.check(value, past, path).problems.is_empty()) {
            outcome.add(Problem::whole(format!("{shown} must not validate the schema (not)")));
        }
    }
}

fn check_field(
    validator: &Validator,
    name: &str,
    value: &Value,
    past: Option<Past<'_>>,
    path: &str,
    at_root: bool,
) -> Outcome {
    let says_kind = at_root && matches!(name, "kind" | "apiVersion");
    let past = past.filter(|_| !says_kind).and_then(|past| past.field(name));
    validator.check_changed(value, past, path)
}

/// How many alternatives fit, and the outcome to go on with: the first that fits, or the one that comes closest.
fn alternatives(
    all: &[Validator],
    value: &Value,
    past: Option<Past<'_>>,
    path: &str,
    stop_at_first: bool,
) -> (usize, Outcome) {
    let mut found = 0;
    let mut best: Option<Outcome> = None;
    for validator in all {
        let one = validator.check(value, past, path);
        if one.problems.is_empty() {
            if found == 0 {
                best = Some(one);
            }
            found += 1;
            if stop_at_first {
                break;
            }
        } else if found == 0 && best.as_ref().is_none_or(|best| one.matches > best.matches) {
            best = Some(one);
        }
    }
    (found, best.unwrap_or_default())
}

/// Formats that mean nothing for the type are as good as none.
fn supported_format(props: &Props) -> String {
    let supported = match props.kinds()[..] {
        [] | ["string"] => formats::by_name(&props.format).is_some(),
        ["integer"] => matches!(props.format.as_str(), "int32" | "int64"),
        ["number"] => matches!(props.format.as_str(), "float" | "double"),
        _ => false,
    };
    if supported { props.format.clone() } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Error;
    use serde_json::json;

    fn problems(schema: &Value, value: Value, old: Option<Value>) -> Vec<String> {
        let props = Props::read(schema);
        let past = old.as_ref().map(|old| Past::new(&value, old, &props));
        validate(&Validator::new(&props), &value, past, "").0.iter().map(Error::to_string).collect()
    }

    fn spec(property: Value, value: Value) -> Vec<String> {
        let schema =
            json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"x": property}}}});
        problems(&schema, json!({"spec": {"x": value}}), None)
    }

    #[test]
    fn wrong_values_are_told_in_known_words() {
        for (property, value, expected) in [
            (json!({"type": "integer"}), json!(1), vec![]),
            (json!({"type": "number"}), json!(1), vec![]),
            (
                json!({"type": "integer"}),
                json!("x"),
                vec![r#"spec.x: Invalid value: "string": spec.x in body must be of type integer: "string""#],
            ),
            (
                json!({"type": "integer"}),
                json!(1.5),
                vec![
                    r#"spec.x: Invalid value: "number": spec.x in body must be of type integer: "number""#,
                    r#"<nil>: Invalid value: "": Checked value must be of type integer (default format) in spec.x"#,
                ],
            ),
            (
                json!({"type": "string"}),
                json!(null),
                vec![r#"spec.x: Invalid value: "null": spec.x in body must be of type string: "null""#],
            ),
            (json!({"type": "string", "nullable": true}), json!(null), vec![]),
            (
                json!({"type": "integer", "minimum": 1, "maximum": 60}),
                json!(0),
                vec!["spec.x: Invalid value: 0: spec.x in body should be greater than or equal to 1"],
            ),
            (
                json!({"type": "integer", "maximum": 60, "exclusiveMaximum": true}),
                json!(60),
                vec!["spec.x: Invalid value: 60: spec.x in body should be less than 60"],
            ),
            (
                json!({"type": "integer", "multipleOf": 5}),
                json!(7),
                vec!["spec.x: Invalid value: 7: spec.x in body should be a multiple of 5"],
            ),
            (
                json!({"type": "string", "enum": ["a", "b"]}),
                json!("c"),
                vec![r#"spec.x: Unsupported value: "c": supported values: "a", "b""#],
            ),
            (
                json!({"type": "string", "maxLength": 2}),
                json!("abc"),
                vec!["spec.x: Too long: may not be more than 2 bytes"],
            ),
            (
                json!({"type": "string", "minLength": 2}),
                json!("a"),
                vec![r#"spec.x: Invalid value: "a": spec.x in body should be at least 2 chars long"#],
            ),
            (
                json!({"type": "string", "pattern": "^a+$"}),
                json!("b"),
                vec![r#"spec.x: Invalid value: "b": spec.x in body should match '^a+$'"#],
            ),
            (
                json!({"type": "string", "format": "date-time"}),
                json!("b"),
                vec![r#"spec.x: Invalid value: "b": spec.x in body must be of type date-time: "b""#],
            ),
            (json!({"type": "string", "format": "unheard-of"}), json!("b"), vec![]),
            (
                json!({"type": "array", "maxItems": 1, "items": {"type": "string"}}),
                json!(["a", 1]),
                vec![
                    r#"spec.x[1]: Invalid value: "integer": spec.x[1] in body must be of type string: "integer""#,
                    "spec.x: Too many: 2: must have at most 1 item",
                ],
            ),
            (
                json!({"type": "object", "required": ["y"], "additionalProperties": {"type": "integer"}}),
                json!({"z": "1"}),
                vec![
                    r#"spec.x.z: Invalid value: "string": spec.x.z in body must be of type integer: "string""#,
                    "spec.x.y: Required value",
                ],
            ),
            (json!({"x-kubernetes-int-or-string": true}), json!("50%"), vec![]),
            (
                json!({"x-kubernetes-int-or-string": true}),
                json!(true),
                vec![r#"spec.x: Invalid value: "boolean": spec.x in body must be of type integer,string: "boolean""#],
            ),
            (
                json!({"type": "integer", "anyOf": [{"minimum": 10}, {"maximum": 1}]}),
                json!(5),
                vec![
                    r#"<nil>: Invalid value: "": "spec.x" must validate at least one schema (anyOf)"#,
                    "spec.x: Invalid value: 5: spec.x in body should be greater than or equal to 10",
                ],
            ),
            (
                json!({"type": "integer", "oneOf": [{"minimum": 1}, {"minimum": 2}]}),
                json!(5),
                vec![
                    r#"<nil>: Invalid value: "": "spec.x" must validate one and only one schema (oneOf). Found 2 valid alternatives"#,
                ],
            ),
            (
                json!({"type": "integer", "not": {"minimum": 1}}),
                json!(5),
                vec![r#"<nil>: Invalid value: "": "spec.x" must not validate the schema (not)"#],
            ),
            (
                json!({"type": "integer", "allOf": [{"minimum": 9}]}),
                json!(5),
                vec![
                    "spec.x: Invalid value: 5: spec.x in body should be greater than or equal to 9",
                    r#"<nil>: Invalid value: "": "spec.x" must validate all the schemas (allOf). None validated"#,
                ],
            ),
        ] {
            assert_eq!(spec(property.clone(), value.clone()), expected, "{property} {value}");
        }
    }

    #[test]
    fn what_did_not_change_is_let_be() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 5},
            "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"],
                "items": {"type": "object", "properties": {"n": {"type": "string"}, "v": {"type": "integer", "minimum": 5}}}},
            "plain": {"type": "array", "items": {"type": "integer", "minimum": 5}}}});
        let old = json!({"a": 1, "list": [{"n": "x", "v": 1}], "plain": [1]});
        let new = json!({"a": 1, "list": [{"n": "y", "v": 2}, {"n": "x", "v": 1}], "plain": [1, 9]});
        assert_eq!(
            problems(&schema, new, Some(old)),
            [
                "list[0].v: Invalid value: 2: list[0].v in body should be greater than or equal to 5",
                "plain[0]: Invalid value: 1: plain[0] in body should be greater than or equal to 5",
            ]
        );
    }
}
