//! FlowSchema: assigns requests to priority levels.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use super::conditions;
use crate::common::columns::{self, AGE, NAME, field, text};
use crate::common::{checks, go_json};
use crate::kind::{self, Column, Context, KindRules, MetadataPasses};

const SPEC: &str = "io.k8s.api.flowcontrol.v1.FlowSchemaSpec";
const REFERENCE: &str = "io.k8s.api.flowcontrol.v1.PriorityLevelConfigurationReference";
const DEFAULT_PRECEDENCE: i64 = 1000;
const HIGHEST_PRECEDENCE: i64 = 10_000;
const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

/// The rules of FlowSchema.
pub struct FlowSchema;

impl KindRules for FlowSchema {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        if object.integer(&["spec", "matchingPrecedence"]).unwrap_or(0) == 0 {
            object.set(&["spec", "matchingPrecedence"], DEFAULT_PRECEDENCE);
        }
    }

    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        match context.subresource {
            "status" => conditions::keep_all_but_status(object, old),
            _ => kind::keep_field(object, old, "status"),
        }
    }

    fn validate(&self, object: &Value, _old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        if context.subresource != "status" {
            let name = object.text(&["metadata", "name"]);
            validate_spec(&mut errors, name, &object["spec"]);
            if fixed_spec(name).is_some_and(|fixed| fixed != object["spec"]) {
                let detail = format!("spec of '{name}' must equal the fixed value");
                errors.invalid(&Path::root("spec"), object["spec"].clone(), detail);
            }
        }
        conditions::validate(&mut errors, object);
        errors
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 0, as_create: 1 }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                NAME,
                field("PriorityLevel", "string", REFERENCE, "name"),
                field("MatchingPrecedence", "string", SPEC, "matchingPrecedence"),
                field("DistinguisherMethod", "string", SPEC, "distinguisherMethod"),
                AGE,
                text("MissingPL", "string", "references a broken or non-existent PriorityLevelConfiguration"),
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let method = if object.has(&["spec", "distinguisherMethod"]) {
            object.text(&["spec", "distinguisherMethod", "type"])
        } else {
            "<none>"
        };
        let mut conditions = object.items(&["status", "conditions"]).iter();
        let dangling = conditions.find(|condition| condition.text(&["type"]) == "Dangling");
        vec![
            columns::name(object),
            object.text(&["spec", "priorityLevelConfiguration", "name"]).into(),
            columns::count(object, &["spec", "matchingPrecedence"]),
            method.into(),
            columns::age(object, now),
            dangling.map_or("?", |condition| condition.text(&["status"])).into(),
        ]
    }
}

/// Validates the two mandatory schemas, which must keep their predefined spec.
fn fixed_spec(name: &str) -> Option<Value> {
    let everything = |groups: &[&str]| {
        let subjects: Vec<Value> =
            groups.iter().map(|group| json!({"kind": "Group", "group": {"name": group}})).collect();
        json!([{
            "subjects": subjects,
            "resourceRules": [
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"]}
            ],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        }])
    };
    match name {
        "exempt" => Some(json!({
            "priorityLevelConfiguration": {"name": "exempt"},
            "matchingPrecedence": 1,
            "rules": everything(&["system:masters"]),
        })),
        "catch-all" => Some(json!({
            "priorityLevelConfiguration": {"name": "catch-all"},
            "matchingPrecedence": HIGHEST_PRECEDENCE,
            "distinguisherMethod": {"type": "ByUser"},
            "rules": everything(&["system:unauthenticated", "system:authenticated"]),
        })),
        _ => None,
    }
}

