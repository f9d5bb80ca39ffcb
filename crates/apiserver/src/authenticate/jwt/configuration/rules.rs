//! Rules that claims and users must meet.

use std::collections::HashSet;

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use crate::authenticate::jwt::expression::{Condition, Expression, Subject};

/// Required values of claims, and conditions.
pub(super) type Rules = (Vec<(String, String)>, Vec<Condition>);

pub(super) fn read_claim_rules(rules: &[Value], path: &Path<'_>, errors: &mut Errors) -> Rules {
    let (mut required, mut conditions) = (Vec::new(), Vec::new());
    let (mut claims, mut expressions) = (HashSet::new(), HashSet::new());
    for (index, rule) in rules.iter().enumerate() {
        let path = path.index(index);
        let (claim, expression) = (rule.text(&["claim"]), rule.text(&["expression"]));
        let (message, value) = (rule.text(&["message"]), rule.text(&["requiredValue"]));
        match (claim.is_empty(), expression.is_empty()) {
            (false, false) => errors.invalid(&path, claim, "claim and expression can't both be set"),
            (true, true) => errors.required(&path, "claim or expression is required"),
            (false, true) => {
                if !message.is_empty() {
                    errors.invalid(&path.child("message"), message, "may not be specified when claim is set");
                }
                if !claims.insert(claim) {
                    errors.duplicate(&path.child("claim"), claim);
                }
                required.push((claim.to_owned(), value.to_owned()));
            }
            (true, false) => {
                if !value.is_empty() {
                    let why = "may not be specified when expression is set";
                    errors.invalid(&path.child("requiredValue"), value, why);
                }
                let path = path.child("expression");
                if !expressions.insert(expression) {
                    errors.duplicate(&path, expression);
                    continue;
                }
                let compiled = Expression::condition(expression, Subject::Claims, &path, errors);
                conditions.extend(compiled.map(|expression| Condition { expression, message: message.to_owned() }));
            }
        }
    }
    (required, conditions)
}

pub(super) fn read_user_rules(rules: &[Value], path: &Path<'_>, errors: &mut Errors) -> Vec<Condition> {
    let mut conditions = Vec::new();
    let mut expressions = HashSet::new();
    for (index, rule) in rules.iter().enumerate() {
        let path = path.index(index);
        let path = path.child("expression");
        let expression = rule.text(&["expression"]);
        if expression.is_empty() {
            errors.required(&path, "");
        } else if !expressions.insert(expression) {
            errors.duplicate(&path, expression);
        } else {
            let message = rule.text(&["message"]).to_owned();
            let compiled = Expression::condition(expression, Subject::User, &path, errors);
            conditions.extend(compiled.map(|expression| Condition { expression, message }));
        }
    }
    conditions
}
