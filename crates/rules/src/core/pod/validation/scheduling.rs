//! Validation of scheduling fields: affinity, tolerations, topology spread constraints.

use std::collections::BTreeSet;
use std::num::IntErrorKind;

use knarr_api::field::{Errors, Path, quoted};
use knarr_api::names;
use knarr_api::taint::is_decimal;
use knarr_api::value::Read;
use serde_json::Value;

use super::super::options::Options;
use crate::common::checks::one_of;
use crate::common::label_selector;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const NOT_POSITIVE: &str = "must be greater than zero";

/// Validates an affinity.
pub fn affinity(errors: &mut Errors, affinity: &Value, path: &Path<'_>, options: &Options) {
    let node = affinity.at(&["nodeAffinity"]);
    if !node.is_null() {
        node_affinity(errors, node, &path.child("nodeAffinity"), options);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let terms = affinity.at(&[kind]);
        if !terms.is_null() {
            pod_affinity(errors, terms, &path.child(kind), options);
        }
    }
}

fn node_affinity(errors: &mut Errors, affinity: &Value, path: &Path<'_>, options: &Options) {
    let required = affinity.at(&[REQUIRED]);
    if !required.is_null() {
        node_selector(errors, required, options.invalid_node_affinity_values, &path.child(REQUIRED));
    }
    for (i, term) in affinity.items(&[PREFERRED]).iter().enumerate() {
        let path = path.item(PREFERRED, i);
        weight(errors, term, &path);
        node_selector_term(errors, term.at(&["preference"]), true, &path.child("preference"));
    }
}

fn weight(errors: &mut Errors, term: &Value, path: &Path<'_>) {
    let weight = term.integer(&["weight"]).unwrap_or_default();
    if !(1..=100).contains(&weight) {
        errors.invalid(&path.child("weight"), weight, "must be in the range 1-100");
    }
}

/// Validates a node selector.
pub fn node_selector(errors: &mut Errors, selector: &Value, lax_values: bool, path: &Path<'_>) {
    let terms = selector.items(&["nodeSelectorTerms"]);
    if terms.is_empty() {
        errors.required(&path.child("nodeSelectorTerms"), "must have at least one node selector term");
    }
    for (i, term) in terms.iter().enumerate() {
        node_selector_term(errors, term, lax_values, &path.item("nodeSelectorTerms", i));
    }
}

/// Validates a term of a node selector.
pub fn node_selector_term(errors: &mut Errors, term: &Value, lax_values: bool, path: &Path<'_>) {
    for (i, requirement) in term.items(&["matchExpressions"]).iter().enumerate() {
        node_expression(errors, requirement, lax_values, &path.item("matchExpressions", i));
    }
    for (i, requirement) in term.items(&["matchFields"]).iter().enumerate() {
        node_field(errors, requirement, &path.item("matchFields", i));
    }
}

fn node_expression(errors: &mut Errors, requirement: &Value, lax_values: bool, path: &Path<'_>) {
    let values = requirement.items(&["values"]);
    let operator = requirement.text(&["operator"]);
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            errors.required(&path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.forbidden(&path.child("values"), detail);
        }
        "Gt" | "Lt" if values.len() != 1 => {
            errors.required(&path.child("values"), "must be specified single value when `operator` is 'Lt' or 'Gt'");
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        _ => errors.invalid(&path.child("operator"), operator, "not a valid selector operator"),
    }
    names::check(errors, &path.child("key"), requirement.text(&["key"]), names::qualified_name);
    if !lax_values {
        for (i, value) in values.iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            names::check(errors, &path.item("values", i), value, names::label_value);
        }
    }
}

fn node_field(errors: &mut Errors, requirement: &Value, path: &Path<'_>) {
    let values = requirement.items(&["values"]);
    let (operator, key) = (requirement.text(&["operator"]), requirement.text(&["key"]));
    match operator {
        "In" | "NotIn" if values.len() != 1 => {
            let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.required(&path.child("values"), detail);
        }
        "In" | "NotIn" => {}
        _ => errors.invalid(&path.child("operator"), operator, "not a valid selector operator"),
    }
    if key != "metadata.name" {
        return errors.invalid(&path.child("key"), key, "not a valid field selector key");
    }
    for (i, value) in values.iter().enumerate() {
        let value = value.as_str().unwrap_or_default();
        names::check(errors, &path.item("values", i), value, names::dns_subdomain);
    }
}

/// Returns whether a node selector has a value that is not a valid label value.
pub fn has_invalid_node_value(selector: &Value) -> bool {
    let terms = selector.items(&["nodeSelectorTerms"]).iter();
    terms
        .flat_map(|term| term.items(&["matchExpressions"]))
        .flat_map(|requirement| requirement.items(&["values"]))
        .any(|value| !names::label_value(value.as_str().unwrap_or_default()).is_empty())
}

