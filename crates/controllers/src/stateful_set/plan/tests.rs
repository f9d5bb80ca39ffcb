use super::*;
use crate::common::history;
use k8s_openapi::api::apps::v1::ControllerRevision;
use serde_json::{Value, json};

fn set(extra: Value) -> StatefulSet {
    let mut spec = json!({"selector": {}, "replicas": 3, "template": {"spec": {"containers": []}},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}});
    for (key, value) in extra.as_object().cloned().unwrap_or_default() {
        spec[key] = value;
    }
    serde_json::from_value(
        json!({"metadata": {"name": "web", "namespace": "ns", "uid": "s", "generation": 1}, "spec": spec}),
    )
    .unwrap()
}

fn revisions(set: &StatefulSet, current: &str, update: &str) -> Revisions {
    let patch = history::patch_of(&set.spec.as_ref().unwrap().template).unwrap();
    let revision = |name: &str| {
        let value = json!({"metadata": {"name": name}, "revision": 1, "data": patch});
        Arc::new(serde_json::from_value::<ControllerRevision>(value).unwrap())
    };
    Revisions { current: revision(current), update: revision(update), collisions: 0, all: Vec::new() }
}

/// Ordinal, revision, and what it is: "ready", "pending", "failed" or "leaving".
fn pods(rows: &[(i32, &str, &str)]) -> Vec<Arc<Pod>> {
    let pod = |(ordinal, revision, state): &(i32, &str, &str)| {
        let name = format!("web-{ordinal}");
        let labels = json!({"statefulset.kubernetes.io/pod-name": name, "controller-revision-hash": revision});
        let mut value = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": format!("{name}-{revision}"), "labels": labels},
            "status": {"phase": if *state == "pending" { "Pending" } else if *state == "failed" { "Failed" } else { "Running" }}
        });
        if matches!(*state, "ready" | "leaving") {
            value["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
        }
        if *state == "leaving" {
            value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        Arc::new(serde_json::from_value(value).unwrap())
    };
    rows.iter().map(pod).collect()
}

fn rendered(plan: &Plan) -> Vec<String> {
    let show = |action: &Action| match action {
        Action::Create(pod) => format!("+{}@{}", name(&**pod), revision_of(pod)),
        Action::Delete(pod) => format!("-{}", name(&**pod)),
        Action::CreateClaims(pod) => format!("claims {}", name(&**pod)),
        Action::OwnClaims(pod) => format!("owners {}", name(&**pod)),
        Action::Correct(pod) => format!("correct {}", name(&**pod)),
    };
    plan.actions.iter().map(show).collect()
}

