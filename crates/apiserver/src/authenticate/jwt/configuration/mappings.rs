//! How the user of a token follows from its claims.

use std::collections::HashSet;

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use crate::authenticate::jwt::expression::{Condition, Expression, Subject};
use crate::authenticate::jwt::mapping::Source;

/// Username, groups, UID and extra attributes.
pub(super) type Mapped = (Source, Option<Source>, Option<Source>, Vec<(String, Expression)>);

pub(super) fn read(
    mappings: &Value,
    path: &Path<'_>,
    claim_conditions: &[Condition],
    errors: &mut Errors,
) -> Option<Mapped> {
    let username = read_prefixed(mappings.at(&["username"]), &path.child("username"), true, errors);
    let groups = read_prefixed(mappings.at(&["groups"]), &path.child("groups"), false, errors);
    let uid = read_uid(mappings.at(&["uid"]), &path.child("uid"), errors);
    let extra = read_extra(mappings.items(&["extra"]), &path.child("extra"), errors);
    if let Some(Source::Expression(expression)) = &username
        && expression.selects("email")
    {
        let verified = std::iter::once(expression)
            .chain(extra.iter().map(|(_, expression)| expression))
            .chain(claim_conditions.iter().map(|condition| &condition.expression))
            .any(|expression| expression.selects("email_verified"));
        if !verified {
            let path = path.child("username");
            errors.invalid(
                &path.child("expression"),
                expression.text(),
                "claims.email_verified must be used in claimMappings.username.expression or \
                 claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used \
                 in claimMappings.username.expression",
            );
        }
    }
    Some((username?, groups, uid, extra))
}

fn read_prefixed(mapping: &Value, path: &Path<'_>, is_required: bool, errors: &mut Errors) -> Option<Source> {
    let (claim, expression) = (mapping.text(&["claim"]), mapping.text(&["expression"]));
    let prefix = mapping.at(&["prefix"]).as_str();
    match (claim.is_empty(), expression.is_empty()) {
        (false, false) => errors.invalid(path, "", "claim and expression can't both be set"),
        (true, true) if is_required => errors.required(path, "claim or expression is required"),
        (true, true) => {}
        (true, false) => {
            if let Some(prefix) = prefix {
                errors.invalid(&path.child("prefix"), prefix, "may not be specified when expression is set");
            }
            let compiled = Expression::compile(expression, Subject::Claims, &path.child("expression"), errors);
            return compiled.map(Source::Expression);
        }
        (false, true) => match prefix {
            Some(prefix) => return Some(Source::Claim { name: claim.to_owned(), prefix: prefix.to_owned() }),
            None => errors.required(
                &path.child("prefix"),
                "prefix is required when claim is set. It can be set to an empty string to disable prefixing",
            ),
        },
    }
    None
}

fn read_uid(mapping: &Value, path: &Path<'_>, errors: &mut Errors) -> Option<Source> {
    match (mapping.text(&["claim"]), mapping.text(&["expression"])) {
        ("", "") => None,
        (claim, "") => Some(Source::Claim { name: claim.to_owned(), prefix: String::new() }),
        ("", expression) => {
            let compiled = Expression::compile(expression, Subject::Claims, &path.child("expression"), errors);
            compiled.map(Source::Expression)
        }
        _ => {
            errors.invalid(path, "", "claim and expression can't both be set");
            None
        }
    }
}

fn read_extra(mappings: &[Value], path: &Path<'_>, errors: &mut Errors) -> Vec<(String, Expression)> {
    let mut found = Vec::new();
    let mut keys = HashSet::new();
    for (index, mapping) in mappings.iter().enumerate() {
        let path = path.index(index);
        let key = mapping.text(&["key"]);
        check_extra_key(key, &path.child("key"), errors);
        if !keys.insert(key) {
            errors.duplicate(&path.child("key"), key);
            continue;
        }
        let path = path.child("valueExpression");
        let expression = mapping.text(&["valueExpression"]);
        if expression.is_empty() {
            errors.required(&path, "");
            continue;
        }
        let compiled = Expression::compile(expression, Subject::Claims, &path, errors);
        found.extend(compiled.map(|expression| (key.to_owned(), expression)));
    }
    found
}

fn check_extra_key(key: &str, path: &Path<'_>, errors: &mut Errors) {
    match key.split_once('/') {
        _ if key.is_empty() => errors.required(path, ""),
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            for why in names::dns_subdomain(domain) {
                errors.invalid(path, domain, why);
            }
            let is_path =
                rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/_:.-~!$&'()*+,;=%@".contains(&byte));
            if !is_path {
                errors.invalid(path, rest, "Invalid path");
            }
        }
        _ => errors.invalid(path, key, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
    if key.chars().any(char::is_uppercase) {
        errors.invalid(path, key, "must be lowercase");
    }
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let is_reserved = |own: &str| domain == own || domain.strip_suffix(own).is_some_and(|rest| rest.ends_with('.'));
    if is_reserved("kubernetes.io") || is_reserved("k8s.io") {
        let why = "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use";
        errors.invalid(path, key, why);
    }
}
