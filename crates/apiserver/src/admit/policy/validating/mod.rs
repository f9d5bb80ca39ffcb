//! ValidatingAdmissionPolicy: refuses writes that do not satisfy CEL expressions.

mod evaluate;

use std::time::Duration;

use async_trait::async_trait;
use knarr_api::status::Status;
use serde_json::json;

use super::binding::Binding;
use super::definition::{self, Policy};
use super::parameters::{self, Missing};
use crate::admit::dynamic::cached::Cached;
use crate::admit::dynamic::is_exempt;
use crate::admit::dynamic::versioned::Versioned;
use crate::admit::{Plugin, Write};
use crate::metrics::policy_checked;
use crate::object_reader::ObjectReader;
use crate::resource_request::ResourceRequest;
use evaluate::{INVALID, Verdict, evaluate};

pub use evaluate::Body;

const RESOURCES: (&str, &str) = ("validatingadmissionpolicies", "validatingadmissionpolicybindings");
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
        let concerns = self.all(&*call.backend.objects).map_or(true, |policies| !policies.is_empty());
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
