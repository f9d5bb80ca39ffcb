//! Tests of field ownership tracking and server-side apply.

use super::*;
use crate::apply::conflict_message;
use crate::schema::builtin;

fn tracker(now: &str) -> Tracker<'_> {
    Tracker {
        node: builtin().kind("apps", "v1", "Deployment").expect("deployment"),
        api_version: "apps/v1",
        kind: "Deployment",
        subresource: "",
        ignored: None,
        versions: &SingleVersion,
        now,
    }
}

fn configuration(metadata: Value, spec: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
}

/// A configuration that says nothing of the spec; an empty one would be owned.
fn bare(metadata: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata})
}

fn owners(object: &Value) -> Value {
    let entries = entries_of(object).unwrap_or_default().iter();
    entries.map(|entry| json!([entry["manager"], entry["operation"], entry["fieldsV1"]])).collect()
}

#[test]
fn appliers_own_what_they_set_and_lose_it_when_they_stop() {
    let containers = json!([{"name": "c", "image": "x", "ports": [{"containerPort": 80}]}]);
    let first =
        configuration(json!({"name": "d"}), json!({"replicas": 2, "template": {"spec": {"containers": containers}}}));
    let mut object = tracker("2026-01-01T00:00:00Z").apply(None, &first, "one", false).expect("applied");
    let one = json!({"f:spec": {"f:replicas": {}, "f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {
        ".": {}, "f:image": {}, "f:name": {}, "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {
            ".": {}, "f:containerPort": {}}}}}}}}});
    assert_eq!(owners(&object), json!([["one", "Apply", one]]));
    object["metadata"]["uid"] = json!("u");

    let later = tracker("2026-01-02T00:00:00Z");
    let second = configuration(json!({"name": "d", "labels": {"k": "v"}}), json!({"replicas": 7}));
    let refused = later.apply(Some(&object), &second, "two", false).expect_err("conflict");
    assert_eq!(refused.to_string(), "Apply failed with 1 conflict: conflict with \"one\": .spec.replicas");
    let object = later.apply(Some(&object), &second, "two", true).expect("applied");
    assert_eq!(object["spec"]["replicas"], 7);
    assert_eq!(
        owners(&object)[1],
        json!(["two", "Apply", {"f:metadata": {"f:labels": {"f:k": {}}}, "f:spec": {"f:replicas": {}}}])
    );
    assert_eq!(owners(&object)[0][2]["f:spec"].get("f:replicas"), None);

    let object = later.apply(Some(&object), &bare(json!({"name": "d"})), "two", false).expect("applied");
    assert_eq!(object["spec"].get("replicas"), None);
    assert_eq!(owners(&object).as_array().map(Vec::len), Some(1));
    assert_eq!(object["spec"]["template"]["spec"]["containers"], containers);
}

#[test]
fn shared_fields_stay_until_the_last_owner_leaves() {
    let labels = |labels: Value| bare(json!({"name": "d", "labels": labels}));
    let tracker = tracker("2026-01-01T00:00:00Z");
    let object = tracker.apply(None, &labels(json!({"a": "1", "b": "2"})), "one", false).expect("applied");
    let object = tracker.apply(Some(&object), &labels(json!({"a": "1"})), "two", false).expect("applied");
    let object = tracker.apply(Some(&object), &bare(json!({"name": "d"})), "one", false).expect("applied");
    assert_eq!(object["metadata"]["labels"], json!({"a": "1"}));
    assert_eq!(owners(&object).as_array().map(Vec::len), Some(1));
}

#[test]
fn updaters_own_what_they_change() {
    let early = tracker("2026-01-01T00:00:00Z");
    let mut live = configuration(json!({"name": "d", "uid": "u", "labels": {"a": "1"}}), json!({"replicas": 1}));
    early.update(None, &mut live, "creator");
    let created = json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}, "f:spec": {"f:replicas": {}}});
    assert_eq!(owners(&live), json!([["creator", "Update", created]]));

    let mut new = live.clone();
    new["spec"]["replicas"] = json!(3);
    tracker("2026-01-02T00:00:00Z").update(Some(&live), &mut new, "other");
    assert_eq!(
        owners(&new),
        json!([["creator", "Update", {"f:metadata": {"f:labels": {".": {}, "f:a": {}}}}],
            ["other", "Update", {"f:spec": {"f:replicas": {}}}]])
    );

    let mut same = new.clone();
    tracker("2026-01-03T00:00:00Z").update(Some(&new), &mut same, "third");
    assert_eq!(same, new);

    let mut reset = new.clone();
    reset["metadata"]["managedFields"] = json!([{}]);
    early.update(Some(&new), &mut reset, "third");
    assert_eq!(owners(&reset), json!([]));
}

