//! Evaluates the CEL expressions of policies and conditions on a write.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use knarr_api::cel::{AccessCheck, Authorize, AuthorizerValue, EvaluateError, Program, Value as Cel};
use serde_json::{Map, Value};

use crate::authorize::{Authorizer, Decision};
use crate::metrics;
use crate::request::{Target, User};
use crate::resource_request::ResourceRequest;

/// The cost limit of all expressions of one policy on one write.
pub const POLICY_BUDGET: u64 = 10_000_000;
/// The cost limit of all conditions of one webhook or policy.
pub const CONDITIONS_BUDGET: u64 = 2_500_000;
/// The cost limit of one expression.
const EXPRESSION_LIMIT: u64 = 1_000_000;

const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// A compiled expression, or its compile error.
#[derive(Debug)]
pub struct Expression {
    pub text: String,
    pub program: Result<Program, String>,
}

/// The inputs of expressions.
pub struct Input<'a> {
    pub object: &'a Value,
    pub old: &'a Value,
    pub request: &'a Value,
    pub parameter: Option<&'a Value>,
    pub namespace: &'a Value,
    pub authorizer: &'a dyn Authorize,
}

/// Why an expression has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// This expression failed.
    Failed(String),
    /// All expressions together exceeded the budget; no more are evaluated.
    OutOfBudget(String),
}

impl Failure {
    pub fn text(&self) -> &str {
        match self {
            Failure::Failed(text) | Failure::OutOfBudget(text) => text,
        }
    }
}

/// Evaluates expressions in order within one budget. A policy's variables are evaluated when first needed.
pub struct Evaluation<'a> {
    given: Vec<(&'a str, Cel<'a>)>,
    authorizer: Cel<'a>,
    defined: &'a [(String, Expression)],
    known: HashMap<&'a str, Cel<'a>>,
    budget: u64,
}

impl<'a> Evaluation<'a> {
    pub fn new(input: &Input<'a>, defined: &'a [(String, Expression)], budget: u64) -> Self {
        let given = vec![
            ("object", Cel::of_json(input.object, None)),
            ("oldObject", Cel::of_json(input.old, None)),
            ("request", Cel::of_json(input.request, None)),
            ("namespaceObject", Cel::of_json(input.namespace, None)),
            ("params", input.parameter.map_or(Cel::Null, |parameter| Cel::of_json(parameter, None))),
        ];
        let authorizer = Cel::Authorizer(Arc::new(AuthorizerValue::new(input.authorizer)));
        Evaluation { given, authorizer, defined, known: HashMap::new(), budget }
    }

