//! Tests of the specs, policies and statuses of Jobs, by what is wrong with each.

use serde_json::{Value, json};

use super::Job;
use crate::kind::KindRules as _;
use crate::testing::{context, defaulted, messages, messages_of};

fn job(spec: &Value) -> Value {
    let mut whole =
        json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}});
    for (field, value) in spec.as_object().into_iter().flatten() {
        whole[field] = value.clone();
    }
    let mut job = defaulted(&Job, json!({"metadata": {"name": "j", "uid": "UID"}, "spec": whole}));
    Job.prepare_create(&mut job, &context("v1"));
    job
}

/// The errors of a Job without `spec.`.
fn found(spec: &Value) -> Vec<String> {
    let relative = |message: String| message.strip_prefix("spec.").map_or(message.clone(), str::to_owned);
    messages(&Job, &job(spec), None).into_iter().map(relative).collect()
}

#[test]
fn indexed_jobs_have_limits() {
    let indexed = |fields: Value| {
        let mut spec = json!({"completionMode": "Indexed", "completions": 10, "parallelism": 1});
        for (name, value) in fields.as_object().into_iter().flatten() {
            spec[name] = value.clone();
        }
        spec
    };
    for (spec, expected) in [
        (indexed(json!({"backoffLimitPerIndex": 1, "maxFailedIndexes": 10})), vec![]),
        (
            indexed(json!({"backoffLimitPerIndex": 1, "maxFailedIndexes": 11})),
            vec!["maxFailedIndexes: Invalid value: 11: must be less than or equal to completions"],
        ),
        (
            indexed(json!({"parallelism": 100_001})),
            vec![
                "parallelism: Invalid value: 100001: must be less than or equal to 100000 when completion mode is Indexed",
            ],
        ),
        (
            indexed(json!({"completions": 100_001, "backoffLimitPerIndex": 1})),
            vec!["maxFailedIndexes: Required value: must be specified when completions is above 100000"],
        ),
        (
            indexed(
                json!({"completions": 100_001, "backoffLimitPerIndex": 1, "maxFailedIndexes": 10_001, "parallelism": 10_001}),
            ),
            vec![
                "parallelism: Invalid value: 10001: must be less than or equal to 10000 when completions are above 100000 \
                 and used with backoff limit per index",
                "maxFailedIndexes: Invalid value: 10001: must be less than or equal to 10000 when completions are above \
                 100000 and used with backoff limit per index",
            ],
        ),
        (
            json!({"completionMode": "Random"}),
            vec!["completionMode: Unsupported value: \"Random\": supported values: \"NonIndexed\", \"Indexed\""],
        ),
        (
            json!({"activeDeadlineSeconds": -1, "backoffLimit": -2, "ttlSecondsAfterFinished": -3}),
            vec![
                "activeDeadlineSeconds: Invalid value: -1: must be greater than or equal to 0",
                "backoffLimit: Invalid value: -2: must be greater than or equal to 0",
                "ttlSecondsAfterFinished: Invalid value: -3: must be greater than or equal to 0",
            ],
        ),
    ] {
        assert_eq!(found(&spec), expected, "{spec}");
    }
}

