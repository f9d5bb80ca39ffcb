//! Every row of the table of gated fields, and the cases in which a field stays.

use std::collections::BTreeMap;

use knarr_api::schema::builtin;
use serde_json::{Map, Value, json};

use super::*;

fn with(gates: &[(&str, bool)]) -> Features {
    let requested: BTreeMap<_, _> = gates.iter().map(|(gate, on)| ((*gate).to_owned(), *on)).collect();
    Features::new(Gates::from_map(&requested).unwrap())
}

/// An object with every field that a path names.
fn object_with(paths: &[String]) -> Value {
    let mut object = json!({});
    for path in paths {
        let (path, value) = match path.split_once('~') {
            Some((path, field)) => (path, json!({ field: "x" })),
            None => (path.split('!').next().unwrap(), json!("x")),
        };
        let path = path.replace('?', "").replace("$containers", "containers").replace("$statuses", "containerStatuses");
        add(&mut object, &path.split('.').collect::<Vec<_>>(), &value);
    }
    object
}

fn add(object: &mut Value, steps: &[&str], value: &Value) {
    let Some((step, rest)) = steps.split_first() else {
        *object = value.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    for name in step.trim_end_matches("[]").split('|') {
        let field = &mut object[name];
        if step.ends_with("[]") {
            if field.is_null() {
                *field = json!([{}]);
            }
            add(&mut field[0], rest, value);
        } else {
            add(field, rest, value);
        }
    }
}

/// The kinds of a row, and its paths in them.
fn places(row: &GatedFields) -> Vec<(&'static str, &'static str, Vec<String>)> {
    let contained: Vec<_> = CONTAINED.iter().filter(|(structure, ..)| *structure == row.kind).collect();
    let of = |kind: &'static str, prefix: &str| {
        let (kind, group) = kind.split_once('.').unwrap_or((kind, ""));
        (kind, group, row.paths.iter().map(|path| format!("{prefix}{path}")).collect())
    };
    match contained.is_empty() {
        true => vec![of(row.kind, "")],
        false => contained.iter().map(|(_, kind, parents)| of(kind, &format!("{parents}."))).collect(),
    }
}

#[test]
fn fields_of_gates_that_are_off_are_dropped_unless_the_stored_object_has_them() {
    for row in gated_fields() {
        let (off, on) = (with(&[(row.gate, false)]), with(&[("AllAlpha", true), ("AllBeta", true), (row.gate, true)]));
        for (kind, group, paths) in places(row) {
            let whole = object_with(&paths);
            let dropped = |features: &Features, old: Option<&Value>| {
                let mut object = whole.clone();
                features.drop_disabled(group, kind, &mut object, old);
                object
            };
            assert_eq!(dropped(&on, None), whole, "{row:?}");
            assert_ne!(dropped(&off, None), whole, "{row:?}");
            assert_ne!(dropped(&off, Some(&json!({}))), whole, "{row:?}");
            if row.unless.is_empty() {
                assert_eq!(dropped(&off, Some(&whole)), whole, "{row:?}");
            }
        }
    }
}

/// A wrong name would never be dropped.
#[test]
fn every_field_exists() {
    for row in gated_fields() {
        for (kind, group, paths) in places(row) {
            let unless = row.unless.iter().map(|path| (*path).to_owned()).filter(|_| !row.kind.ends_with("Spec"));
            for path in paths.into_iter().chain(unless) {
                let versions = ["v1", "v2"];
                let found = versions
                    .iter()
                    .any(|version| builtin().kind(group, version, kind).is_some_and(|root| exists(root, &path)));
                assert!(found, "{kind}.{group} has no {path}");
            }
        }
    }
}

fn exists(root: knarr_api::schema::NodeRef<'_>, path: &str) -> bool {
    let path = path.split(['!', '~']).next().unwrap_or_default().replace('?', "");
    let path = path.replace("$containers", "containers").replace("$statuses", "containerStatuses");
    let mut nodes = vec![root];
    for step in path.split('.') {
        let mut next = Vec::new();
        for node in nodes {
            for name in step.trim_end_matches("[]").split('|') {
                let Some((_, child)) = node.field(name) else { return false };
                let Some(child) = (if step.ends_with("[]") { child.element() } else { Some(child) }) else {
                    return false;
                };
                next.push(child);
            }
        }
        nodes = next;
    }
    true
}

#[test]
fn restart_policies_of_sidecars_and_empty_lifecycles() {
    let pod = json!({"spec": {
        "initContainers": [{"restartPolicy": "Always"}, {"restartPolicy": "Never", "restartPolicyRules": [1]}],
        "containers": [{"restartPolicy": "Always", "lifecycle": {"stopSignal": "SIGUSR1"}}],
        "resources": {"limits": {"cpu": "1"}},
    }});
    let rules_off = with(&[("ContainerRestartRules", false), ("PodLevelResources", false)]);
    let dropped = |features: &Features, old: Option<&Value>| {
        let mut object = pod.clone();
        features.drop_disabled("", "Pod", &mut object, old);
        object["spec"].take()
    };
    let signals_left = json!({
        "initContainers": [{"restartPolicy": "Always"}, {}],
        "containers": [{}],
    });
    assert_eq!(dropped(&rules_off, None), signals_left);
    // A container with a policy keeps the rules, resources without amounts keep nothing.
    let old = json!({"spec": {"containers": [{"restartPolicy": "Never"}], "resources": {"claims": []}}});
    let kept = json!({
        "initContainers": [{"restartPolicy": "Always"}, {"restartPolicy": "Never", "restartPolicyRules": [1]}],
        "containers": [{"restartPolicy": "Always"}],
    });
    assert_eq!(dropped(&rules_off, Some(&old)), kept);
    // A sidecar alone is not a use of restart rules.
    let sidecar = json!({"spec": {"initContainers": [{"restartPolicy": "Always"}]}});
    assert_eq!(dropped(&rules_off, Some(&sidecar)), signals_left);
}

#[test]
fn other_kinds_stay_as_they_are() {
    let whole = json!({"spec": {"strategy": "a", "schedulingGroup": {}}});
    for (group, kind) in [("", "ConfigMap"), ("example.com", "Lease"), ("", "Lease"), ("batch", "Pod")] {
        let mut object = whole.clone();
        Features::default().drop_disabled(group, kind, &mut object, None);
        assert_eq!(object, whole, "{kind}.{group}");
    }
    let mut lease = whole;
    Features::default().drop_disabled("coordination.k8s.io", "Lease", &mut lease, None);
    assert_eq!(lease, json!({"spec": {"schedulingGroup": {}}}));
}
