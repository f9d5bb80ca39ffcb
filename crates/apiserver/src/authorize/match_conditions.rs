//! Match conditions of authorization webhooks: which requests a webhook is asked about.

use std::collections::HashSet;
use std::sync::Arc;

use knarr_api::cel::{ObjectType, Program, Type, Value as Cel};
use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

const COST_LIMIT: u64 = 1_000_000;
const MAX_CONDITIONS: usize = 64;

#[derive(Debug, Default)]
pub struct MatchConditions(Vec<(String, Program)>);

impl MatchConditions {
    pub fn compile(conditions: &[Value], webhook: &Path<'_>, errors: &mut Errors) -> MatchConditions {
        let path = webhook.child("matchConditions");
        if conditions.len() > MAX_CONDITIONS {
            errors.too_many(&path, conditions.len(), MAX_CONDITIONS);
            return MatchConditions::default();
        }
        let variables = [("request".to_owned(), request_type())];
        let mut seen = HashSet::new();
        let mut compiled = Vec::new();
        for (index, condition) in conditions.iter().enumerate() {
            let path = path.index(index);
            let path = path.child("expression");
            let text = condition.text(&["expression"]);
            if text.trim().is_empty() {
                errors.required(&path, "");
            } else if !seen.insert(text) {
                errors.duplicate(&path, text);
            } else {
                match Program::compile(text, &variables) {
                    Ok(program) if *program.kind() == Type::Bool => compiled.push((text.to_owned(), program)),
                    Ok(program) => {
                        errors.invalid(&path, text, format!("must evaluate to bool but got {}", program.kind()));
                    }
                    Err(error) => errors.invalid(&path, text, format!("compilation failed: {error}")),
                }
            }
        }
        MatchConditions(compiled)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all conditions hold. A condition that is false decides, even if others fail.
    pub fn hold(&self, request: &Value) -> Result<bool, String> {
        let mut failures = Vec::new();
        for (text, program) in &self.0 {
            let (outcome, _) = program.evaluate(vec![("request", Cel::of_json(request, None))], COST_LIMIT);
            match outcome {
                Ok(Cel::Bool(true)) => {}
                Ok(Cel::Bool(false)) => return Ok(false),
                Ok(_) => {
                    failures.push(format!("cel evaluation error: expression '{text}' eval result type should be bool"))
                }
                Err(error) => {
                    failures.push(format!("cel evaluation error: expression '{text}' resulted in error: {error}"));
                }
            }
        }
        match failures.as_slice() {
            [] => Ok(true),
            [one] => Err(one.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        }
    }
}

fn object(name: &str, fields: Vec<(&str, Type)>) -> Type {
    let fields = fields.into_iter().map(|(name, kind)| (name.to_owned(), kind)).collect();
    Type::Object(Arc::new(ObjectType { name: format!("kubernetes.{name}"), fields }))
}

fn request_type() -> Type {
    let requirement = || {
        let fields = vec![("key", Type::String), ("operator", Type::String), ("values", Type::list(Type::String))];
        object("SelectorRequirement", fields)
    };
    let selector =
        |name: &str| object(name, vec![("rawSelector", Type::String), ("requirements", Type::list(requirement()))]);
    let texts = ["namespace", "verb", "group", "version", "resource", "subresource", "name"];
    let mut attributes: Vec<(&str, Type)> = texts.into_iter().map(|name| (name, Type::String)).collect();
    attributes.push(("fieldSelector", selector("FieldSelectorAttributes")));
    attributes.push(("labelSelector", selector("LabelSelectorAttributes")));
    object(
        "SubjectAccessReviewSpec",
        vec![
            ("resourceAttributes", object("ResourceAttributes", attributes)),
            (
                "nonResourceAttributes",
                object("NonResourceAttributes", vec![("path", Type::String), ("verb", Type::String)]),
            ),
            ("user", Type::String),
            ("groups", Type::list(Type::String)),
            ("extra", Type::map(Type::String, Type::list(Type::String))),
            ("uid", Type::String),
        ],
    )
}