#[test]
fn failure_policies_are_checked() {
    let rule = |rule: Value| json!({"podFailurePolicy": {"rules": [rule]}});
    let codes = |codes: Value| rule(json!({"action": "FailJob", "onExitCodes": codes}));
    let at = "podFailurePolicy.rules[0]";
    for (spec, expected) in [
        (codes(json!({"containerName": "c", "operator": "NotIn", "values": [0, 1]})), vec![]),
        (rule(json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]})), vec![]),
        (
            rule(json!({"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [1]}})),
            vec![".action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set"],
        ),
        (
            rule(json!({"action": "Shrug", "onExitCodes": {"operator": "In", "values": [1]}})),
            vec![
                ".action: Unsupported value: \"Shrug\": supported values: \"Count\", \"FailIndex\", \"FailJob\", \"Ignore\"",
            ],
        ),
        (
            codes(json!({"containerName": "x", "operator": "", "values": []})),
            vec![
                ".onExitCodes.operator: Required value: valid values: [\"In\" \"NotIn\"]",
                ".onExitCodes.containerName: Invalid value: \"x\": must be one of the container or initContainer names in \
                 the pod template",
                ".onExitCodes.values: Invalid value: []: at least one value is required",
            ],
        ),
        (
            codes(json!({"operator": "Near", "values": [1, 1]})),
            vec![
                ".onExitCodes.operator: Unsupported value: \"Near\": supported values: \"In\", \"NotIn\"",
                ".onExitCodes.values[1]: Duplicate value: 1",
            ],
        ),
        (
            rule(json!({"action": "Count", "onPodConditions": [{"type": "", "status": "Maybe"}]})),
            vec![
                ".onPodConditions[0].type: Invalid value: \"\": name part must be non-empty",
                ".onPodConditions[0].type: Invalid value: \"\": name part must consist of alphanumeric characters, '-', \
                 '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or \
                 '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
                ".onPodConditions[0].status: Unsupported value: \"Maybe\": supported values: \"False\", \"True\", \
                 \"Unknown\"",
            ],
        ),
        (
            rule(
                json!({"action": "Count", "onExitCodes": {"operator": "In", "values": [1]}, "onPodConditions": [{"type": "A"}]}),
            ),
            vec![": Invalid value: specifying both OnExitCodes and OnPodConditions is not supported"],
        ),
    ] {
        let mut spec = spec;
        spec["podReplacementPolicy"] = json!("Failed");
        let expected: Vec<String> = expected.iter().map(|message| format!("{at}{message}")).collect();
        assert_eq!(found(&spec), expected, "{spec}");
    }
    let many: Vec<Value> = (0..21).map(|_| json!({"action": "Count", "onPodConditions": [{"type": "A"}]})).collect();
    let spec = json!({"podFailurePolicy": {"rules": many}, "podReplacementPolicy": "TerminatingOrFailed",
        "template": {"spec": {"restartPolicy": "OnFailure", "containers": [{"name": "c", "image": "i"}]}}});
    assert_eq!(
        found(&spec),
        [
            "podFailurePolicy.rules: Too many: 21: must have at most 20 items",
            "podReplacementPolicy: Unsupported value: \"TerminatingOrFailed\": supported values: \"Failed\"",
            "template.spec.restartPolicy: Invalid value: \"OnFailure\": only \"Never\" is supported when podFailurePolicy is \
             specified",
        ]
    );
}

#[test]
fn success_policies_are_checked() {
    for (rules, expected) in [
        (json!([{"succeededIndexes": "0-2,4", "succeededCount": 4}]), vec![]),
        (
            json!([]),
            vec![
                "successPolicy.rules: Required value: at least one rules must be specified when the successPolicy is specified",
            ],
        ),
        (
            json!([{}]),
            vec![
                "successPolicy.rules[0]: Required value: at least one of succeededCount or succeededIndexes must be specified",
            ],
        ),
        (
            json!([{"succeededIndexes": "3-1"}]),
            vec![
                "successPolicy.rules[0].succeededIndexes: Invalid value: \"3-1\": error parsing succeededIndexes: \
                 non-increasing order, previous: 3, current: 1",
            ],
        ),
        (
            json!([{"succeededIndexes": "5"}]),
            vec![
                "successPolicy.rules[0].succeededIndexes: Invalid value: \"5\": error parsing succeededIndexes: too large \
                 index: \"5\"",
            ],
        ),
        (
            json!([{"succeededCount": 6}]),
            vec![
                "successPolicy.rules[0].succeededCount: Invalid value: 6: must be less than or equal to 5 (the number of \
                 specified completions)",
            ],
        ),
        (
            json!([{"succeededCount": 3, "succeededIndexes": "0,1"}]),
            vec![
                "successPolicy.rules[0].succeededCount: Invalid value: 3: must be less than or equal to 2 (the number of \
                 indexes in the specified succeededIndexes field)",
            ],
        ),
    ] {
        let spec = json!({"completionMode": "Indexed", "completions": 5, "successPolicy": {"rules": rules}});
        assert_eq!(found(&spec), expected, "{rules}");
    }
}

#[test]
fn changes_of_a_status_are_checked() {
    let start = "2026-01-01T00:00:00Z";
    let earlier = "2025-01-01T00:00:00Z";
    let done =
        |kinds: &[&str]| -> Vec<Value> { kinds.iter().map(|kind| json!({"type": kind, "status": "True"})).collect() };
    let complete = done(&["SuccessCriteriaMet", "Complete"]);
    let failed = done(&["FailureTarget", "Failed"]);
    for (old, new, expected) in [
        (json!({}), json!({"active": 1, "ready": 1, "startTime": start}), vec![]),
        (json!({}), json!({"startTime": start, "conditions": failed}), vec![]),
        (
            json!({}),
            json!({"succeeded": -1}),
            vec![
                "status.succeeded: Invalid value: -1: must be greater than or equal to 0",
                "status.succeeded: Invalid value: -1: cannot decrease the succeeded counter",
            ],
        ),
        (
            json!({}),
            json!({"startTime": start, "conditions": done(&["Failed"])}),
            vec![
                "status.conditions: Invalid value: cannot set Failed=True condition without the FailureTarget=true condition",
            ],
        ),
        (
            json!({}),
            json!({"startTime": start, "completionTime": earlier, "conditions": complete}),
            vec![
                "status.completionTime: Invalid value: \"2025-01-01T00:00:00Z\": must be equal to or after `startTime`",
            ],
        ),
        (
            json!({}),
            json!({"completionTime": start}),
            vec![
                "status.completionTime: Invalid value: \"2026-01-01T00:00:00Z\": cannot set completionTime when there is no \
                 Complete=True condition",
            ],
        ),
        (
            json!({}),
            json!({"active": 1, "terminating": 2, "conditions": failed}),
            vec![
                "status.active: Invalid value: 1: active>0 is invalid for finished job",
                "status.startTime: Required value: startTime is required for finished job",
                "status.terminating: Invalid value: 2: terminating>0 is invalid for finished job",
            ],
        ),
        (
            json!({}),
            json!({"startTime": start, "conditions": failed, "uncountedTerminatedPods": {"failed": ["a"]}}),
            vec![
                "status.uncountedTerminatedPods: Invalid value: {\"Succeeded\":null,\"Failed\":[\"a\"]}: must be empty for \
                 finished job",
            ],
        ),
        (
            json!({}),
            json!({"uncountedTerminatedPods": {"succeeded": ["a", ""], "failed": ["a"]}}),
            vec![
                "status.uncountedTerminatedPods.succeeded[1]: Invalid value: \"\": must not be empty",
                "status.uncountedTerminatedPods.failed[0]: Duplicate value: \"a\"",
            ],
        ),
        (
            json!({}),
            json!({"completedIndexes": "0"}),
            vec![
                "status.completedIndexes: Invalid value: \"0\": cannot set non-empty completedIndexes when non-indexed \
                 completion mode",
            ],
        ),
        (
            json!({}),
            json!({"failedIndexes": "0"}),
            vec![
                "status.failedIndexes: Invalid value: \"0\": cannot set non-null failedIndexes when backoffLimitPerIndex is \
                 null",
            ],
        ),
        (
            json!({"startTime": start, "conditions": failed}),
            json!({"startTime": start}),
            vec![
                "status.conditions: Invalid value: cannot disable the terminal Failed=True condition",
                "status.conditions: Invalid value: cannot disable the terminal FailureTarget=True condition",
            ],
        ),
        (
            json!({"startTime": start}),
            json!({"startTime": earlier}),
            vec![
                "status.startTime: Invalid value: \"2025-01-01T00:00:00Z\": field is immutable for unsuspended job once set",
            ],
        ),
    ] {
        let with = |status: &Value| {
            let mut job = job(&json!({}));
            job["status"] = status.clone();
            job
        };
        let found = messages_of(&Job, &with(&new), Some(&with(&old)), "status");
        assert_eq!(found, expected, "{old} {new}");
    }
}
