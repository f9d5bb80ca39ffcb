use std::collections::HashSet;

use super::*;
use crate::job::tracking::{count_released, end, track};
use k8s_openapi::api::batch::v1::JobStatus;
use serde_json::{Value, json};

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn job(spec: Value, status: Value) -> Job {
    let mut full = json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}}});
    for (key, value) in spec.as_object().cloned().unwrap_or_default() {
        full[key] = value;
    }
    serde_json::from_value(
        json!({"metadata": {"name": "j", "namespace": "ns", "uid": "j"}, "spec": full, "status": status}),
    )
    .unwrap()
}

/// Phase and index of each pod; its number is its uid.
fn pods(rows: &[(&str, Option<u32>)]) -> Vec<Arc<Pod>> {
    let pod = |(n, (phase, index)): (usize, &(&str, Option<u32>))| {
        let annotations =
            index.map_or(json!({}), |index| json!({"batch.kubernetes.io/job-completion-index": index.to_string()}));
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": format!("p{n}"), "namespace": "ns", "uid": n.to_string(), "annotations": annotations,
                    "finalizers": ["batch.kubernetes.io/job-tracking"], "creationTimestamp": "2026-01-01T00:00:00Z"},
                "status": {"phase": phase}
            }))
            .unwrap(),
        )
    };
    rows.iter().enumerate().map(pod).collect()
}

fn rendered(step: &Step) -> String {
    match step {
        Step::Finish(condition) => format!("{} {}", condition.type_, condition.reason.as_deref().unwrap_or("")),
        Step::Remove(pods) => format!("remove {}", pods.len()),
        Step::Create(indexes) => {
            let indexes: Vec<String> = indexes.iter().map(|i| i.map_or("-".to_owned(), |i| i.to_string())).collect();
            format!("create {}", indexes.join(","))
        }
        Step::Nothing => "nothing".to_owned(),
    }
}

#[test]
fn next_steps() {
    let indexed = |extra: Value| {
        let mut spec = json!({"completionMode": "Indexed", "completions": 4, "parallelism": 2});
        for (key, value) in extra.as_object().cloned().unwrap_or_default() {
            spec[key] = value;
        }
        spec
    };
    let per_index = || indexed(json!({"backoffLimitPerIndex": 0, "backoffLimit": 1000, "parallelism": 4}));
    for (case, spec, rows, expected) in [
        ("fresh", json!({"completions": 3, "parallelism": 2}), vec![], "create -,-"),
        (
            "one left",
            json!({"completions": 3, "parallelism": 2}),
            vec![("Succeeded", None), ("Succeeded", None)],
            "create -",
        ),
        ("running", json!({"completions": 3, "parallelism": 2}), vec![("Running", None), ("Running", None)], "nothing"),
        (
            "too many",
            json!({"completions": 3, "parallelism": 1}),
            vec![("Running", None), ("Running", None)],
            "remove 1",
        ),
        ("work queue", json!({"parallelism": 2}), vec![("Succeeded", None), ("Running", None)], "nothing"),
        (
            "suspended",
            json!({"suspend": true, "parallelism": 2}),
            vec![("Running", None), ("Running", None)],
            "remove 2",
        ),
        ("failed often", json!({"backoffLimit": 0}), vec![("Failed", None)], "FailureTarget BackoffLimitExceeded"),
        ("indexes", indexed(json!({})), vec![("Running", Some(0))], "create 1"),
        ("next indexes", indexed(json!({})), vec![("Succeeded", Some(0)), ("Running", Some(1))], "create 2"),
        ("twice the same", indexed(json!({})), vec![("Running", Some(0)), ("Running", Some(0))], "remove 1"),
        ("beyond the end", indexed(json!({})), vec![("Running", Some(9))], "remove 1"),
        ("an index fails", per_index(), vec![("Failed", Some(1))], "create 0,2,3"),
        (
            "all indexes ended",
            per_index(),
            vec![("Failed", Some(1)), ("Succeeded", Some(0)), ("Succeeded", Some(2)), ("Succeeded", Some(3))],
            "FailureTarget FailedIndexes",
        ),
        (
            "enough by policy",
            indexed(json!({"successPolicy": {"rules": [{"succeededCount": 1}]}})),
            vec![("Succeeded", Some(2))],
            "SuccessCriteriaMet SuccessPolicy",
        ),
    ] {
        let job = job(spec, json!({}));
        let view = View::new(&job, job.spec.as_ref().unwrap(), pods(&rows), HashSet::new());
        let decision = decide(&view, Some(now()), Failures::default(), now());
        assert_eq!(rendered(&decision.step), expected, "{case}");
    }
}

