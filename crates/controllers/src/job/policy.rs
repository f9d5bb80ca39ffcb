//! What a failed pod means for its job, and when enough indexes have succeeded.

use k8s_openapi::api::batch::v1::{JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, SuccessPolicy};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::indexes::Indexes;
use crate::common::key::{name, namespace};

#[derive(Debug, PartialEq)]
pub(super) enum Failure {
    /// Counted towards the back-off limit.
    Count,
    Ignore,
    FailIndex,
    /// The whole job fails, with this message.
    FailJob(String),
}

/// The action of the rule that matches a failed pod, if any does.
pub(super) fn matched_action(spec: &JobSpec, pod: &Pod) -> Option<&'static str> {
    let rule = is_failed(spec, pod).then(|| matching_rule(spec.pod_failure_policy.as_ref(), pod)).flatten();
    rule.map(|(action, _)| action)
}

/// The first rule that matches decides; a failure no rule matches is counted.
pub(super) fn of_failed(policy: Option<&PodFailurePolicy>, pod: &Pod) -> Failure {
    match matching_rule(policy, pod) {
        Some(("Ignore", _)) => Failure::Ignore,
        Some(("FailIndex", _)) => Failure::FailIndex,
        Some(("FailJob", message)) => Failure::FailJob(message),
        _ => Failure::Count,
    }
}

/// The action of the first rule that matches, and why it does.
fn matching_rule(policy: Option<&PodFailurePolicy>, pod: &Pod) -> Option<(&'static str, String)> {
    for (at, rule) in policy.iter().flat_map(|policy| policy.rules.iter()).enumerate() {
        let message = if let Some(requirement) = &rule.on_exit_codes {
            let Some((container, code)) = container_matching(pod, requirement) else { continue };
            format!(
                "Container {container} for pod {}/{} failed with exit code {code} matching {} rule at index {at}",
                namespace(pod),
                name(pod),
                rule.action
            )
        } else {
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let patterns = rule.on_pod_conditions.as_deref().unwrap_or_default();
            let mut matching = conditions.filter(|condition| {
                patterns.iter().any(|pattern| {
                    pattern.type_ == condition.type_ && pattern.status.as_deref().unwrap_or("True") == condition.status
                })
            });
            let Some(condition) = matching.next() else { continue };
            format!(
                "Pod {}/{} has condition {} matching {} rule at index {at}",
                namespace(pod),
                name(pod),
                condition.type_,
                rule.action
            )
        };
        let known = ["Ignore", "FailIndex", "FailJob", "Count"].into_iter().find(|known| *known == rule.action);
        if let Some(action) = known {
            return Some((action, message));
        }
    }
    None
}

fn container_matching(pod: &Pod, requirement: &PodFailurePolicyOnExitCodesRequirement) -> Option<(String, i32)> {
    let status = pod.status.as_ref()?;
    let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    let matches = |container: &ContainerStatus| {
        let code = container.state.as_ref()?.terminated.as_ref()?.exit_code;
        let named = requirement.container_name.as_ref().is_none_or(|desired| *desired == container.name);
        let listed = requirement.values.contains(&code);
        let fits = match requirement.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        };
        (named && code != 0 && fits).then(|| (container.name.clone(), code))
    };
    all.into_iter().find_map(matches)
}

/// Whether pods are replaced only once they have finished, instead of as soon as they are terminating.
pub(super) fn waits_for_termination(spec: &JobSpec) -> bool {
    spec.pod_replacement_policy.as_deref() == Some("Failed") || spec.pod_failure_policy.is_some()
}

pub(super) fn is_failed(spec: &JobSpec, pod: &Pod) -> bool {
    match knarr_client::pod::phase(pod) {
        "Failed" => true,
        "Succeeded" => false,
        _ => !waits_for_termination(spec) && knarr_client::pod::is_terminating(pod),
    }
}

/// The message of the first success rule that is met.
pub(super) fn success(policy: Option<&SuccessPolicy>, completions: u32, succeeded: &Indexes) -> Option<String> {
    if succeeded.is_empty() {
        return None;
    }
    for (at, rule) in policy?.rules.iter().enumerate() {
        let enough = |count: usize| rule.succeeded_count.is_some_and(|desired| count >= desired.max(0) as usize);
        let met = match &rule.succeeded_indexes {
            Some(text) => {
                let required = Indexes::parse(text, completions);
                let reached = required.overlap(succeeded);
                !required.is_empty() && (reached == required.count() || enough(reached))
            }
            None => enough(succeeded.count()),
        };
        if met {
            return Some(format!("Matched rules at index {at}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rules_decide_in_order() {
        let policy: PodFailurePolicy = serde_json::from_value(json!({"rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [42]}},
            {"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [1, 2]}}
        ]}))
        .unwrap();
        let pod = |code: i32, disrupted: bool| -> Pod {
            let conditions =
                if disrupted { json!([{"type": "DisruptionTarget", "status": "True"}]) } else { json!([]) };
            serde_json::from_value(json!({
                "metadata": {"name": "p", "namespace": "ns"},
                "status": {"conditions": conditions, "containerStatuses": [{
                    "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"terminated": {"exitCode": code}}
                }]}
            }))
            .unwrap()
        };
        let message = "Container main for pod ns/p failed with exit code 42 matching FailJob rule at index 1";
        for (pod, expected) in [
            (pod(42, true), Failure::Ignore),
            (pod(42, false), Failure::FailJob(message.into())),
            (pod(7, false), Failure::FailIndex),
            (pod(1, false), Failure::Count),
            (pod(0, false), Failure::Count),
        ] {
            assert_eq!(of_failed(Some(&policy), &pod), expected);
        }
        assert_eq!(of_failed(None, &pod(42, true)), Failure::Count);
    }

    #[test]
    fn success_rules() {
        let policy: SuccessPolicy = serde_json::from_value(
            json!({"rules": [{"succeededIndexes": "0,2-3", "succeededCount": 2}, {"succeededCount": 4}]}),
        )
        .unwrap();
        for (succeeded, met) in [("", None), ("0,1", None), ("0,2", Some(0)), ("1,4-6", Some(1))] {
            let message = met.map(|at| format!("Matched rules at index {at}"));
            assert_eq!(success(Some(&policy), 10, &Indexes::parse(succeeded, 10)), message, "{succeeded}");
        }
    }
}
