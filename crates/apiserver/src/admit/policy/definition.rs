//! The common parts of both kinds of policies.

use std::sync::Arc;

use knarr_api::cel::Type;
use knarr_api::status::Status;
use knarr_api::value::Read;
use knarr_rules::admissionregistration::expressions::Scope;
use serde_json::Value;

use super::binding::Binding;
use crate::admit::dynamic::activation::Expression;
use crate::admit::dynamic::cached;
use crate::admit::dynamic::condition::Conditions;
use crate::admit::dynamic::criteria::Criteria;
use crate::object_reader::ObjectReader;

/// A policy with at least one binding. `body` is specific to its kind.
#[derive(Debug)]
pub struct Policy<B> {
    pub name: String,
    pub criteria: Criteria,
    /// Whether writes are allowed if the policy cannot be evaluated.
    pub ignores_failure: bool,
    /// The apiVersion and kind of its parameters.
    pub parameter_kind: Option<(String, String)>,
    pub conditions: Conditions,
    pub variables: Vec<(String, Expression)>,
    pub bindings: Vec<Binding>,
    pub body: B,
}

/// Reads all policies of a kind with their bindings, in name order.
pub fn read_all<B>(
    objects: &dyn ObjectReader,
    (policies, bindings): (&str, &str),
    read_body: impl Fn(&Value, &Scope) -> B,
) -> Result<Vec<Policy<B>>, Status> {
    let all_bindings = cached::all(objects, bindings)?;
    let mut found = Vec::new();
    for policy in cached::all(objects, policies)? {
        let name = policy.text(&["metadata", "name"]);
        let own: Vec<&Arc<Value>> =
            all_bindings.iter().filter(|binding| binding.text(&["spec", "policyName"]) == name).collect();
        if !own.is_empty() {
            found.push(read(&policy, own.into_iter().map(|binding| Binding::read(binding)).collect(), &read_body));
        }
    }
    Ok(found)
}

fn read<B>(policy: &Value, bindings: Vec<Binding>, read_body: impl Fn(&Value, &Scope) -> B) -> Policy<B> {
    let spec = policy.at(&["spec"]);
    let kind = spec.at(&["paramKind"]);
    let parameter_kind =
        kind.is_object().then(|| (kind.text(&["apiVersion"]).to_owned(), kind.text(&["kind"]).to_owned()));
    let ignores_failure = spec.text(&["failurePolicy"]) == "Ignore";
    let mut scope = Scope::new(parameter_kind.is_some()).composing();
    let mut variables = Vec::new();
    for variable in spec.items(&["variables"]) {
        let name = variable.text(&["name"]);
        let expression = compile(&scope, variable.text(&["expression"]));
        scope.declare(name, expression.program.as_ref().map_or(Type::Dyn, |program| program.kind().clone()));
        variables.push((name.to_owned(), expression));
    }
    Policy {
        name: policy.text(&["metadata", "name"]).to_owned(),
        criteria: Criteria::read(spec.at(&["matchConstraints"]), "resourceRules"),
        ignores_failure,
        conditions: Conditions::read(spec.items(&["matchConditions"]), parameter_kind.is_some(), ignores_failure),
        parameter_kind,
        variables,
        bindings,
        body: read_body(spec, &scope),
    }
}

pub fn compile(scope: &Scope, text: &str) -> Expression {
    Expression {
        text: text.to_owned(),
        program: crate::metrics::compiling(|| scope.compile(text)).map_err(|error| error.to_string()),
    }
}
