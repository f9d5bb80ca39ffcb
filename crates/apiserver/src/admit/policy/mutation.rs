//! One mutation of a mutating policy.

use knarr_api::apply::overlay;
use knarr_api::cel::{Message, Value as Cel};
use knarr_api::patch::{JsonPatch, PatchError};
use knarr_api::schema::NodeRef;
use knarr_api::value::Read;
use knarr_rules::admissionregistration::expressions::Scope;
use serde_json::{Value, json};

use super::definition;
use crate::admit::dynamic::activation::{Evaluation, Expression};

#[derive(Debug)]
pub enum Mutation {
    /// A configuration that is merged into the object by server-side apply.
    Apply(Expression),
    Patch(Expression),
}

impl Mutation {
    pub fn read(mutation: &Value, scope: &Scope) -> Mutation {
        match mutation.text(&["patchType"]) {
            "ApplyConfiguration" => {
                Mutation::Apply(definition::compile(scope, mutation.text(&["applyConfiguration", "expression"]).trim()))
            }
            _ => Mutation::Patch(definition::compile(scope, mutation.text(&["jsonPatch", "expression"]).trim())),
        }
    }

    pub fn expression(&self) -> &Expression {
        match self {
            Mutation::Apply(expression) | Mutation::Patch(expression) => expression,
        }
    }

    /// The mutated object.
    pub fn on<'a>(
        &'a self,
        object: &Value,
        node: NodeRef<'_>,
        evaluation: &mut Evaluation<'a>,
    ) -> Result<Value, String> {
        let value = evaluation.evaluate(self.expression()).map_err(|failure| failure.text().to_owned())?;
        match self {
            Mutation::Apply(_) => apply(object, &value, node),
            Mutation::Patch(_) => patch(object, &value),
        }
    }
}

fn apply(object: &Value, value: &Cel<'_>, node: NodeRef<'_>) -> Result<Value, String> {
    let Cel::Message(message) = value else {
        return Err(format!("unsupported return type from ApplyConfiguration expression: {}", value.type_name()));
    };
    if let Some(wrong) = message.misnamed() {
        return Err(format!("type mismatch: {wrong}"));
    }
    let mut configuration = value.to_json().map_err(|error| error.to_string())?;
    for field in ["apiVersion", "kind"] {
        configuration[field] = object[field].clone();
    }
    overlay(object, &configuration, node).map_err(|why| format!("error applying patch: {why}"))
}

fn patch(object: &Value, value: &Cel<'_>) -> Result<Value, String> {
    let steps = value.elements().ok_or("type mismatch: JSONPatchType.expression should evaluate to array")?;
    let mut operations = Vec::with_capacity(steps.len());
    for step in steps.iter() {
        match step {
            Cel::Message(message) if message.name == "JSONPatch" => operations.push(operation(message)?),
            other => {
                let kind = other.type_name();
                let why = "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch";
                return Err(format!("{why}, got element of {kind}"));
            }
        }
    }
    let operations = Value::Array(operations).to_string();
    let patch = JsonPatch::read(operations.as_bytes()).map_err(|error| format!("JSON Patch: {error}"))?;
    let mut patched = object.clone();
    match patch.apply(&mut patched) {
        Ok(()) => Ok(patched),
        // A failed `test` operation skips the patch.
        Err(PatchError::Unprocessable(why)) if why.starts_with("testing ") => Ok(object.clone()),
        Err(error) => Err(format!("JSON Patch: {error}")),
    }
}

fn operation(message: &Message<'_>) -> Result<Value, String> {
    let mut operation = json!({});
    for (field, value) in &message.fields {
        if let Cel::Message(inner) = value
            && let Some(wrong) = inner.misnamed()
        {
            return Err(format!("type mismatch: {wrong}"));
        }
        operation[*field] = value.to_json().map_err(|error| {
            format!("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {error}")
        })?;
    }
    Ok(operation)
}
