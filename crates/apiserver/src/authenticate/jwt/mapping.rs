//! Makes a user of the claims of a verified token.

use knarr_api::value::json_type;
use serde_json::Value;

use super::expression::{Condition, Expression, check, claims_value, user_value};
use super::token::Claims;
use crate::request::User;

/// Where an attribute of the user comes from.
#[derive(Debug)]
pub enum Source {
    Claim { name: String, prefix: String },
    Expression(Expression),
}

/// The settings of one issuer.
#[derive(Debug)]
pub struct Mapping {
    pub username: Source,
    pub groups: Option<Source>,
    pub uid: Option<Source>,
    pub extra: Vec<(String, Expression)>,
    /// Claims that must have these values.
    pub required: Vec<(String, String)>,
    pub claim_conditions: Vec<Condition>,
    pub user_conditions: Vec<Condition>,
}

impl Mapping {
    /// The claim whose value is the list of groups.
    pub fn groups_claim(&self) -> Option<&str> {
        match &self.groups {
            Some(Source::Claim { name, .. }) => Some(name),
            _ => None,
        }
    }

    pub fn user(&self, claims: &Claims) -> Result<User, String> {
        let value = claims_value(claims);
        let mut user = User { name: self.name(claims, &value)?, ..User::default() };
        user.groups = self.groups(claims, &value)?;
        user.uid = self.uid(claims, &value)?;
        self.add_extra(&mut user, claims, &value)?;
        self.check_required(claims)?;
        check(&self.claim_conditions, &value)
            .map_err(|error| format!("oidc: error evaluating claim validation expression: {error}"))?;
        if !self.user_conditions.is_empty() {
            check(&self.user_conditions, &user_value(&user))
                .map_err(|error| format!("oidc: error evaluating user info validation rule: {error}"))?;
        }
        Ok(user)
    }

    fn name(&self, claims: &Claims, value: &Value) -> Result<String, String> {
        const FAILED: &str = "oidc: error evaluating username claim expression:";
        match &self.username {
            Source::Expression(expression) => {
                let text = expression.text_of(value).map_err(|error| format!("{FAILED} {error}"))?;
                match text.ok_or_else(|| format!("{FAILED} username claim expression must return a string"))? {
                    empty if empty.is_empty() => {
                        Err("oidc: empty username via CEL expression is not allowed".to_owned())
                    }
                    name => Ok(name),
                }
            }
            Source::Claim { name, prefix } => {
                let text =
                    text(claims, name).map_err(|error| format!("oidc: parse username claims {name:?}: {error}"))?;
                if name == "email" {
                    check_email(claims)?;
                }
                Ok(format!("{prefix}{text}"))
            }
        }
    }

    fn groups(&self, claims: &Claims, value: &Value) -> Result<Vec<String>, String> {
        match &self.groups {
            None => Ok(Vec::new()),
            Some(Source::Expression(expression)) => expression
                .texts_of(value)
                .map_err(|error| format!("oidc: error evaluating group claim expression: {error}")),
            Some(Source::Claim { name, prefix }) => {
                let Some(given) = claims.get(name) else { return Ok(Vec::new()) };
                let groups = match given {
                    Value::Null => Some(Vec::new()),
                    Value::String(one) => Some(vec![one.as_str()]),
                    Value::Array(many) => many.iter().map(Value::as_str).collect(),
                    _ => None,
                };
                let groups = groups.ok_or_else(|| {
                    let found = json_type(given);
                    format!(
                        "oidc: parse groups claim {name:?}: json: cannot unmarshal {found} into Go value of type string"
                    )
                })?;
                Ok(groups.into_iter().map(|group| format!("{prefix}{group}")).collect())
            }
        }
    }

    fn uid(&self, claims: &Claims, value: &Value) -> Result<String, String> {
        const FAILED: &str = "oidc: error evaluating uid claim expression:";
        match &self.uid {
            None => Ok(String::new()),
            Some(Source::Claim { name, .. }) => {
                text(claims, name).map_err(|error| format!("oidc: parse uid claim {name:?}: {error}"))
            }
            Some(Source::Expression(expression)) => {
                let text = expression.text_of(value).map_err(|error| format!("{FAILED} {error}"))?;
                text.ok_or_else(|| format!("{FAILED} uid claim expression must return a string"))
            }
        }
    }

    fn add_extra(&self, user: &mut User, claims: &Claims, value: &Value) -> Result<(), String> {
        if let Some(Value::String(id)) = claims.get("jti")
            && !id.is_empty()
        {
            let credential = vec![format!("JTI={id}")];
            user.extra.insert("authentication.kubernetes.io/credential-id".to_owned(), credential);
        }
        for (key, expression) in &self.extra {
            let values = expression.texts_of(value).map_err(|error| match error {
                super::expression::TextsError::Evaluation(error) => error,
                error => format!("oidc: error evaluating extra claim expression: {}: {error}", expression.text()),
            })?;
            if !values.is_empty() {
                user.extra.insert(key.clone(), values);
            }
        }
        Ok(())
    }

    fn check_required(&self, claims: &Claims) -> Result<(), String> {
        for (name, required) in &self.required {
            if !claims.contains_key(name) {
                return Err(format!("oidc: required claim {name} not present in ID token"));
            }
            let given = text(claims, name).map_err(|error| format!("oidc: parse claim {name}: {error}"))?;
            if given != *required {
                return Err(format!(
                    "oidc: required claim {name} value does not match. Got = {given}, want = {required}"
                ));
            }
        }
        Ok(())
    }
}

fn check_email(claims: &Claims) -> Result<(), String> {
    match claims.get("email_verified") {
        None | Some(Value::Bool(true)) => Ok(()),
        Some(Value::Bool(false) | Value::Null) => Err("oidc: email not verified".to_owned()),
        Some(other) => Err(format!(
            "oidc: parse 'email_verified' claim: json: cannot unmarshal {} into Go value of type bool",
            json_type(other)
        )),
    }
}

fn text(claims: &Claims, name: &str) -> Result<String, String> {
    match claims.get(name) {
        None => Err("claim not present".to_owned()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Null) => Ok(String::new()),
        Some(other) => Err(format!("json: cannot unmarshal {} into Go value of type string", json_type(other))),
    }
}
