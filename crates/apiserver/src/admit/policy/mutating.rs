//! MutatingAdmissionPolicy: expressions that change writes.

use async_trait::async_trait;
use knarr_api::status::Status;
use knarr_api::value::Read;
use knarr_rules::admissionregistration::expressions::Scope;
use serde_json::Value;

use super::binding::Binding;
use super::definition::{self, Policy};
use super::mutation::Mutation;
use super::parameters::{self, Missing};
use crate::admit::dynamic::activation::{Evaluation, Input, POLICY_BUDGET, RequestAuthority};
use crate::admit::dynamic::cached::Cached;
use crate::admit::dynamic::criteria::Matched;
use crate::admit::dynamic::versioned::Versioned;
use crate::admit::dynamic::{is_exempt, request};
use crate::admit::{Operation, Plugin, Write};
use crate::decode::Expected;
use crate::object_reader::ObjectReader;
use crate::resource_request::ResourceRequest;

const RESOURCES: (&str, &str) = ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings");

/// The mutations of a policy.
#[derive(Debug)]
pub struct Body {
    mutations: Vec<Mutation>,
    /// Whether it is reinvoked after later changes by others.
    reinvoked: bool,
}

impl Body {
    fn read(spec: &Value, scope: &Scope) -> Body {
        let scope = scope.clone().mutating();
        Body {
            mutations: spec.items(&["mutations"]).iter().map(|mutation| Mutation::read(mutation, &scope)).collect(),
            reinvoked: spec.text(&["reinvocationPolicy"]) == "IfNeeded",
        }
    }
}

/// A policy that failed.
struct Failed {
    message: String,
    reason: &'static str,
}

pub struct MutatingPolicies(Cached<Vec<Policy<Body>>>);

impl Default for MutatingPolicies {
    fn default() -> Self {
        MutatingPolicies(Cached::new(&[RESOURCES.0, RESOURCES.1]))
    }
}

impl MutatingPolicies {
    fn all(&self, objects: &dyn ObjectReader) -> Result<std::sync::Arc<Vec<Policy<Body>>>, Status> {
        self.0.get(objects, |objects| definition::read_all(objects, RESOURCES, Body::read))
    }
}

#[async_trait]
impl Plugin for MutatingPolicies {
    fn name(&self) -> &'static str {
        "MutatingAdmissionPolicy"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        let Some(call) = write.call else { return false };
        // Unreadable policies are handled too: the plugin then refuses the write.
        let concerns = self.all(&*call.backend.objects).map_or(true, |policies| !policies.is_empty());
        write.operation != Operation::Delete && concerns && !is_exempt(write)
    }

    async fn admit(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let Some(call) = write.call else { return Ok(()) };
        let is_second_round = write.reinvocation.is_second_round;
        write.reinvocation.policies.start_round(is_second_round, write.object);
        let mut failures = Vec::new();
        for policy in self.all(objects)?.iter() {
            let mut failed = Vec::new();
            invoke(policy, write, call, objects, &mut failed).await?;
            if !policy.ignores_failure {
                failures.extend(failed);
            }
        }
        write.reinvocation.policies.end_round(write.object);
        refuse(write, failures)
    }
}

fn refuse(write: &Write<'_>, failures: Vec<Failed>) -> Result<(), Status> {
    let Some(first) = failures.first() else { return Ok(()) };
    let mut status = write.forbidden("admission request denied by policy");
    status.message = first.message.clone();
    if !first.reason.is_empty() {
        status.reason = first.reason.into();
    }
    for failed in &failures {
        status = status.with_cause("", failed.message.clone(), "");
    }
    Err(status)
}

fn failure_message(policy: &Policy<Body>, binding: Option<&Binding>, why: &str) -> String {
    match binding {
        Some(binding) => {
            format!("policy '{}' with binding '{}' denied request: {why}", policy.name, binding.name)
        }
        None => format!("policy {:?} denied request: {why}", policy.name),
    }
}

