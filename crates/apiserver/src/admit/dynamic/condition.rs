//! Match conditions of policies and webhooks.

use knarr_api::cel::Value as Cel;
use knarr_api::value::Read;
use knarr_rules::admissionregistration::expressions::Scope;
use serde_json::Value;

use super::activation::{CONDITIONS_BUDGET, Evaluation, Expression, Input};

/// Conditions that must all hold.
#[derive(Debug, Default)]
pub struct Conditions {
    all: Vec<Expression>,
    /// Whether a failed condition skips the policy or webhook.
    ignores_failure: bool,
}

impl Conditions {
    pub fn read(conditions: &[Value], has_parameters: bool, ignores_failure: bool) -> Conditions {
        let scope = Scope::new(has_parameters);
        let compile = |condition: &Value| {
            let text = condition.text(&["expression"]).to_owned();
            let program = scope.compile(&text).map_err(|error| error.to_string());
            Expression { text, program }
        };
        Conditions { all: conditions.iter().map(compile).collect(), ignores_failure }
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether all hold. A false condition decides; errors count only if no condition is false.
    pub fn hold(&self, input: &Input<'_>) -> Result<bool, String> {
        let mut evaluation = Evaluation::new(input, &[], CONDITIONS_BUDGET);
        let mut failures = Vec::new();
        for expression in &self.all {
            match evaluation.evaluate(expression) {
                Ok(Cel::Bool(false)) => return Ok(false),
                Ok(_) => {}
                Err(failure @ super::activation::Failure::OutOfBudget(_)) => {
                    return if self.ignores_failure { Ok(false) } else { Err(failure.text().to_owned()) };
                }
                Err(failure) => failures.push(failure.text().to_owned()),
            }
        }
        match failures.len() {
            0 => Ok(true),
            _ if self.ignores_failure => Ok(false),
            1 => Err(failures.remove(0)),
            _ => Err(format!("[{}]", failures.join(", "))),
        }
    }
}