#[test]
fn makers_own_what_a_comparison_with_nothing_finds() {
    let tracker = tracker("2026-01-01T00:00:00Z");
    let ignored = Set::of_fields(&[&["status"], &["spec", "paused"]]);
    let tracker = Tracker { ignored: Some(&ignored), ..tracker };
    for new in [
        json!({"metadata": {"name": "d"}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": {"a": "b"}, "annotations": {},
            "finalizers": ["x", "y"], "ownerReferences": [{"uid": "u", "name": "n"}]}, "spec": {"replicas": 0, "paused": true,
            "selector": {"matchLabels": {"a": "b"}}, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "env": [{"name": "E"}, {"name": "E"}],
                "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "1"}}, "command": ["x"]}], "nodeSelector": {"x": "y"},
                "volumes": [{"name": "v", "emptyDir": {}}], "securityContext": {}}}}, "status": {"replicas": 1}}),
        json!({"metadata": {}, "spec": {"selector": null, "strategy": {}, "template": {"metadata": {}, "spec": {"containers": null}}},
            "status": {}}),
    ] {
        let mut quick = new.clone();
        tracker.update(None, &mut quick, "m");
        let managers = tracker.tracked(&tracker.nothing(), &new, Managers::default(), "m").expect("comparable");
        let mut slow = new.clone();
        set_entries(&mut slow, managers.encode());
        assert_eq!(quick, slow);
    }
}

#[test]
fn a_first_apply_puts_everything_before_down_to_one_owner() {
    let live = configuration(json!({"name": "d", "uid": "u"}), json!({"replicas": 1, "paused": true}));
    let given = configuration(json!({"name": "d"}), json!({"replicas": 2}));
    let conflicts = match tracker("2026-01-01T00:00:00Z").apply(Some(&live), &given, "me", false) {
        Err(ApplyError::Conflicts(conflicts)) => conflicts,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        conflict_message(&conflicts),
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using apps/v1: .spec.replicas"
    );
}

#[test]
fn ignored_fields_have_no_owner() {
    let status = Set::of_fields(&[&["status"]]);
    let tracker = Tracker { ignored: Some(&status), ..tracker("2026-01-01T00:00:00Z") };
    let mut new = json!({"metadata": {"name": "d"}, "spec": {"replicas": 1}, "status": {"replicas": 5}});
    tracker.update(None, &mut new, "m");
    assert_eq!(owners(&new), json!([["m", "Update", {"f:spec": {"f:replicas": {}}}]]));
}

#[test]
fn kubectl_takes_over_from_its_client_side_apply() {
    let applied = configuration(json!({"name": "d"}), json!({"replicas": 1}));
    let annotation = json!({"kubectl.kubernetes.io/last-applied-configuration": applied.to_string()});
    let mut live = configuration(json!({"name": "d", "uid": "u", "annotations": annotation}), json!({"replicas": 1}));
    let tracker = tracker("2026-01-01T00:00:00Z");
    tracker.update(None, &mut live, "kubectl-client-side-apply");
    let given = configuration(json!({"name": "d"}), json!({"replicas": 2}));
    assert!(matches!(tracker.apply(Some(&live), &given, "other", false), Err(ApplyError::Conflicts(_))));
    let object = tracker.apply(Some(&live), &given, "kubectl", false).expect("taken over");
    assert_eq!(object["spec"]["replicas"], 2);
    assert_eq!(
        object["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"],
        format!("{given}\n")
    );
}

#[test]
fn configurations_must_be_of_the_kind() {
    let tracker = tracker("2026-01-01T00:00:00Z");
    for (given, expected) in [
        (json!({"apiVersion": "v1", "kind": "Pod"}), "invalid object type: /v1, Kind=Pod"),
        (configuration(json!({"managedFields": []}), json!({})), "metadata.managedFields must be nil"),
        (
            configuration(json!({"name": "d"}), json!({"nonsense": 1})),
            "failed to create typed patch object (/d; apps/v1, Kind=Deployment): .spec.nonsense: field not declared \
             in schema",
        ),
    ] {
        assert_eq!(tracker.apply(None, &given, "m", false).expect_err("refused").to_string(), expected);
    }
}