/// Applies a policy for each matching binding and each of its parameters.
async fn invoke(
    policy: &Policy<Body>,
    write: &mut Write<'_>,
    call: &ResourceRequest<'_>,
    objects: &dyn ObjectReader,
    failed: &mut Vec<Failed>,
) -> Result<(), Status> {
    let misconfigured = |binding: Option<&Binding>, why: &str| {
        let what = if binding.is_some() { "binding" } else { "policy" };
        Failed { message: failure_message(policy, binding, &format!("failed to configure {what}: {why}")), reason: "" }
    };
    let matched = match policy.criteria.matches(write, call, objects) {
        Ok(Some(matched)) => matched,
        Ok(None) => return Ok(()),
        Err(status) => {
            failed.push(misconfigured(None, &status.message));
            return Ok(());
        }
    };
    let resource = match policy.parameter_kind.as_ref().map(|kind| parameters::resource_of(call, kind)).transpose() {
        Ok(resource) => resource,
        Err(Missing::Kind(why) | Missing::Reference(why)) => {
            failed.push(misconfigured(None, &why));
            return Ok(());
        }
    };
    for binding in &policy.bindings {
        match binding.criteria.as_ref().map(|criteria| criteria.matches(write, call, objects)).transpose() {
            Ok(None | Some(Some(_))) => {}
            Ok(Some(None)) => continue,
            Err(status) => {
                failed.push(misconfigured(Some(binding), &status.message));
                continue;
            }
        }
        let given = match parameters::of(call, resource.as_ref(), binding, write.namespace).await {
            Ok(given) => given,
            Err(Missing::Kind(why) | Missing::Reference(why)) => {
                failed.push(misconfigured(Some(binding), &why));
                continue;
            }
        };
        for parameter in &given {
            let outcome = mutate(policy, binding, write, call, &matched, parameter.as_ref(), objects).await?;
            failed.extend(
                outcome
                    .into_iter()
                    .map(|why| Failed { message: failure_message(policy, Some(binding), &why), reason: "Invalid" }),
            );
        }
    }
    Ok(())
}

/// Applies all mutations of a policy; returns the failures.
async fn mutate(
    policy: &Policy<Body>,
    binding: &Binding,
    write: &mut Write<'_>,
    call: &ResourceRequest<'_>,
    matched: &Matched,
    parameter: Option<&Value>,
    objects: &dyn ObjectReader,
) -> Result<Vec<String>, Status> {
    let is_second_round = write.reinvocation.is_second_round;
    let (namespace, name) = parameter.map_or(("", ""), |parameter| {
        (parameter.text(&["metadata", "namespace"]), parameter.text(&["metadata", "name"]))
    });
    let key = format!("{}/{}/{namespace}/{name}", policy.name, binding.name);
    let mut versioned = Versioned::new(write, call, matched.clone()).await?;
    let namespace = super::namespace_of(write, objects)?;
    let before = versioned.object.clone();
    let mut failures = Vec::new();
    for (index, mutation) in policy.body.mutations.iter().enumerate() {
        let description = Value::Object(request::describe(write, matched, call.operation_options(write.operation)));
        let authority = RequestAuthority { call, subresource: write.subresource, name: write.known_name() };
        let input = Input {
            object: &versioned.object,
            old: &versioned.old,
            request: &description,
            parameter,
            namespace: &namespace,
            authorizer: &authority,
        };
        if index == 0 {
            match policy.conditions.hold(&input) {
                Ok(true) => {}
                Ok(false) => return Ok(failures),
                Err(why) => return Ok(vec![why]),
            }
            if !write.reinvocation.policies.should_invoke(is_second_round, &key) {
                return Ok(failures);
            }
        }
        if versioned.object.is_null() {
            continue;
        }
        let mut evaluation = Evaluation::new(&input, &policy.variables, POLICY_BUDGET);
        let made = with_node(call, matched, |node| mutation.on(&versioned.object, node, &mut evaluation))?;
        match made {
            Ok(made) => versioned.accept(write, call, &made)?,
            Err(why) => failures.push(why),
        }
    }
    if versioned.object != before {
        versioned.write_back(write, call).await?;
        write.reinvocation.policies.require_all();
        write.reinvocation.is_required = true;
    }
    if policy.body.reinvoked {
        write.reinvocation.policies.record_invocation(&key);
    }
    Ok(failures)
}

/// Resolves types in the schema of the changed kind.
fn with_node<T>(
    call: &ResourceRequest<'_>,
    matched: &Matched,
    look: impl FnOnce(knarr_api::schema::NodeRef<'_>) -> T,
) -> Result<T, Status> {
    let kinds = call.backend.kinds.load();
    let resource = kinds.resource(&matched.group, &matched.version, &matched.resource);
    match resource.filter(|resource| resource.kind.kind == matched.kind.kind) {
        Some(resource) => {
            let node = resource.schema().ok_or_else(|| Status::internal("the kind has no schema"))?;
            Ok(look(node))
        }
        None => Ok(look(Expected::built_in(matched.kind.clone())?.node)),
    }
}
