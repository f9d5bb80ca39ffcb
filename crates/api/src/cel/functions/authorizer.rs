//! Functions of the `authorizer` variable.

use std::sync::Arc;

use super::super::authorizer::{AccessCheck, AuthorizerValue, Decision, Stage};
use super::super::value::Value;
use super::{Outcome, failed, flag};

pub(super) fn call<'a>(function: &str, values: &[Value<'a>]) -> Option<Outcome<'a>> {
    match values {
        [Value::Authorizer(authorizer), arguments @ ..] => {
            let texts: Option<Vec<&str>> = arguments
                .iter()
                .map(|value| match value {
                    Value::String(text) => Some(&**text),
                    _ => None,
                })
                .collect();
            call_authorizer(function, authorizer, &texts?)
        }
        [Value::Decision(decision)] => match function {
            "allowed" => flag(decision.allowed),
            "errored" => flag(decision.error.is_some()),
            "error" => Some(Ok(Value::text(decision.error.clone().unwrap_or_default()))),
            "reason" => Some(Ok(Value::text(decision.reason.clone()))),
            _ => None,
        },
        _ => None,
    }
}

fn call_authorizer<'a>(function: &str, authorizer: &AuthorizerValue<'a>, texts: &[&str]) -> Option<Outcome<'a>> {
    let mut check = authorizer.check.clone();
    let next = |stage: Stage, check: AccessCheck| {
        Some(Ok(Value::Authorizer(Arc::new(AuthorizerValue { stage, backend: authorizer.backend, check }))))
    };
    match (authorizer.stage, function, texts) {
        (Stage::Authorizer, "path", [""]) => failed("path must not be empty"),
        (Stage::Authorizer, "path", [path]) => {
            check.path = (*path).to_owned();
            next(Stage::Path, check)
        }
        (Stage::Authorizer, "group", [group]) => {
            check.group = (*group).to_owned();
            next(Stage::Group, check)
        }
        (Stage::Authorizer, "serviceAccount", [namespace, name]) => {
            if !crate::names::dns_subdomain(name).is_empty() {
                return failed("Invalid service account name");
            }
            if !crate::names::dns_label(namespace).is_empty() {
                return failed("Invalid service account namespace");
            }
            check.service_account = Some(((*namespace).to_owned(), (*name).to_owned()));
            next(Stage::Authorizer, check)
        }
        (Stage::Group, "resource", [""]) => failed("resource must not be empty"),
        (Stage::Group, "resource", [resource]) => {
            check.resource = (*resource).to_owned();
            check.version = "*".to_owned();
            next(Stage::Resource, check)
        }
        (Stage::Resource, "check", [verb]) | (Stage::Path, "check", [verb]) => {
            check.verb = (*verb).to_owned();
            let decision = match authorizer.backend.decide(&check) {
                Ok((allowed, reason)) => Decision { allowed, reason, error: None },
                Err(error) => Decision { allowed: false, reason: String::new(), error: Some(error) },
            };
            Some(Ok(Value::Decision(Arc::new(decision))))
        }
        (Stage::Resource, part, [text]) => {
            let place = match part {
                "subresource" => &mut check.subresource,
                "namespace" => &mut check.namespace,
                "name" => &mut check.name,
                "fieldSelector" => &mut check.field_selector,
                "labelSelector" => &mut check.label_selector,
                _ => return None,
            };
            *place = (*text).to_owned();
            next(Stage::Resource, check)
        }
        _ => None,
    }
}
