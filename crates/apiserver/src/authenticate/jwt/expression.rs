//! CEL expressions over the claims of a token, or over the user that they became.

use knarr_api::cel::{ObjectType, Program, Type, Value as Cel};
use knarr_api::field::{Errors, Path};
use serde_json::{Value, json};
use std::sync::Arc;

use super::token::Claims;
use crate::request::User;

/// The cost limit of one expression.
const COST_LIMIT: u64 = 1_000_000;

/// What an expression is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Claims,
    User,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Subject::Claims => "claims",
            Subject::User => "user",
        }
    }

    fn kind(self) -> Type {
        match self {
            Subject::Claims => Type::map(Type::String, Type::Dyn),
            Subject::User => Type::Object(Arc::new(ObjectType {
                name: "kubernetes.UserInfo".to_owned(),
                fields: vec![
                    ("username".to_owned(), Type::String),
                    ("uid".to_owned(), Type::String),
                    ("groups".to_owned(), Type::list(Type::String)),
                    ("extra".to_owned(), Type::map(Type::String, Type::list(Type::String))),
                ],
            })),
        }
    }
}

/// A compiled expression.
#[derive(Debug)]
pub struct Expression {
    text: String,
    subject: Subject,
    program: Program,
}

/// A condition that must hold, with what to say if it does not.
#[derive(Debug)]
pub struct Condition {
    pub expression: Expression,
    pub message: String,
}

impl Expression {
    /// Compiles an expression; errors are reported at `path`.
    pub fn compile(text: &str, subject: Subject, path: &Path<'_>, errors: &mut Errors) -> Option<Expression> {
        match Program::compile(text, &[(subject.name().to_owned(), subject.kind())]) {
            Ok(program) => Some(Expression { text: text.to_owned(), subject, program }),
            Err(error) => {
                errors.invalid(path, text, format!("compilation failed: {error}"));
                None
            }
        }
    }

    /// Compiles an expression that must be a condition.
    pub fn condition(text: &str, subject: Subject, path: &Path<'_>, errors: &mut Errors) -> Option<Expression> {
        let compiled = Expression::compile(text, subject, path, errors)?;
        if *compiled.program.kind() != Type::Bool {
            errors.invalid(path, text, "must evaluate to bool");
            return None;
        }
        Some(compiled)
    }

    /// Whether the expression selects a field of its subject.
    pub fn selects(&self, field: &str) -> bool {
        self.program.fields_of(self.subject.name()).contains(&field)
    }

    fn evaluate<'a>(&'a self, value: Cel<'a>) -> Result<Cel<'a>, String> {
        let (outcome, _) = self.program.evaluate(vec![(self.subject.name(), value)], COST_LIMIT);
        outcome.map_err(|error| format!("expression '{}' resulted in error: {error}", self.text))
    }

    /// The text that the expression makes of claims; `None` if it is something else.
    pub fn text_of(&self, claims: &Value) -> Result<Option<String>, String> {
        Ok(match self.evaluate(Cel::of_json(claims, None))? {
            Cel::String(text) => Some(text.to_string()),
            _ => None,
        })
    }

    /// The texts that the expression makes of claims: one, a list, or none.
    pub fn texts_of(&self, claims: &Value) -> Result<Vec<String>, TextsError> {
        let value = self.evaluate(Cel::of_json(claims, None)).map_err(TextsError::Evaluation)?;
        let texts = match &value {
            Cel::Null => Vec::new(),
            Cel::String(text) => vec![text.to_string()],
            other => {
                let elements = other.elements().ok_or(TextsError::Type)?;
                let texts = elements.iter().map(|element| match element {
                    Cel::String(text) => Ok(text.to_string()),
                    _ => Err(TextsError::Type),
                });
                texts.collect::<Result<Vec<_>, _>>()?
            }
        };
        Ok(texts.into_iter().filter(|text| !text.is_empty()).collect())
    }

    pub fn text(&self) -> &str {
        &self.text
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum TextsError {
    Evaluation(String),
    Type,
}

impl std::fmt::Display for TextsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TextsError::Evaluation(error) => f.write_str(error),
            TextsError::Type => f.write_str("expression must return a string or a list of strings"),
        }
    }
}

/// Checks that all conditions hold.
pub fn check(conditions: &[Condition], subject: &Value) -> Result<(), String> {
    let mut outcomes = Vec::new();
    for condition in conditions {
        outcomes.push(condition.expression.evaluate(Cel::of_json(subject, None))?);
    }
    for (condition, outcome) in conditions.iter().zip(outcomes) {
        match outcome {
            Cel::Bool(true) => {}
            Cel::Bool(false) => {
                let text = &condition.expression.text;
                return Err(format!("validation expression '{text}' failed: {}", condition.message));
            }
            _ => return Err("validation expression must return a boolean".to_owned()),
        }
    }
    Ok(())
}

/// The claims as expressions see them.
pub fn claims_value(claims: &Claims) -> Value {
    Value::Object(claims.clone())
}

/// A user as expressions see it.
pub fn user_value(user: &User) -> Value {
    json!({"username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra})
}
