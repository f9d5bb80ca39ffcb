//! Validation of numbers: range, limits and factor.

use super::place::Place;
use super::violation::{Outcome, Violation};
use crate::json_schema::JsonSchemaProps;
use serde_json::Value;

/// The constraints of a schema on numbers.
#[derive(Debug)]
pub(super) struct Numbers {
    maximum: Option<f64>,
    exclusive_maximum: bool,
    minimum: Option<f64>,
    exclusive_minimum: bool,
    multiple_of: Option<f64>,
}

impl Numbers {
    /// The limits of a schema.
    pub fn of(props: &JsonSchemaProps) -> Self {
        Numbers {
            maximum: props.maximum,
            exclusive_maximum: props.exclusive_maximum,
            minimum: props.minimum,
            exclusive_minimum: props.exclusive_minimum,
            multiple_of: props.multiple_of,
        }
    }

    /// Reports the limits that a number violates.
    pub fn check(&self, value: &Value, kinds: &[String], format: &str, path: &Place<'_>, outcome: &mut Outcome) {
        let Some(number) = value.as_f64() else { return };
        let kind = if let [kind] = kinds { kind.as_str() } else { "" };
        let in_range = |number: f64| match (kind, format) {
            ("integer", "int32") => {
                number.fract() == 0.0 && number.abs() <= 2_147_483_648.0 && number < 2_147_483_648.0
            }
            ("integer", _) => number.fract() == 0.0 && number.abs() < 9.3e18,
            ("number", "float") => number.abs() <= f64::from(f32::MAX),
            _ => true,
        };
        let out_of_range = |what: &str| {
            let format = match (kind, format) {
                ("integer", "int32" | "int64") | ("number", "float" | "double") => format!("with format {format}"),
                _ => "(default format)".to_owned(),
            };
            Violation::whole(format!("{what} value must be of type {kind} {format} in {path}"))
        };
        if !in_range(number) {
            outcome.add(out_of_range("Checked"));
        }
        // Whole numbers are compared with the whole part of a limit.
        let whole = value.is_i64() || value.is_u64();
        let native = |limit: f64| if whole && in_range(limit) { limit.trunc() } else { limit };
        if let Some(factor) = self.multiple_of {
            if !in_range(factor) {
                outcome.add(out_of_range("MultipleOf"));
            }
            let factor = native(factor);
            let times = if factor < 1.0 { 1.0 / factor * number } else { number / factor };
            if factor <= 0.0 {
                let message =
                    format!("factor MultipleOf declared for {path} must be positive: {}", format_number(factor));
                let factor = if whole { Value::from(factor as i64) } else { Value::from(factor) };
                outcome.add(Violation::invalid(path, factor, message));
            } else if (times - times.round()).abs() > 1e-9 * times.abs().max(1.0) {
                let message = format!("{path} in body should be a multiple of {}", format_number(factor));
                outcome.add(Violation::invalid(path, value.clone(), message));
            }
        }
        if let Some(limit) = self.minimum {
            if !in_range(limit) {
                outcome.add(out_of_range("Minimum boundary"));
            }
            let limit = native(limit);
            if number < limit || self.exclusive_minimum && number <= limit {
                let than = if self.exclusive_minimum { "than" } else { "than or equal to" };
                let message = format!("{path} in body should be greater {than} {}", format_number(limit));
                outcome.add(Violation::invalid(path, value.clone(), message));
            }
        }
        if let Some(limit) = self.maximum {
            if !in_range(limit) {
                outcome.add(out_of_range("Maximum boundary"));
            }
            let limit = native(limit);
            if number > limit || self.exclusive_maximum && number >= limit {
                let than = if self.exclusive_maximum { "than" } else { "than or equal to" };
                let message = format!("{path} in body should be less {than} {}", format_number(limit));
                outcome.add(Violation::invalid(path, value.clone(), message));
            }
        }
        outcome.matches += 1;
    }
}

fn format_number(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < 1e21 { format!("{number:.0}") } else { number.to_string() }
}