#[test]
fn what_happens_next() {
    let parallel = || json!({"podManagementPolicy": "Parallel"});
    let partition = || json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}});
    let two =
        || json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 2}}});
    let all_old = || vec![(0, "old", "ready"), (1, "old", "ready"), (2, "old", "ready")];
    for (case, extra, rows, expected) in [
        ("the first", json!({}), vec![], vec!["+web-0@new"]),
        ("wait for the first", json!({}), vec![(0, "new", "pending")], vec![]),
        ("then the second", json!({}), vec![(0, "new", "ready")], vec!["+web-1@new"]),
        ("all at once", parallel(), vec![], vec!["+web-0@new", "+web-1@new", "+web-2@new"]),
        ("a failed one", json!({}), vec![(0, "new", "failed")], vec!["-web-0"]),
        (
            "scale down from the last",
            json!({"replicas": 1}),
            vec![(0, "new", "ready"), (1, "new", "ready"), (2, "new", "ready")],
            vec!["-web-2"],
        ),
        (
            "one at a time",
            json!({"replicas": 1}),
            vec![(0, "new", "ready"), (1, "new", "ready"), (2, "new", "leaving")],
            vec![],
        ),
        (
            "all down at once",
            json!({"replicas": 0, "podManagementPolicy": "Parallel"}),
            vec![(0, "new", "ready"), (1, "new", "ready")],
            vec!["-web-1", "-web-0"],
        ),
        ("roll from the last", json!({}), all_old(), vec!["-web-2"]),
        (
            "wait while one is away",
            json!({}),
            vec![(0, "old", "ready"), (1, "old", "ready"), (2, "new", "pending")],
            vec![],
        ),
        (
            "down to the partition",
            partition(),
            vec![(0, "old", "ready"), (1, "old", "ready"), (2, "new", "ready")],
            vec![],
        ),
        ("two at a time", two(), all_old(), vec!["-web-2", "-web-1"]),
        (
            "a new template replaces broken pods",
            parallel(),
            vec![(0, "old", "pending"), (1, "old", "pending"), (2, "old", "pending")],
            vec!["-web-2"],
        ),
        (
            "but only one after the other",
            parallel(),
            vec![(0, "old", "pending"), (1, "old", "ready"), (2, "new", "pending")],
            vec![],
        ),
        (
            "a failed pod is deleted once",
            parallel(),
            vec![(0, "old", "ready"), (1, "old", "ready"), (2, "old", "failed")],
            vec!["-web-2"],
        ),
        ("on delete", json!({"updateStrategy": {"type": "OnDelete"}}), all_old(), vec![]),
        (
            "below the partition the old comes back",
            partition(),
            vec![(1, "old", "ready"), (2, "new", "ready")],
            vec!["+web-0@old"],
        ),
        (
            "a start ordinal",
            json!({"replicas": 1, "ordinals": {"start": 4}}),
            vec![(0, "new", "ready")],
            vec!["+web-4@new"],
        ),
    ] {
        let set = set(extra);
        let (pods, revisions) = (pods(&rows), revisions(&set, "old", "new"));
        let observed = Observed { set: &set, spec: set.spec.as_ref().unwrap(), pods: &pods, revisions: &revisions };
        assert_eq!(rendered(&plan(&observed, Timestamp::UNIX_EPOCH)), expected, "{case}");
    }
}

#[test]
fn any_number_may_be_asked_for() {
    let most = i32::MAX;
    for (extra, first, count) in [
        (json!({"replicas": most}), "+web-0@new", 1),
        (json!({"replicas": most, "podManagementPolicy": "Parallel"}), "+web-0@new", BURST),
        (
            json!({"replicas": most, "ordinals": {"start": most - 1}, "podManagementPolicy": "Parallel"}),
            "+web-2147483646@new",
            2,
        ),
    ] {
        let set = set(extra);
        let revisions = revisions(&set, "old", "new");
        let observed = Observed { set: &set, spec: set.spec.as_ref().unwrap(), pods: &[], revisions: &revisions };
        let actions = rendered(&plan(&observed, Timestamp::UNIX_EPOCH));
        assert_eq!((actions[0].as_str(), actions.len()), (first, count));
    }
}

#[test]
fn status_counts_and_completes() {
    let set = set(json!({}));
    let status_of = |rows: &[(i32, &str, &str)]| {
        let (pods, revisions) = (pods(rows), revisions(&set, "old", "new"));
        let observed = Observed { set: &set, spec: set.spec.as_ref().unwrap(), pods: &pods, revisions: &revisions };
        plan(&observed, Timestamp::UNIX_EPOCH).status
    };
    let rolling = status_of(&[(0, "old", "ready"), (1, "old", "ready"), (2, "new", "pending")]);
    assert_eq!((rolling.replicas, rolling.ready_replicas, rolling.current_replicas), (3, Some(2), Some(2)));
    assert_eq!((rolling.updated_replicas, rolling.current_revision.as_deref()), (Some(1), Some("old")));
    let done = status_of(&[(0, "new", "ready"), (1, "new", "ready"), (2, "new", "ready")]);
    assert_eq!((done.current_revision.as_deref(), done.current_replicas), (Some("new"), Some(3)));
}
