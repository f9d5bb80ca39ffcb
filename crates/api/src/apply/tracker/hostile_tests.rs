//! Objects whose author makes the tracking of ownership expensive: each takes time in proportion to its length.

use std::time::{Duration, Instant};

use super::*;
use crate::schema::builtin;

/// Far more than is needed without optimization, and far less than the square of these lengths takes.
const DEADLINE: Duration = Duration::from_secs(20);

fn tracker(kind: &'static str, versions: &'static dyn VersionConverter) -> Tracker<'static> {
    Tracker {
        node: builtin().kind("", "v1", kind).expect("kind"),
        api_version: "v1",
        kind,
        subresource: "",
        ignored: None,
        versions,
        now: "2026-01-01T00:00:00Z",
    }
}

/// Takes the change of an object by an update; returns the managers afterwards.
fn updated(tracker: &Tracker<'_>, live: &Value, mut new: Value) -> Vec<Value> {
    let start = Instant::now();
    tracker.update(Some(live), &mut new, "m");
    let elapsed = start.elapsed();
    assert!(elapsed < DEADLINE, "{elapsed:?}");
    entries_of(&new).unwrap_or_default().to_vec()
}

fn entry(manager: usize, operation: &str, api_version: &str, fields: Value) -> Value {
    json!({"manager": manager.to_string(), "operation": operation, "apiVersion": api_version, "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": fields}})
}

/// As the versions of a custom resource: any version has the schema.
#[derive(Debug)]
struct AnyVersion;

impl VersionConverter for AnyVersion {
    fn node(&self, _: &str) -> Option<NodeRef<'_>> {
        builtin().kind("", "v1", "ConfigMap")
    }

    fn convert(&self, object: &Value, _: &str, _: &str) -> Option<Value> {
        Some(object.clone())
    }

    fn ignored(&self, _: &str) -> Option<&Set> {
        None
    }

    fn schema_changes(&self) -> bool {
        true
    }
}

#[test]
fn thousands_of_managers_cost_no_more_than_their_fields() {
    const FIELDS: usize = 20_000;
    const MANAGERS: usize = 3_000;
    let data: Map<String, Value> = (0..FIELDS).map(|at| (format!("k{at}"), json!(""))).collect();
    let fields: Map<String, Value> = (0..FIELDS).map(|at| (format!("f:k{at}"), json!({}))).collect();
    let live = json!({"metadata": {"name": "m", "uid": "u"}, "data": data});
    let with = |managers: Vec<Value>, data: Value| json!({"metadata": {"name": "m", "uid": "u", "managedFields": managers}, "data": data});
    let own = |at: usize| json!({format!("f:k{at}"): {}});
    // All fields are removed, and each of many managers owned one.
    let appliers: Vec<Value> = (0..MANAGERS).map(|at| entry(at, "Apply", "v1", own(at))).collect();
    let map = tracker("ConfigMap", &SingleVersion);
    assert_eq!(updated(&map, &live, with(appliers, json!(null))), [json!(null); 0]);
    // Many are put together, the first of which owns all.
    let first = [entry(0, "Update", "v1", json!(fields))];
    let updaters = (1..MANAGERS).map(|at| entry(at, "Update", "v1", own(at)));
    let left = updated(&map, &live, with(first.into_iter().chain(updaters).collect(), live["data"].clone()));
    assert_eq!(left.len(), 10);
    let ancient = left.iter().find(|entry| entry["manager"] == "ancient-changes").expect("an entry");
    assert_eq!(ancient["fieldsV1"]["f:data"].as_object().map(Map::len), Some(FIELDS));
    // Each wrote in a version of its own.
    let versions = (0..MANAGERS).map(|at| entry(at, "Apply", &format!("v{at}"), own(at)));
    let changed = json!({"k0": "changed"});
    let left = updated(&tracker("ConfigMap", &AnyVersion), &live, with(versions.collect(), changed));
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn long_lists_are_compared_in_proportion() {
    let names: Vec<String> = (0..100_000).rev().map(|at| format!("{at:06}")).collect();
    let live = json!({"metadata": {"name": "m", "uid": "u", "managedFields": [entry(0, "Apply", "v1", json!({}))]}});
    let mut new = live.clone();
    new["metadata"]["finalizers"] = json!(names);
    assert_eq!(updated(&tracker("ConfigMap", &SingleVersion), &live, new).len(), 2);

    // Each name occurs twice, before and after.
    let pod = |value: &str| {
        let one = |at: usize| json!({"name": format!("{at}"), "value": value});
        let variables: Vec<Value> = (0..8_000).chain(0..8_000).map(one).collect();
        json!({"metadata": {"name": "p", "uid": "u", "managedFields": [entry(0, "Apply", "v1", json!({}))]},
            "spec": {"containers": [{"name": "c", "env": variables}]}})
    };
    let left = updated(&tracker("Pod", &SingleVersion), &pod("a"), pod("b"));
    let containers = &left.iter().find(|entry| entry["manager"] == "m").expect("an entry")["fieldsV1"]["f:spec"];
    let variables = &containers["f:containers"][r#"k:{"name":"c"}"#]["f:env"];
    assert_eq!(variables.as_object().map(Map::len), Some(8_000));
}

/// One element can be written in many ways.
#[test]
fn equal_elements_are_joined_in_proportion() {
    let fields: Map<String, Value> = (0..20_000)
        .map(|at| {
            (
                format!("v:1{}", format!("{at:015b}").replace('0', " ").replace('1', "\t")),
                json!({format!("f:{at}"): {}}),
            )
        })
        .collect();
    let start = Instant::now();
    let set = super::super::decode_fields(&Value::Object(fields)).expect("fields");
    assert!(start.elapsed() < DEADLINE);
    assert_eq!((set.entries().len(), set.entries()[0].below.entries().len()), (1, 20_000));
}