fn validate_spec(errors: &mut Errors, name: &str, spec: &Value) {
    let path = Path::root("spec");
    let precedence = spec.integer(&["matchingPrecedence"]).unwrap_or(0);
    let at = path.child("matchingPrecedence");
    if precedence <= 0 {
        errors.invalid(&at, precedence, "must be a positive value");
    }
    if precedence > HIGHEST_PRECEDENCE {
        errors.invalid(&at, precedence, format!("must not be greater than {HIGHEST_PRECEDENCE}"));
    }
    if precedence == 1 && name != "exempt" {
        errors.invalid(&at, precedence, "only the schema named 'exempt' may have matchingPrecedence 1");
    }
    if spec.has(&["distinguisherMethod"]) {
        let method = spec.text(&["distinguisherMethod", "type"]);
        if !matches!(method, "ByNamespace" | "ByUser") {
            let at = path.child("distinguisherMethod.type");
            let rendered = go_json::struct_json(&[("Type", method.into())]);
            checks::not_supported_struct(errors, &at, rendered, &["ByNamespace", "ByUser"]);
        }
    }
    let at = path.child("priorityLevelConfiguration.name");
    match spec.text(&["priorityLevelConfiguration", "name"]) {
        "" => errors.required(&at, "must reference a priority level"),
        level => names::check(errors, &at, level, names::dns_subdomain),
    }
    for (index, rule) in spec.items(&["rules"]).iter().enumerate() {
        validate_rule(errors, &path.item("rules", index), rule);
    }
}

fn validate_rule(errors: &mut Errors, path: &Path<'_>, rule: &Value) {
    let subjects = rule.items(&["subjects"]);
    if subjects.is_empty() {
        errors.required(&path.child("subjects"), "subjects must contain at least one value");
    }
    for (index, subject) in subjects.iter().enumerate() {
        validate_subject(errors, &path.item("subjects", index), subject);
    }
    let (resource_rules, url_rules) = (rule.items(&["resourceRules"]), rule.items(&["nonResourceRules"]));
    if resource_rules.is_empty() && url_rules.is_empty() {
        errors.required(path, "at least one of resourceRules and nonResourceRules has to be non-empty");
    }
    for (index, rule) in resource_rules.iter().enumerate() {
        validate_resource_rule(errors, &path.item("resourceRules", index), rule);
    }
    for (index, rule) in url_rules.iter().enumerate() {
        validate_url_rule(errors, &path.item("nonResourceRules", index), rule);
    }
}

fn validate_subject(errors: &mut Errors, path: &Path<'_>, subject: &Value) {
    const KINDS: [(&str, &str); 3] = [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];
    let kind = subject.text(&["kind"]);
    let Some((_, own)) = KINDS.iter().find(|(name, _)| *name == kind) else {
        errors.not_supported(&path.child("kind"), kind, &["Group", "ServiceAccount", "User"]);
        return;
    };
    let at = path.child(own);
    let named = &subject[*own];
    if named.is_null() {
        errors.required(&at, format!("{own} is required when subject kind is '{kind}'"));
    } else {
        let name = named.text(&["name"]);
        if name.is_empty() {
            errors.required(&at.child("name"), "");
        }
        if kind == "ServiceAccount" {
            if !matches!(name, "" | "*") {
                names::check(errors, &at.child("name"), name, names::dns_subdomain);
            }
            match named.text(&["namespace"]) {
                "" => errors.required(&at.child("namespace"), "must specify namespace for service account"),
                namespace => names::check(errors, &at.child("namespace"), namespace, names::dns_label),
            }
        }
    }
    for (other, field) in KINDS.iter().filter(|(name, _)| *name != kind) {
        if subject.has(&[field]) {
            errors.forbidden(&path.child(field), format!("{field} is forbidden when subject kind is not '{other}'"));
        }
    }
}

/// Validates that a list is not empty and has `*` only as the single member. Returns whether to validate the members.
fn validate_list(
    errors: &mut Errors,
    path: &Path<'_>,
    rule: &Value,
    field: &str,
    when_empty: &str,
    what: &str,
) -> bool {
    let items = rule.items(&[field]);
    if items.is_empty() {
        errors.required(&path.child(field), when_empty);
        return false;
    }
    let wild = items.iter().any(|item| item == "*");
    if wild && items.len() > 1 {
        let detail = format!("if '*' is present, must not specify other {what}");
        errors.invalid(&path.child(field), rule[field].clone(), detail);
    }
    !wild
}

fn validate_verbs(errors: &mut Errors, path: &Path<'_>, rule: &Value) {
    let known = |verb: &Value| VERBS.contains(&verb.as_str().unwrap_or_default());
    if validate_list(errors, path, rule, "verbs", "verbs must contain at least one value", "verbs")
        && !rule.items(&["verbs"]).iter().all(known)
    {
        errors.not_supported(&path.child("verbs"), rule["verbs"].clone(), &VERBS);
    }
}

