//! Asking the authorizer.

use std::sync::Arc;

use super::super::authority::{Authority, Decision, Question, Stage};
use super::super::value::Value;
use super::{Outcome, failed, flag};

pub(super) fn call<'a>(function: &str, values: &[Value<'a>]) -> Option<Outcome<'a>> {
    match values {
        [Value::Authority(authority), arguments @ ..] => {
            let texts: Option<Vec<&str>> = arguments
                .iter()
                .map(|value| match value {
                    Value::String(text) => Some(&**text),
                    _ => None,
                })
                .collect();
            ask(function, authority, &texts?)
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

fn ask<'a>(function: &str, authority: &Authority<'a>, texts: &[&str]) -> Option<Outcome<'a>> {
    let mut question = authority.question.clone();
    let next = |stage: Stage, question: Question| {
        Some(Ok(Value::Authority(Arc::new(Authority { stage, asked: authority.asked, question }))))
    };
    match (authority.stage, function, texts) {
        (Stage::Authorizer, "path", [""]) => failed("path must not be empty"),
        (Stage::Authorizer, "path", [path]) => {
            question.path = (*path).to_owned();
            next(Stage::Path, question)
        }
        (Stage::Authorizer, "group", [group]) => {
            question.group = (*group).to_owned();
            next(Stage::Group, question)
        }
        (Stage::Authorizer, "serviceAccount", [namespace, name]) => {
            if !crate::names::dns_subdomain(name).is_empty() {
                return failed("Invalid service account name");
            }
            if !crate::names::dns_label(namespace).is_empty() {
                return failed("Invalid service account namespace");
            }
            question.service_account = Some(((*namespace).to_owned(), (*name).to_owned()));
            next(Stage::Authorizer, question)
        }
        (Stage::Group, "resource", [""]) => failed("resource must not be empty"),
        (Stage::Group, "resource", [resource]) => {
            question.resource = (*resource).to_owned();
            question.version = "*".to_owned();
            next(Stage::Resource, question)
        }
        (Stage::Resource, "check", [verb]) | (Stage::Path, "check", [verb]) => {
            question.verb = (*verb).to_owned();
            let decision = match authority.asked.decide(&question) {
                Ok((allowed, reason)) => Decision { allowed, reason, error: None },
                Err(error) => Decision { allowed: false, reason: String::new(), error: Some(error) },
            };
            Some(Ok(Value::Decision(Arc::new(decision))))
        }
        (Stage::Resource, part, [text]) => {
            let place = match part {
                "subresource" => &mut question.subresource,
                "namespace" => &mut question.namespace,
                "name" => &mut question.name,
                "fieldSelector" => &mut question.field_selector,
                "labelSelector" => &mut question.label_selector,
                _ => return None,
            };
            *place = (*text).to_owned();
            next(Stage::Resource, question)
        }
        _ => None,
    }
}
