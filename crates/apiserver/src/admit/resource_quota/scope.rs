//! Which objects a quota's scopes select.

use std::collections::BTreeSet;

use knarr_api::value::Read;
use knarr_rules::core::pod::qos;
use serde_json::Value;

/// Whether a quota applies to the object. Scopes select pods, and claims by their attributes class.
pub fn selects(quota: &Value, group: &str, resource: &str, object: &Value) -> bool {
    let plain =
        quota.items(&["spec", "scopes"]).iter().filter_map(Value::as_str).map(|scope| (scope, "Exists", &[][..]));
    let chosen = quota.items(&["spec", "scopeSelector", "matchExpressions"]).iter().map(|expression| {
        (expression.text(&["scopeName"]), expression.text(&["operator"]), expression.items(&["values"]))
    });
    plain
        .chain(chosen)
        .all(|(scope, operator, values)| matches_scope((group, resource), object, scope, operator, values))
}

/// Whether one requirement on a scope selects an object.
pub fn matches_scope(
    (group, resource): (&str, &str),
    object: &Value,
    scope: &str,
    operator: &str,
    values: &[Value],
) -> bool {
    match (group, resource) {
        ("", "pods") => selects_pod(object, scope, operator, values),
        ("", "persistentvolumeclaims") => {
            let classes = attributes_classes(object);
            match (scope, classes.is_empty()) {
                ("VolumeAttributesClass", true) => names_match("", operator, values),
                ("VolumeAttributesClass", false) => {
                    classes.into_iter().any(|class| names_match(class, operator, values))
                }
                _ => false,
            }
        }
        _ => false,
    }
}

/// The attributes classes that a claim requests, has, or is being changed to.
pub fn attributes_classes(claim: &Value) -> BTreeSet<&str> {
    let places: [&[&str]; 3] = [
        &["spec", "volumeAttributesClassName"],
        &["status", "currentVolumeAttributesClassName"],
        &["status", "modifyVolumeStatus", "targetVolumeAttributesClassName"],
    ];
    places.into_iter().map(|place| claim.text(place)).filter(|class| !class.is_empty()).collect()
}

fn selects_pod(pod: &Value, scope: &str, operator: &str, values: &[Value]) -> bool {
    match scope {
        "Terminating" => is_terminating(pod),
        "NotTerminating" => !is_terminating(pod),
        "BestEffort" => is_best_effort(pod),
        "NotBestEffort" => !is_best_effort(pod),
        "PriorityClass" => names_match(pod.text(&["spec", "priorityClassName"]), operator, values),
        "CrossNamespacePodAffinity" => reaches_across_namespaces(pod),
        _ => false,
    }
}

fn names_match(name: &str, operator: &str, values: &[Value]) -> bool {
    match operator {
        "Exists" => !name.is_empty(),
        "DoesNotExist" => name.is_empty(),
        "In" => values.iter().any(|value| value == name),
        "NotIn" => !values.iter().any(|value| value == name),
        _ => false,
    }
}

pub fn is_terminating(pod: &Value) -> bool {
    pod.integer(&["spec", "activeDeadlineSeconds"]).is_some_and(|seconds| seconds >= 0)
}

fn is_best_effort(pod: &Value) -> bool {
    qos::class(pod.at(&["spec"])) == "BestEffort"
}

fn reaches_across_namespaces(pod: &Value) -> bool {
    let across = |term: &Value| !term.items(&["namespaces"]).is_empty() || term.has(&["namespaceSelector"]);
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let affinity = pod.at(&["spec", "affinity", kind]);
        affinity.items(&["requiredDuringSchedulingIgnoredDuringExecution"]).iter().any(across)
            || affinity
                .items(&["preferredDuringSchedulingIgnoredDuringExecution"])
                .iter()
                .any(|weighted| across(weighted.at(&["podAffinityTerm"])))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn scopes_select_pods() {
        let best_effort = json!({"spec": {"containers": [{}]}});
        let burstable = json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}],
            "priorityClassName": "high", "activeDeadlineSeconds": 5}});
        let scope = |name: &str| json!({"spec": {"scopes": [name]}});
        let class = |operator: &str| {
            json!({"spec": {"scopeSelector": {"matchExpressions": [
                {"scopeName": "PriorityClass", "operator": operator, "values": ["high"]}]}}})
        };
        for (quota, pod, selected) in [
            (json!({}), &best_effort, true),
            (scope("BestEffort"), &best_effort, true),
            (scope("BestEffort"), &burstable, false),
            (scope("Terminating"), &burstable, true),
            (scope("NotTerminating"), &burstable, false),
            (class("In"), &burstable, true),
            (class("In"), &best_effort, false),
            (class("NotIn"), &best_effort, true),
        ] {
            assert_eq!(selects(&quota, "", "pods", pod), selected, "{quota} {pod}");
        }
        assert!(!selects(&scope("BestEffort"), "", "services", &json!({})));
    }

    #[test]
    fn attributes_classes_select_claims() {
        let plain = json!({"spec": {}});
        let gold = json!({"spec": {"volumeAttributesClassName": "gold"}});
        let changing = json!({"spec": {"volumeAttributesClassName": "silver"},
            "status": {"currentVolumeAttributesClassName": "gold",
                "modifyVolumeStatus": {"targetVolumeAttributesClassName": "silver"}}});
        let quota = |operator: &str| {
            json!({"spec": {"scopeSelector": {"matchExpressions": [
                {"scopeName": "VolumeAttributesClass", "operator": operator, "values": ["gold"]}]}}})
        };
        for (operator, selected) in [
            ("In", [false, true, true]),
            ("NotIn", [true, false, true]),
            ("Exists", [false, true, true]),
            ("DoesNotExist", [true, false, false]),
        ] {
            let found =
                [&plain, &gold, &changing].map(|claim| selects(&quota(operator), "", "persistentvolumeclaims", claim));
            assert_eq!(found, selected, "{operator}");
        }
        assert!(!selects(&json!({"spec": {"scopes": ["BestEffort"]}}), "", "persistentvolumeclaims", &gold));
    }
}