/// Returns whether the required node affinity has an invalid label value.
pub fn has_invalid_required_node_affinity(spec: &Value) -> bool {
    has_invalid_node_value(spec.at(&["affinity", "nodeAffinity", REQUIRED]))
}

fn pod_affinity(errors: &mut Errors, affinity: &Value, path: &Path<'_>, options: &Options) {
    for (i, term) in affinity.items(&[REQUIRED]).iter().enumerate() {
        pod_affinity_term(errors, term, &path.item(REQUIRED, i), options);
    }
    for (i, term) in affinity.items(&[PREFERRED]).iter().enumerate() {
        let path = path.item(PREFERRED, i);
        weight(errors, term, &path);
        pod_affinity_term(errors, term.at(&["podAffinityTerm"]), &path.child("podAffinityTerm"), options);
    }
}

fn pod_affinity_term(errors: &mut Errors, term: &Value, path: &Path<'_>, options: &Options) {
    for selector in ["labelSelector", "namespaceSelector"] {
        let lax = options.invalid_affinity_selector_values;
        label_selector::validate(errors, &path.child(selector), term.at(&[selector]), lax);
    }
    for namespace in term.items(&["namespaces"]) {
        let namespace = namespace.as_str().unwrap_or_default();
        names::check(errors, &path.child("namespace"), namespace, names::dns_label);
    }
    label_keys(errors, term, path);
    let key = term.text(&["topologyKey"]);
    if key.is_empty() {
        errors.required(&path.child("topologyKey"), "can not be empty");
    }
    names::check(errors, &path.child("topologyKey"), key, names::qualified_name);
}

/// Validates `matchLabelKeys` and `mismatchLabelKeys` of an affinity term or a spread constraint.
fn label_keys(errors: &mut Errors, holder: &Value, path: &Path<'_>) {
    let selector = holder.at(&["labelSelector"]);
    for field in ["matchLabelKeys", "mismatchLabelKeys"] {
        let keys = holder.items(&[field]);
        if !keys.is_empty() && selector.is_null() {
            errors.forbidden(&path.child(field), "must not be specified when labelSelector is not set");
            continue;
        }
        for (i, key) in keys.iter().enumerate() {
            names::check(errors, &path.item(field, i), key.as_str().unwrap_or_default(), names::qualified_name);
        }
    }
    for (i, key) in repeated_keys(holder) {
        errors.invalid(&path.index(i), key, "exists in both matchLabelKeys and labelSelector");
    }
    let mismatch = holder.items(&["mismatchLabelKeys"]);
    for (i, key) in holder.items(&["matchLabelKeys"]).iter().enumerate() {
        if mismatch.contains(key) {
            let detail = "exists in both matchLabelKeys and mismatchLabelKeys";
            errors.invalid(&path.item("matchLabelKeys", i), key.clone(), detail);
        }
    }
}

/// Returns the keys of `matchLabelKeys` that the selector has more than once. Merging them adds each once.
fn repeated_keys(holder: &Value) -> Vec<(usize, &str)> {
    let keys = holder.items(&["matchLabelKeys"]);
    if keys.is_empty() {
        return Vec::new();
    }
    let selector = holder.at(&["labelSelector"]);
    let labels = selector.fields(&["matchLabels"]).into_iter().flat_map(|labels| labels.keys());
    let mut named: BTreeSet<&str> = labels.map(String::as_str).collect();
    let mut repeated = Vec::new();
    for expression in selector.items(&["matchExpressions"]) {
        let key = expression.text(&["key"]);
        if let Some(i) = keys.iter().rposition(|other| other.as_str() == Some(key))
            && named.contains(key)
        {
            repeated.push((i, key));
        }
        named.insert(key);
    }
    repeated
}

/// Returns whether a spread constraint has repeated keys.
pub fn has_repeated_spread_keys(spec: &Value) -> bool {
    spec.items(&["topologySpreadConstraints"]).iter().any(|constraint| !repeated_keys(constraint).is_empty())
}