    pub fn evaluate(&mut self, expression: &'a Expression) -> Result<Cel<'a>, Failure> {
        let program = match &expression.program {
            Ok(program) => program,
            Err(error) => return Err(Failure::Failed(format!("compilation error: compilation failed: {error}"))),
        };
        let outcome = self.run(program)?;
        outcome.map_err(|error| Failure::Failed(format!("expression '{}' resulted in error: {error}", expression.text)))
    }

    fn run(&mut self, program: &'a Program) -> Result<Result<Cel<'a>, EvaluateError>, Failure> {
        for at in self.needed(program) {
            self.define(at)?;
        }
        self.run_program(program)
    }

    /// The variables that an expression needs and that have no value yet, in order of definition. A variable sees only
    /// earlier ones, so there are no cycles; the loop needs no recursion even for thousands of variables.
    fn needed(&self, program: &Program) -> Vec<usize> {
        let mut needed = BTreeSet::new();
        let mut open = self.unknown(program, self.defined.len());
        while let Some(at) = open.pop() {
            if let (true, Ok(program)) = (needed.insert(at), &self.defined[at].1.program) {
                open.extend(self.unknown(program, at));
            }
        }
        needed.into_iter().collect()
    }

    /// Which of the first `visible` variables an expression selects that have no value yet.
    fn unknown(&self, program: &Program, visible: usize) -> Vec<usize> {
        let place = |name: &str| self.defined[..visible].iter().position(|(own, _)| own == name);
        let selected = program.fields_of("variables").into_iter().filter(|name| !self.known.contains_key(name));
        selected.filter_map(place).collect()
    }

    fn run_program(&mut self, program: &'a Program) -> Result<Result<Cel<'a>, EvaluateError>, Failure> {
        let mut variables = self.given.clone();
        variables.push(("authorizer", self.authorizer.clone()));
        let defined = self.known.iter().map(|(name, value)| (Cel::text(*name), value.clone())).collect();
        variables.push(("variables", Cel::Map(Arc::new(defined))));
        let (outcome, cost) = metrics::evaluating(|| program.evaluate(variables, EXPRESSION_LIMIT));
        self.budget = self.budget.checked_sub(cost).ok_or_else(|| Failure::OutOfBudget(OUT_OF_BUDGET.to_owned()))?;
        Ok(outcome)
    }

    /// Evaluates one of the policy's variables, after those it needs. Expressions that use it get its error.
    fn define(&mut self, at: usize) -> Result<(), Failure> {
        let (name, expression) = &self.defined[at];
        let value = match &expression.program {
            Err(error) => {
                Cel::Unfit(format!("composited variable {name:?} fails to compile: compilation failed: {error}").into())
            }
            Ok(program) => match self.run_program(program)? {
                Ok(value) => value,
                Err(error) => Cel::Unfit(format!("composited variable {name:?} fails to evaluate: {error}").into()),
            },
        };
        self.known.insert(name, value);
        Ok(())
    }
}

/// The `authorizer` of expressions.
pub struct RequestAuthority<'a> {
    pub call: &'a ResourceRequest<'a>,
    pub subresource: &'a str,
    pub name: &'a str,
}

impl fmt::Debug for RequestAuthority<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("RequestAuthority").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Authorize for RequestAuthority<'_> {
    fn decide(&self, check: &AccessCheck) -> Result<(bool, String), String> {
        let account;
        let user = match &check.service_account {
            None => self.call.user,
            Some((namespace, name)) => {
                account = service_account(namespace, name);
                &account
            }
        };
        let target = Target {
            verb: check.verb.clone(),
            group: check.group.clone(),
            version: check.version.clone(),
            resource: check.resource.clone(),
            subresource: check.subresource.clone(),
            namespace: check.namespace.clone(),
            name: check.name.clone(),
            path: check.path.clone(),
            field_selector: check.field_selector.clone(),
            label_selector: check.label_selector.clone(),
        };
        let authorizer: &dyn Authorizer = &*self.call.backend.authorizer;
        match authorizer.decide(user, &target) {
            Decision::Allow(reason) => Ok((true, reason)),
            Decision::NoOpinion(reason) | Decision::Deny(reason) => Ok((false, reason)),
            Decision::Failed { error, .. } => Err(error),
        }
    }

    fn of_request(&self) -> AccessCheck {
        let kind = &self.call.resource.kind;
        AccessCheck {
            group: kind.group.clone(),
            version: kind.version.clone(),
            resource: kind.plural.clone(),
            subresource: self.subresource.to_owned(),
            namespace: if kind.namespaced { self.call.target.namespace.clone() } else { String::new() },
            name: self.name.to_owned(),
            ..AccessCheck::default()
        }
    }
}

fn service_account(namespace: &str, name: &str) -> User {
    let group = format!("system:serviceaccounts:{namespace}");
    User::named(
        &format!("system:serviceaccount:{namespace}:{name}"),
        &["system:serviceaccounts", &group, crate::request::GROUP_AUTHENTICATED],
    )
}

/// The fields of a namespace that expressions can read.
pub fn namespace_object(namespace: Option<&Value>) -> Value {
    let Some(namespace) = namespace else { return Value::Null };
    let mut visible = Map::new();
    let mut metadata = namespace["metadata"].clone();
    if let Some(fields) = metadata.as_object_mut() {
        for hidden in ["managedFields", "ownerReferences", "selfLink"] {
            fields.remove(hidden);
        }
    }
    visible.insert("metadata".to_owned(), metadata);
    for part in ["spec", "status"] {
        visible.insert(part.to_owned(), namespace.get(part).cloned().unwrap_or_else(|| Value::Object(Map::new())));
    }
    Value::Object(visible)
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_rules::admissionregistration::expressions::Scope;
    use serde_json::json;

    #[derive(Debug)]
    struct DenyAll;

    impl Authorize for DenyAll {
        fn decide(&self, _question: &AccessCheck) -> Result<(bool, String), String> {
            Ok((false, String::new()))
        }

        fn of_request(&self) -> AccessCheck {
            AccessCheck::default()
        }
    }

    #[test]
    fn variables_are_evaluated_when_needed() {
        let mut scope = Scope::new(false).composing();
        let mut defined = Vec::new();
        for (name, text) in [("two", "1 + 1"), ("broken", "1 / 0"), ("four", "variables.two * 2"), ("bad", "what")] {
            let program = scope.compile(text);
            let kind = program.as_ref().map_or(knarr_api::cel::Type::Dyn, |program| program.kind().clone());
            scope.declare(name, kind);
            defined.push((
                name.to_owned(),
                Expression { text: text.to_owned(), program: program.map_err(|e| e.to_string()) },
            ));
        }
        let nothing = Value::Null;
        let object = json!({"spec": {"n": 4}});
        let input = Input {
            object: &object,
            old: &nothing,
            request: &nothing,
            parameter: None,
            namespace: &nothing,
            authorizer: &DenyAll,
        };
        let texts = [
            ("object.spec.n == variables.four && oldObject == null", Ok(true)),
            ("variables.broken == 1", Err("composited variable \"broken\" fails to evaluate: division by zero")),
            ("true || variables.broken == 1", Ok(true)),
            ("variables.bad", Err("composited variable \"bad\" fails to compile")),
            ("authorizer.requestResource.check('get').allowed()", Ok(false)),
        ];
        let expressions: Vec<Expression> = texts
            .iter()
            .map(|(text, _)| Expression {
                text: (*text).to_owned(),
                program: scope.compile(text).map_err(|error| error.to_string()),
            })
            .collect();
        let mut evaluation = Evaluation::new(&input, &defined, POLICY_BUDGET);
        for (expression, (text, expected)) in expressions.iter().zip(texts) {
            match (evaluation.evaluate(expression), expected) {
                (Ok(Cel::Bool(found)), Ok(expected)) => assert_eq!(found, expected, "{text}"),
                (Err(failure), Err(message)) => assert!(failure.text().contains(message), "{text}: {failure:?}"),
                (other, _) => panic!("{text}: {other:?}"),
            }
        }
    }
    /// Variables that each need the one before it, one that needs itself, and one that needs a later one.
    #[test]
    fn no_chain_of_variables_recurses() {
        let compile = |text: &str| {
            let variables = [("variables".to_owned(), knarr_api::cel::Type::Dyn)];
            let program = Program::compile(text, &variables).map_err(|error| error.to_string());
            Expression { text: text.to_owned(), program }
        };
        let mut defined = vec![
            ("itself".to_owned(), compile("variables.itself")),
            ("early".to_owned(), compile("variables.v0")),
            ("v0".to_owned(), compile("1")),
        ];
        defined.extend((1..2_000).map(|at| (format!("v{at}"), compile(&format!("variables.v{} + 1", at - 1)))));
        let nothing = Value::Null;
        let input = Input {
            object: &nothing,
            old: &nothing,
            request: &nothing,
            parameter: None,
            namespace: &nothing,
            authorizer: &DenyAll,
        };
        let expressions = ["variables.v1999 == 2000", "variables.itself == 1", "variables.early == 1"].map(compile);
        let evaluate = |expression| Evaluation::new(&input, &defined, POLICY_BUDGET).evaluate(expression);
        let mut outcomes = expressions.iter().map(evaluate);
        assert!(matches!(outcomes.next(), Some(Ok(Cel::Bool(true)))));
        for outcome in outcomes {
            let failure = outcome.expect_err("a variable is not there yet");
            assert!(failure.text().contains("no such key"), "{failure:?}");
        }
    }
}
