//! ValidatingAdmissionPolicy: refuses writes that do not satisfy CEL expressions.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use knarr_api::cel::Value as Cel;
use knarr_api::status::Status;
use knarr_api::value::Read;
use knarr_rules::admissionregistration::expressions::Scope;
use serde_json::{Value, json};

use super::binding::Binding;
use super::definition::{self, Policy};
use super::parameters::{self, Missing};
use crate::admit::dynamic::activation::{Evaluation, Expression, Failure, Input, POLICY_BUDGET, RequestAuthority};
use crate::admit::dynamic::cached::Cached;
use crate::admit::dynamic::versioned::Versioned;
use crate::admit::dynamic::{is_exempt, request};
use crate::admit::{Plugin, Write};
use crate::metrics::policy_checked;
use crate::object_reader::ObjectReader;
use crate::resource_request::ResourceRequest;

const RESOURCES: (&str, &str) = ("validatingadmissionpolicies", "validatingadmissionpolicybindings");
/// Why a validation could not be evaluated, as metrics name it.
const NO_ERROR: &str = "no_error";
const INVALID: &str = "invalid_error";
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
    fn read(spec: &Value, scope: &Scope) -> Body {
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
struct Denial {
    /// The index of the validation.
    index: usize,
    message: String,
    reason: String,
    /// Why it could not be evaluated, as metrics name it.
    error: &'static str,
    took: Duration,
}

/// The result of evaluating a policy.
#[derive(Debug, Default)]
struct Verdict {
    denials: Vec<Denial>,
    annotations: Vec<(String, String)>,
    /// Validations that could not be evaluated, where the policy ignores that.
    ignored: Vec<(&'static str, Duration)>,
    /// A failed annotation, which refuses the write whatever the binding's actions are.
    broken: Option<String>,
}

pub struct ValidatingPolicies(Cached<Vec<Policy<Body>>>);

impl Default for ValidatingPolicies {
    fn default() -> Self {
        ValidatingPolicies(Cached::new(&[RESOURCES.0, RESOURCES.1]))
    }
}

impl ValidatingPolicies {
    fn all(&self, objects: &dyn ObjectReader) -> Result<std::sync::Arc<Vec<Policy<Body>>>, Status> {
        self.0.get(objects, |objects| definition::read_all(objects, RESOURCES, Body::read))
    }
}

#[async_trait]
impl Plugin for ValidatingPolicies {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionPolicy"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        let Some(call) = write.call else { return false };
        // Unreadable policies are handled too: the plugin then refuses the write.
        let concerns = self.all(&*call.server.objects).map_or(true, |policies| !policies.is_empty());
        concerns && !is_exempt(write)
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let Some(call) = write.call else { return Ok(()) };
        let mut refusals = Vec::new();
        for policy in self.all(objects)?.iter() {
            evaluate_policy(policy, write, call, objects, &mut refusals).await?;
        }
        match refusals.into_iter().next() {
            None => Ok(()),
            Some((message, reason)) => Err(refusal(write, message, reason)),
        }
    }
}

/// Refusals with their messages and reasons; the first is returned to the client.
type Refusals = Vec<(String, String)>;

async fn evaluate_policy(
    policy: &Policy<Body>,
    write: &mut Write<'_>,
    call: &ResourceRequest<'_>,
    objects: &dyn ObjectReader,
    refusals: &mut Refusals,
) -> Result<(), Status> {
    let misconfigured = |binding: Option<&Binding>, why: &str, refusals: &mut Refusals| {
        if !policy.ignores_failure {
            let what = if binding.is_some() { "binding" } else { "policy" };
            refusals
                .push((refusal_message(policy, binding, &format!("failed to configure {what}: {why}")), String::new()));
        }
    };
    let matched = match policy.criteria.matches(write, call, objects) {
        Ok(Some(matched)) => matched,
        Ok(None) => return Ok(()),
        Err(status) => {
            misconfigured(None, &status.message, refusals);
            return Ok(());
        }
    };
    let resource = match policy.parameter_kind.as_ref().map(|kind| parameters::resource_of(call, kind)).transpose() {
        Ok(resource) => resource,
        Err(Missing::Kind(why) | Missing::Reference(why)) => {
            misconfigured(None, &why, refusals);
            return Ok(());
        }
    };
    let mut versioned = None;
    let mut annotations: Vec<(String, Vec<String>)> = Vec::new();
    for binding in &policy.bindings {
        match binding.criteria.as_ref().map(|criteria| criteria.matches(write, call, objects)).transpose() {
            Ok(None | Some(Some(_))) => {}
            Ok(Some(None)) => continue,
            Err(status) => {
                misconfigured(Some(binding), &status.message, refusals);
                continue;
            }
        }
        let given = match parameters::of(call, resource.as_ref(), binding, write.namespace).await {
            Ok(given) => given,
            Err(Missing::Kind(why) | Missing::Reference(why)) => {
                misconfigured(Some(binding), &why, refusals);
                continue;
            }
        };
        if given.is_empty() {
            continue;
        }
        if versioned.is_none() {
            match Versioned::new(write, call, matched.clone()).await {
                Ok(made) => versioned = Some(made),
                Err(status) => {
                    let why = format!("failed to convert object version: {}", status.message);
                    misconfigured(Some(binding), &why, refusals);
                    continue;
                }
            }
        }
        let Some(versioned) = &versioned else { continue };
        let namespace = super::namespace_of(write, objects)?;
        for parameter in &given {
            let verdict = evaluate(policy, write, call, versioned, parameter.as_ref(), &namespace);
            enforce(policy, binding, write, call, &verdict, refusals);
            for (key, value) in verdict.annotations {
                match annotations.iter_mut().find(|(own, _)| *own == key) {
                    Some((_, values)) if values.contains(&value) => {}
                    Some((_, values)) => values.push(value),
                    None => annotations.push((key, vec![value])),
                }
            }
        }
    }
    for (key, values) in annotations {
        call.annotate(format!("{}/{key}", policy.name), values.join(", "));
    }
    Ok(())
}

fn evaluate(
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
            let mut text = Cow::into_owned(text).trim().to_owned();
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

/// Applies the binding's actions to a verdict.
fn enforce(
    policy: &Policy<Body>,
    binding: &Binding,
    write: &mut Write<'_>,
    call: &ResourceRequest<'_>,
    verdict: &Verdict,
    refusals: &mut Refusals,
) {
    let record = |action: &str, error: &str, took| policy_checked(action, error, &policy.name, &binding.name, took);
    verdict.ignored.iter().for_each(|(error, took)| record("allow", error, *took));
    for denial in &verdict.denials {
        for action in &binding.actions {
            let lower = match action.as_str() {
                "Deny" => "deny",
                "Warn" => "warn",
                "Audit" => "audit",
                _ => continue,
            };
            record(lower, denial.error, denial.took);
            match action.as_str() {
                "Deny" => {
                    refusals.push((refusal_message(policy, Some(binding), &denial.message), denial.reason.clone()))
                }
                "Warn" => write.warnings.push(format!(
                    "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                    policy.name, binding.name, denial.message
                )),
                "Audit" => {
                    let description = json!([{
                        "message": denial.message, "policy": policy.name, "binding": binding.name,
                        "expressionIndex": denial.index, "validationActions": binding.actions,
                    }]);
                    call.annotate(
                        "validation.policy.admission.k8s.io/validation_failure".to_owned(),
                        description.to_string(),
                    );
                }
                _ => {}
            }
        }
    }
    if let Some(why) = &verdict.broken {
        record("deny", INVALID, Duration::ZERO);
        refusals.push((refusal_message(policy, Some(binding), why), String::new()));
    }
}

fn refusal_message(policy: &Policy<Body>, binding: Option<&Binding>, message: &str) -> String {
    match binding {
        Some(binding) => format!(
            "ValidatingAdmissionPolicy '{}' with binding '{}' denied request: {message}",
            policy.name, binding.name
        ),
        None => format!("ValidatingAdmissionPolicy '{}' denied request: {message}", policy.name),
    }
}

fn refusal(write: &Write<'_>, message: String, reason: String) -> Status {
    let mut status = write.forbidden(&message).with_cause("", message, "");
    let reason = if reason.is_empty() { "Invalid".to_owned() } else { reason };
    status.code = match reason.as_str() {
        "Unauthorized" => 401,
        "Forbidden" => 403,
        "RequestEntityTooLarge" => 413,
        _ => 422,
    };
    status.reason = reason.into();
    status
}