/// Validates topology spread constraints.
pub fn spread_constraints(errors: &mut Errors, spec: &Value, path: &Path<'_>, options: &Options) {
    let constraints = spec.items(&["topologySpreadConstraints"]);
    for (i, constraint) in constraints.iter().enumerate() {
        let path = path.item("topologySpreadConstraints", i);
        positive(errors, constraint.integer(&["maxSkew"]).unwrap_or_default(), &path.child("maxSkew"));
        let (key, action) = (constraint.text(&["topologyKey"]), constraint.text(&["whenUnsatisfiable"]));
        if key.is_empty() {
            errors.required(&path.child("topologyKey"), "can not be empty");
        }
        one_of(errors, &path.child("whenUnsatisfiable"), action, &["DoNotSchedule", "ScheduleAnyway"]);
        let repeats =
            |other: &Value| other.text(&["topologyKey"]) == key && other.text(&["whenUnsatisfiable"]) == action;
        if constraints[i + 1..].iter().any(repeats) {
            let rendered = format!("{{{key}, {action}}}");
            errors.duplicate(&path.child("{topologyKey, whenUnsatisfiable}"), rendered);
        }
        if let Some(domains) = constraint.integer(&["minDomains"]) {
            positive(errors, domains, &path.child("minDomains"));
            if action != "DoNotSchedule" {
                let detail = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                errors.invalid(&path.child("minDomains"), domains, detail);
            }
        }
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if let Some(policy) = constraint.at(&[field]).as_str() {
                one_of(errors, &path.child(field), policy, &["Honor", "Ignore"]);
            }
        }
        if options.repeated_spread_keys {
            legacy_spread_keys(errors, constraint, &path.child("matchLabelKeys"));
        } else {
            label_keys(errors, constraint, &path);
        }
        if !options.invalid_spread_selectors {
            label_selector::validate(errors, &path.child("labelSelector"), constraint.at(&["labelSelector"]), false);
        }
    }
}

fn positive(errors: &mut Errors, number: i64, path: &Path<'_>) {
    if number <= 0 {
        errors.invalid(path, number, NOT_POSITIVE);
    }
}

fn legacy_spread_keys(errors: &mut Errors, constraint: &Value, path: &Path<'_>) {
    let keys = constraint.items(&["matchLabelKeys"]);
    if keys.is_empty() {
        return;
    }
    let selector = constraint.at(&["labelSelector"]);
    if selector.is_null() {
        errors.forbidden(path, "must not be specified when labelSelector is not set");
    }
    let expressions: BTreeSet<&str> =
        selector.items(&["matchExpressions"]).iter().map(|expression| expression.text(&["key"])).collect();
    for (i, key) in keys.iter().enumerate() {
        let key = key.as_str().unwrap_or_default();
        names::check(errors, &path.index(i), key, names::qualified_name);
        let named = selector.fields(&["matchLabels"]).is_some_and(|labels| labels.contains_key(key))
            || expressions.contains(key);
        if named {
            errors.invalid(&path.index(i), key, "exists in both matchLabelKeys and labelSelector");
        }
    }
}

/// Validates tolerations.
pub fn tolerations(errors: &mut Errors, tolerations: &[Value], path: &Path<'_>, options: &Options) {
    for (i, toleration) in tolerations.iter().enumerate() {
        self::toleration(errors, toleration, &path.index(i), options);
    }
}

fn toleration(errors: &mut Errors, toleration: &Value, path: &Path<'_>, options: &Options) {
    let (key, operator) = (toleration.text(&["key"]), toleration.text(&["operator"]));
    let (value, effect) = (toleration.text(&["value"]), toleration.text(&["effect"]));
    if !key.is_empty() {
        names::check(errors, &path.child("key"), key, names::qualified_name);
    } else if operator != "Exists" {
        let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errors.invalid(&path.child("operator"), operator, detail);
    }
    if toleration.has(&["tolerationSeconds"]) && effect != "NoExecute" {
        errors.invalid(&path.child("effect"), effect, "effect must be 'NoExecute' when `tolerationSeconds` is set");
    }
    match operator {
        "Equal" | "" => {
            let wrong = names::label_value(value);
            if !wrong.is_empty() {
                errors.invalid(&path.child("operator"), value, wrong.join(";"));
            }
        }
        "Exists" => {
            if !value.is_empty() {
                errors.invalid(&path.child("operator"), value, "value must be empty when `operator` is 'Exists'");
            }
        }
        "Lt" | "Gt" if options.comparing_tolerations => comparable(errors, value, &path.child("value")),
        "Lt" | "Gt" => {
            errors.not_supported(&path.child("operator"), operator, &["Equal", "Exists", "Lt", "Gt"]);
        }
        _ => errors.not_supported(&path.child("operator"), operator, &["Equal", "Exists"]),
    }
    if !effect.is_empty() {
        taint_effect(errors, effect, &path.child("effect"));
    }
}

/// Validates a number that a taint's value is compared with.
fn comparable(errors: &mut Errors, value: &str, path: &Path<'_>) {
    if value.is_empty() {
        errors.invalid(path, value, "must be non-empty");
    } else if !is_decimal(value) {
        errors.invalid(path, value, "must be a valid decimal integer in canonical form");
    }
    if let Err(error) = value.parse::<i64>() {
        let why = match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        errors.invalid(path, value, format!("strconv.ParseInt: parsing {}: {why}", quoted(value)));
    }
}

/// Validates the effect of a taint.
pub fn taint_effect(errors: &mut Errors, effect: &str, path: &Path<'_>) {
    one_of(errors, path, effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
}
