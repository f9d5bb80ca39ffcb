//! Validation of values against JSON schemas, with the error messages of Kubernetes.

#[cfg(test)]
mod tests;

use super::correlated::CorrelatedValue;
use super::numbers::Numbers;
use super::place::Place;
use super::violation::{Outcome, Violation, ViolationKind};
use crate::field::{Errors, quoted};
use crate::json_schema::{AdditionalProperties, JsonSchemaProps};
use crate::json_schema::{compile_pattern, format_named};
use regex::Regex;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// A schema prepared for validation.
#[derive(Debug)]
pub(super) struct Validator {
    kinds: Vec<String>,
    nullable: bool,
    format: String,
    check_format: Option<fn(&str) -> bool>,
    numbers: Numbers,
    max_length: Option<i64>,
    min_length: Option<i64>,
    pattern: Option<Pattern>,
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

/// A pattern, compiled when the first value is compared with it: most schemas are never used, and patterns are large.
#[derive(Debug)]
struct Pattern {
    text: String,
    compiled: OnceLock<Result<Regex, String>>,
}

impl Pattern {
    fn new(text: &str) -> Self {
        Pattern { text: text.to_owned(), compiled: OnceLock::new() }
    }

    fn compiled(&self) -> &Result<Regex, String> {
        self.compiled.get_or_init(|| compile_pattern(&self.text))
    }
}

/// Validates a value. Violations in values that did not change since `correlated` are ignored.
pub(super) fn validate(
    validator: &Validator,
    value: &Value,
    correlated: Option<CorrelatedValue<'_>>,
    prefix: &str,
) -> Errors {
    let outcome = validator.check_changed(value, correlated, &Place::Root);
    let mut errors = Errors::new();
    outcome.violations.into_iter().for_each(|violation| errors.push(violation.into_error(prefix)));
    errors
}

impl Validator {
    /// Compiles the validation of a schema.
    pub fn new(props: &JsonSchemaProps) -> Self {
        let all = |schemas: &[JsonSchemaProps]| schemas.iter().map(Validator::new).collect();
        let format = supported_format(props);
        Validator {
            kinds: props.kinds().iter().map(|kind| (*kind).to_owned()).collect(),
            nullable: props.nullable,
            check_format: format_named(&format),
            format,
            numbers: Numbers::of(props),
            max_length: props.max_length,
            min_length: props.min_length,
            pattern: (!props.pattern.is_empty()).then(|| Pattern::new(&props.pattern)),
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
            closed: props.additional == Some(AdditionalProperties::Allowed(false)),
            items: props.items.as_deref().map(|items| Box::new(Validator::new(items))),
        }
    }

    /// The validator of a property of that name.
    pub fn property(&self, name: &str) -> Option<&Validator> {
        self.properties.get(name)
    }

    /// Validates a value, ignoring violations if it did not change.
    fn check_changed(&self, value: &Value, correlated: Option<CorrelatedValue<'_>>, path: &Place<'_>) -> Outcome {
        let outcome = self.check(value, correlated, path);
        if !outcome.violations.is_empty() && correlated.is_some_and(|correlated| correlated.is_unchanged()) {
            return outcome.without_violations();
        }
        outcome
    }

    fn check(&self, value: &Value, correlated: Option<CorrelatedValue<'_>>, path: &Place<'_>) -> Outcome {
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
        self.check_junctors(value, correlated, path, &mut outcome);
        outcome.matches += 2;
        match value {
            Value::String(text) => {
                self.check_text(text, path, &mut outcome);
                outcome.matches += 1;
                if let Some(fits) = self.check_format {
                    if !fits(text) {
                        outcome.add(Violation::wrong_type(path, &self.format, text));
                    }
                    outcome.matches += 1;
                }
            }
            Value::Number(_) => {
                self.numbers.check(value, &self.kinds, &self.format, path, &mut outcome);
                outcome.matches += 2;
            }
            Value::Array(items) => {
                self.check_items(items, correlated, path, &mut outcome);
                outcome.matches += 2;
            }
            _ => {}
        }
        self.check_values(value, path, &mut outcome);
        outcome.matches += 1;
        if let Value::Object(fields) = value {
            self.check_fields(fields, correlated, path, &mut outcome);
            outcome.matches += 1;
        }
        outcome.matches += 1;
        outcome
    }