fn validate_resource_rule(errors: &mut Errors, path: &Path<'_>, rule: &Value) {
    validate_verbs(errors, path, rule);
    let detail = "resource rules must supply at least one api group";
    validate_list(errors, path, rule, "apiGroups", detail, "api groups");
    validate_list(errors, path, rule, "resources", "resource rules must supply at least one resource", "resources");
    let namespaces = rule.items(&["namespaces"]);
    if namespaces.is_empty() && rule.flag(&["clusterScope"]) == Some(true) {
        return;
    }
    let detail = "resource rules that are not cluster scoped must supply at least one namespace";
    if validate_list(errors, path, rule, "namespaces", detail, "namespaces") {
        for (index, namespace) in namespaces.iter().enumerate() {
            let namespace = namespace.as_str().unwrap_or_default();
            for wrong in names::dns_label(namespace) {
                let detail = format!("each member of this list must be '*' or a DNS-1123 label; {wrong}");
                errors.invalid(&path.item("namespaces", index), namespace, detail);
            }
        }
    }
}

fn validate_url_rule(errors: &mut Errors, path: &Path<'_>, rule: &Value) {
    validate_verbs(errors, path, rule);
    let detail = "nonResourceURLs must contain at least one value";
    if validate_list(errors, path, rule, "nonResourceURLs", detail, "non-resource URLs") {
        for (index, url) in rule.items(&["nonResourceURLs"]).iter().enumerate() {
            let url = url.as_str().unwrap_or_default();
            if let Some(wrong) = url_error(url) {
                errors.invalid(&path.item("nonResourceURLs", index), url, wrong);
            }
        }
    }
}

fn url_error(url: &str) -> Option<&'static str> {
    let stars = url.matches('*').count();
    match url {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !url.starts_with('/') => Some("must start with slash"),
        _ if url.contains(' ') => Some("must not contain white-space"),
        _ if url.contains("//") => Some("must not contain double slash"),
        _ if stars > 1 || (stars == 1 && !url.ends_with("/*")) => Some("wildcard can only do suffix matching"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};

    #[test]
    fn schemas_are_checked() {
        let schema =
            |name: &str, spec: Value| defaulted(&FlowSchema, json!({"metadata": {"name": name}, "spec": spec}));
        let level = json!({"name": "l"});
        for (object, wrong) in [
            (schema("catch-all", fixed_spec("catch-all").unwrap()), vec![]),
            (schema("a", json!({"priorityLevelConfiguration": level})), vec![]),
            (
                schema("a", json!({"matchingPrecedence": 1})),
                vec![
                    "spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1",
                    "spec.priorityLevelConfiguration.name: Required value: must reference a priority level",
                ],
            ),
            (
                schema(
                    "a",
                    json!({"priorityLevelConfiguration": level, "rules": [{"subjects": [{"kind": "User", "group": {"name": "g"}}],
                    "resourceRules": [{"verbs": ["get", "*"], "apiGroups": ["*"], "resources": ["*"]}],
                    "nonResourceRules": [{"verbs": ["fly"], "nonResourceURLs": ["a"]}]}]}),
                ),
                vec![
                    "spec.rules[0].subjects[0].user: Required value: user is required when subject kind is 'User'",
                    "spec.rules[0].subjects[0].group: Forbidden: group is forbidden when subject kind is not 'Group'",
                    "spec.rules[0].resourceRules[0].verbs: Invalid value: [\"get\",\"*\"]: if '*' is present, must not specify \
                     other verbs",
                    "spec.rules[0].resourceRules[0].namespaces: Required value: resource rules that are not cluster scoped must \
                     supply at least one namespace",
                    "spec.rules[0].nonResourceRules[0].verbs: Unsupported value: [\"fly\"]: supported values: \"create\", \
                     \"delete\", \"deletecollection\", \"get\", \"list\", \"patch\", \"proxy\", \"update\", \"watch\"",
                    "spec.rules[0].nonResourceRules[0].nonResourceURLs[0]: Invalid value: \"a\": must start with slash",
                ],
            ),
        ] {
            assert_eq!(messages(&FlowSchema, &object, None), wrong);
        }
    }
}