#[test]
fn removal_keeps_one_pod_an_index() {
    let job = job(json!({"completionMode": "Indexed", "completions": 2, "parallelism": 2}), json!({}));
    let rows = [("Running", Some(0)), ("Pending", Some(0)), ("Running", Some(1))];
    let view = View::new(&job, job.spec.as_ref().unwrap(), pods(&rows), HashSet::new());
    let Step::Remove(removed) = decide(&view, None, Failures::default(), now()).step else { panic!("nothing removed") };
    assert_eq!(indexes_of(&removed), [0].into());
    assert_eq!(removed[0].metadata.name.as_deref(), Some("p1"), "the pending one goes");
}

#[test]
fn failures_delay_the_next_pod_and_deadlines_end_the_job() {
    let job = job(json!({"activeDeadlineSeconds": 100}), json!({}));
    let view = View::new(&job, job.spec.as_ref().unwrap(), Vec::new(), HashSet::new());
    let failures = Failures { count: 2, last: Some(now()) };
    let waiting = decide(&view, Some(now()), failures, now());
    assert_eq!((rendered(&waiting.step).as_str(), waiting.recheck), ("nothing", Some(Duration::from_secs(20))));
    let late = decide(&view, Some("2026-01-01T00:00:00Z".parse().unwrap()), failures, now());
    assert_eq!(rendered(&late.step), "FailureTarget DeadlineExceeded");
}

#[test]
fn finished_pods_are_counted_once() {
    let job = job(json!({"completions": 2, "parallelism": 2}), json!({"startTime": "2026-01-01T00:00:00Z"}));
    let all = pods(&[("Succeeded", None), ("Failed", None), ("Running", None)]);
    let spec = job.spec.as_ref().unwrap();
    let view = View::new(&job, spec, all.clone(), HashSet::new());
    assert_eq!((view.succeeded, view.failed, view.active.len()), (1, 1, 1));
    let first = track(&view, job.status.clone().unwrap(), None, now());
    assert_eq!(first.release.len(), 2);
    let uncounted = first.status.uncounted_terminated_pods.clone().unwrap();
    assert_eq!((uncounted.succeeded, uncounted.failed), (Some(vec!["0".to_owned()]), Some(vec!["1".to_owned()])));
    let mut status = first.status.clone();
    count_released(&mut status, &HashSet::from(["1".to_owned(), "2".to_owned()]));
    assert_eq!((status.succeeded, status.failed), (Some(1), None), "the failed one still has its finalizer");
    // A restart before the finalizers were removed observes the same pods and the written status.
    let again = Job { status: Some(first.status), ..job.clone() };
    let view = View::new(&again, spec, all, HashSet::new());
    assert_eq!((view.succeeded, view.failed), (1, 1));
    let second = track(&view, again.status.clone().unwrap(), None, now());
    assert_eq!(Some(second.status), again.status);
}

#[test]
fn a_job_ends_when_nothing_is_left_to_count() {
    let mut status = JobStatus::default();
    status.uncounted_terminated_pods.get_or_insert_default().succeeded = Some(vec!["a".into()]);
    let complete = new_condition(COMPLETE, "CompletionsReached", "Reached expected number of succeeded pods", now());
    assert!(!end(&mut status, &complete, 0));
    count_released(&mut status, &HashSet::new());
    assert!(!end(&mut status, &complete, 1), "a pod is still ending");
    assert!(end(&mut status, &complete, 0));
    assert_eq!(status.completion_time, complete.last_transition_time);
    assert_eq!(status.succeeded, Some(1));
}

#[test]
fn both_conditions_of_a_finished_job_are_set() {
    let job = job(json!({"backoffLimit": 0}), json!({}));
    let view = View::new(&job, job.spec.as_ref().unwrap(), pods(&[("Failed", None)]), HashSet::new());
    let Step::Finish(target) = decide(&view, None, Failures::default(), now()).step else { panic!("not finished") };
    let tracked = track(&view, JobStatus::default(), Some(target), now());
    assert_eq!(tracked.ending.unwrap().type_, FAILED);
    let types: Vec<String> = tracked.status.conditions.unwrap().into_iter().map(|c| c.type_).collect();
    assert_eq!(types, [FAILURE_TARGET]);
}