    fn check_type(&self, value: &Value, path: &Place<'_>, outcome: &mut Outcome) {
        let expected = self.kinds.join(",");
        let allows = |kind: &str| self.kinds.iter().any(|other| other == kind);
        let (kind, format) = match value {
            Value::Null => {
                if !self.kinds.is_empty() && !allows("null") && !self.nullable {
                    outcome.add(Violation::wrong_type(path, &expected, "null"));
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
            return outcome.add(Violation::wrong_type(path, &self.format, format));
        }
        let formatted_text = !self.format.is_empty() && is_text_or_list && !allows("number") && !allows("integer");
        if !(formatted_text || fits) {
            return outcome.add(Violation::wrong_type(path, &expected, kind));
        }
        outcome.matches += 1;
    }

    fn check_text(&self, text: &str, path: &Place<'_>, outcome: &mut Outcome) {
        let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        if let Some(limit) = self.max_length.filter(|limit| length > *limit) {
            let message = format!("{path} in body should be at most {limit} chars long");
            return outcome.add(Violation::new(path, message, ViolationKind::TooLong(limit)));
        }
        if let Some(limit) = self.min_length.filter(|limit| length < *limit) {
            let message = format!("{path} in body should be at least {limit} chars long");
            return outcome.add(Violation::invalid(path, text, message));
        }
        match self.pattern.as_ref().map(|pattern| (&pattern.text, pattern.compiled())) {
            Some((pattern, Ok(regex))) if !regex.is_match(text) => {
                outcome.add(Violation::invalid(path, text, format!("{path} in body should match '{pattern}'")));
            }
            Some((pattern, Err(error))) => {
                let message = format!("{path} in body should match '{pattern}, but pattern is invalid: {error}'");
                outcome.add(Violation::invalid(path, text, message));
            }
            _ => {}
        }
    }

    fn check_items(
        &self,
        items: &[Value],
        correlated: Option<CorrelatedValue<'_>>,
        path: &Place<'_>,
        outcome: &mut Outcome,
    ) {
        if let Some(validator) = &self.items {
            let elements = correlated.and_then(|correlated| correlated.elements());
            for (at, item) in items.iter().enumerate() {
                if outcome.is_full() {
                    return;
                }
                let path = Place::Index(path, at);
                let correlated = elements.as_ref().and_then(|elements| elements.at(at));
                outcome.merge(validator.check_changed(item, correlated, &path));
            }
        }
        let size = i64::try_from(items.len()).unwrap_or(i64::MAX);
        if let Some(limit) = self.min_items.filter(|limit| size < *limit) {
            let message = format!("{path} in body should have at least {limit} items");
            outcome.add(Violation::invalid(path, size, message));
        }
        if let Some(limit) = self.max_items.filter(|limit| size > *limit) {
            let message = format!("{path} in body should have at most {limit} items");
            outcome.add(Violation::new(path, message, ViolationKind::TooMany { size, limit }));
        }
        if self.unique_items && (1..items.len()).any(|at| items[..at].contains(&items[at])) {
            outcome.add(Violation::invalid(path, "", format!("{path} in body shouldn't contain duplicates")));
        }
    }

    fn check_values(&self, value: &Value, path: &Place<'_>, outcome: &mut Outcome) {
        let same = |allowed: &Value| !value.is_null() && crate::apply::same_value(allowed, value);
        if !self.values.is_empty() && !self.values.iter().any(same) {
            let message =
                format!("{path} in body should be one of {}", crate::patch::go_format(&self.values.clone().into()));
            outcome.add(Violation::new(path, message, ViolationKind::NotOneOf(value.clone(), self.values.clone())));
        }
    }

    fn check_fields(
        &self,
        fields: &Map<String, Value>,
        correlated: Option<CorrelatedValue<'_>>,
        path: &Place<'_>,
        outcome: &mut Outcome,
    ) {
        let size = i64::try_from(fields.len()).unwrap_or(i64::MAX);
        if let Some(limit) = self.min_properties.filter(|limit| size < *limit) {
            let message = format!("{path} in body should have at least {limit} properties");
            outcome.add(Violation::invalid(path, size, message));
        }
        if let Some(limit) = self.max_properties.filter(|limit| size > *limit) {
            let message = format!("{path} in body should have at most {limit} properties");
            outcome.add(Violation::new(path, message, ViolationKind::TooMany { size, limit }));
        }
        for (name, value) in fields.iter().filter(|(name, _)| !self.properties.contains_key(*name)) {
            if outcome.is_full() {
                return;
            }
            if self.closed {
                let message = format!("{path}.{name} in body is a forbidden property");
                outcome.add(Violation::invalid(path, name.as_str(), message));
            } else if let Some(validator) = &self.additional {
                let below = Place::Dotted(path, name);
                outcome.merge(check_field(validator, name, value, correlated, &below, path.is_root()));
            }
        }
        for (name, validator) in &self.properties {
            if let Some(value) = fields.get(name) {
                let below = Place::Field(path, name);
                outcome.merge(check_field(validator, name, value, correlated, &below, path.is_root()));
            }
        }
        for name in self.required.iter().filter(|name| !fields.contains_key(*name)) {
            let path = Place::Dotted(path, name);
            let message = format!("{path} in body is required");
            outcome.add(Violation::new(&path, message, ViolationKind::Required));
        }
    }

    fn check_junctors(
        &self,
        value: &Value,
        correlated: Option<CorrelatedValue<'_>>,
        path: &Place<'_>,
        outcome: &mut Outcome,
    ) {
        let shown = || quoted(&path.to_string());
        if !self.any_of.is_empty() {
            let (found, best) = alternatives(&self.any_of, value, correlated, path, true);
            if found == 0 {
                outcome.add(Violation::whole(format!("{} must validate at least one schema (anyOf)", shown())));
            }
            outcome.merge(best);
        }
        if !self.one_of.is_empty() {
            let (found, best) = alternatives(&self.one_of, value, correlated, path, false);
            if found != 1 {
                let detail = match found {
                    0 => "Found none valid".to_owned(),
                    _ => format!("Found {found} valid alternatives"),
                };
                let message = format!("{} must validate one and only one schema (oneOf). {detail}", shown());
                outcome.add(Violation::whole(message));
            }
            if found <= 1 {
                outcome.merge(best);
            }
        }
        if !self.all_of.is_empty() {
            let mut valid = 0;
            for validator in &self.all_of {
                let one = validator.check(value, correlated, path);
                valid += usize::from(one.violations.is_empty());
                outcome.merge(one);
            }
            if valid != self.all_of.len() {
                let detail = if valid == 0 { ". None validated" } else { "" };
                outcome.add(Violation::whole(format!("{} must validate all the schemas (allOf){detail}", shown())));
            }
        }
        if self.not.as_ref().is_some_and(|not| not.check(value, correlated, path).violations.is_empty()) {
            outcome.add(Violation::whole(format!("{} must not validate the schema (not)", shown())));
        }
    }
}

fn check_field(
    validator: &Validator,
    name: &str,
    value: &Value,
    correlated: Option<CorrelatedValue<'_>>,
    path: &Place<'_>,
    at_root: bool,
) -> Outcome {
    let is_type_meta = at_root && matches!(name, "kind" | "apiVersion");
    let correlated = correlated.filter(|_| !is_type_meta).and_then(|correlated| correlated.field(name));
    validator.check_changed(value, correlated, path)
}

/// The number of alternatives that fit, and the outcome to report: the first that fits, or the one with the most matches.
fn alternatives(
    all: &[Validator],
    value: &Value,
    correlated: Option<CorrelatedValue<'_>>,
    path: &Place<'_>,
    stop_at_first: bool,
) -> (usize, Outcome) {
    let mut found = 0;
    let mut best: Option<Outcome> = None;
    for validator in all {
        let one = validator.check(value, correlated, path);
        if one.violations.is_empty() {
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

/// The format of a schema, or an empty text if it does not apply to the type.
fn supported_format(props: &JsonSchemaProps) -> String {
    let supported = match props.kinds()[..] {
        [] | ["string"] => format_named(&props.format).is_some(),
        ["integer"] => matches!(props.format.as_str(), "int32" | "int64"),
        ["number"] => matches!(props.format.as_str(), "float" | "double"),
        _ => false,
    };
    if supported { props.format.clone() } else { String::new() }
}
