//! The evaluation of a policy's expressions on one write.

use std::time::{Duration, Instant};

use knarr_api::cel::Value as Cel;
use knarr_api::value::Read;
use knarr_rules::admissionregistration::expressions::Scope;
use serde_json::Value;

use crate::admit::Write;
use crate::admit::dynamic::activation::{Evaluation, Expression, Failure, Input, POLICY_BUDGET, RequestAuthority};
use crate::admit::dynamic::request;
use crate::admit::dynamic::versioned::Versioned;
use crate::admit::policy::definition::{self, Policy};
use crate::resource_request::ResourceRequest;

/// Why a validation could not be evaluated, as metrics name it.
const NO_ERROR: &str = "no_error";
pub const INVALID: &str = "invalid_error";
const OUT_OF_BUDGET: &str = "out_of_budget";
const MAX_MESSAGE_BYTES: usize = 5 * 1024;
const MAX_ANNOTATION_BYTES: usize = 10 * 1024;

/// The validations of a policy.
#[derive(Debug)]
pub struct Body {
    validations: Vec<Validation>,
    annotations: Vec<(String, Expression)>,
}

#[derive(Debug)]
struct Validation {
    demand: Expression,
    message: String,
    message_expression: Option<Expression>,
    reason: String,
}

impl Body {
    pub fn read(spec: &Value, scope: &Scope) -> Body {
        let silent = scope.clone().without_authorizer();
        let validation = |validation: &Value| Validation {
            demand: definition::compile(scope, validation.text(&["expression"])),
            message: validation.text(&["message"]).trim().to_owned(),
            message_expression: Some(validation.text(&["messageExpression"]))
                .filter(|text| !text.is_empty())
                .map(|text| definition::compile(&silent, text)),
            reason: validation.text(&["reason"]).to_owned(),
        };
        let annotation = |annotation: &Value| {
            let expression = definition::compile(&silent, annotation.text(&["valueExpression"]));
            (annotation.text(&["key"]).to_owned(), expression)
        };
        Body {
            validations: spec.items(&["validations"]).iter().map(validation).collect(),
            annotations: spec.items(&["auditAnnotations"]).iter().map(annotation).collect(),
        }
    }
}

/// A validation that failed or could not be evaluated.
#[derive(Debug, PartialEq, Eq)]
pub struct Denial {
    /// The index of the validation.
    pub index: usize,
    pub message: String,
    pub reason: String,
    /// Why it could not be evaluated, as metrics name it.
    pub error: &'static str,
    pub took: Duration,
}

/// The result of evaluating a policy.
#[derive(Debug, Default)]
pub struct Verdict {
    pub denials: Vec<Denial>,
    pub annotations: Vec<(String, String)>,
    /// Validations that could not be evaluated, where the policy ignores that.
    pub ignored: Vec<(&'static str, Duration)>,
    /// A failed annotation, which refuses the write whatever the binding's actions are.
    pub broken: Option<String>,
}

pub fn evaluate(
    policy: &Policy<Body>,
    write: &Write<'_>,
    call: &ResourceRequest<'_>,
    versioned: &Versioned,
    parameter: Option<&Value>,
    namespace: &Value,
) -> Verdict {
    let description =
        Value::Object(request::describe(write, &versioned.matched, call.operation_options(write.operation)));
    let authority = RequestAuthority { call, subresource: write.subresource, name: write.known_name() };
    let input = Input {
        object: &versioned.object,
        old: &versioned.old,
        request: &description,
        parameter,
        namespace,
        authorizer: &authority,
    };
    match policy.conditions.hold(&input) {
        Ok(true) => {}
        Ok(false) => return Verdict::default(),
        Err(why) => return failed(policy, why, INVALID),
    }
    let mut evaluation = Evaluation::new(&input, &policy.variables, POLICY_BUDGET);
    let mut verdict = Verdict::default();
    for (index, validation) in policy.body.validations.iter().enumerate() {
        let started = Instant::now();
        match evaluation.evaluate(&validation.demand) {
            Ok(Cel::Bool(true)) => {}
            Ok(_) => {
                let message = match denial_message(&mut evaluation, validation) {
                    Ok(message) => message,
                    Err(why) => return failed(policy, format!("failed messageExpression: {why}"), OUT_OF_BUDGET),
                };
                let reason =
                    if validation.reason.is_empty() { "Invalid".to_owned() } else { validation.reason.clone() };
                let took = started.elapsed();
                verdict.denials.push(Denial { index, message, reason, error: NO_ERROR, took });
            }
            Err(Failure::OutOfBudget(why)) => return failed(policy, why, OUT_OF_BUDGET),
            Err(Failure::Failed(message)) => {
                let (error, took) = (error_type(&message), started.elapsed());
                match policy.ignores_failure {
                    true => verdict.ignored.push((error, took)),
                    false => verdict.denials.push(Denial { index, message, reason: String::new(), error, took }),
                }
            }
        }
    }
    let mut evaluation = Evaluation::new(&input, &policy.variables, POLICY_BUDGET);
    for (key, expression) in &policy.body.annotations {
        match annotation(&mut evaluation, expression) {
            Ok(Some(value)) => verdict.annotations.push((key.clone(), value)),
            Ok(None) => {}
            Err(_) if policy.ignores_failure => {}
            Err(why) => drop(verdict.broken.get_or_insert(why)),
        }
    }
    verdict
}

/// The result of a policy that could not be evaluated.
fn failed(policy: &Policy<Body>, message: String, error: &'static str) -> Verdict {
    let (mut verdict, took) = (Verdict::default(), Duration::ZERO);
    match policy.ignores_failure {
        true => verdict.ignored.push((error, took)),
        false => verdict.denials.push(Denial { index: 0, message, reason: String::new(), error, took }),
    }
    verdict
}

/// The kind of an error, as metrics name it.
fn error_type(message: &str) -> &'static str {
    if message.starts_with("compilation") { "compile_error" } else { INVALID }
}

/// The message to the client: of the message expression, else of the policy, else the failed expression.
fn denial_message<'a>(evaluation: &mut Evaluation<'a>, validation: &'a Validation) -> Result<String, String> {
    let mut message = String::new();
    if let Some(expression) = &validation.message_expression {
        match evaluation.evaluate(expression) {
            Ok(Cel::String(text)) => {
                let text = text.trim();
                if text.len() <= MAX_MESSAGE_BYTES && !text.contains('\n') {
                    message = text.to_owned();
                }
            }
            Ok(_) => {}
            Err(Failure::OutOfBudget(why)) => return Err(why),
            Err(Failure::Failed(why)) => tracing::debug!(why, "messageExpression failed"),
        }
    }
    Ok(match (message.is_empty(), validation.message.is_empty()) {
        (false, _) => message,
        (true, false) => validation.message.clone(),
        (true, true) => format!("failed expression: {}", validation.demand.text.trim()),
    })
}

fn annotation<'a>(evaluation: &mut Evaluation<'a>, expression: &'a Expression) -> Result<Option<String>, String> {
    match evaluation.evaluate(expression) {
        Ok(Cel::Null) => Ok(None),
        Ok(Cel::String(text)) => {
            let mut text = text.trim().to_owned();
            if text.len() > MAX_ANNOTATION_BYTES {
                let end = (0..=MAX_ANNOTATION_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
                text.truncate(end);
            }
            Ok(Some(text).filter(|text| !text.is_empty()))
        }
        Ok(other) => Err(format!(
            "valueExpression '{}' resulted in unsupported return type: {}. Return type must be either string or null.",
            expression.text,
            other.type_name()
        )),
        Err(failure) => Err(failure.text().to_owned()),
    }
}
