use super::*;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

fn deployment(replicas: i32, image: &str, strategy: Value, status: Value) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "d", "generation": 1},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": "a"}}, "template": template(image),
            "progressDeadlineSeconds": 600, "revisionHistoryLimit": 10, "strategy": strategy
        },
        "status": status
    }))
    .unwrap()
}

fn rolling(surge: &str, unavailable: &str) -> Value {
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}})
}

/// Image, size, actual and available pods, and the sizes in the annotations.
fn set(image: &str, revision: u32, size: i32, actual: i32, available: i32, desired: i32, max: i32) -> Arc<ReplicaSet> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {
                "name": format!("web-{image}"), "namespace": "ns", "uid": image, "generation": 1,
                "creationTimestamp": format!("2026-01-01T00:0{revision}:00Z"),
                "annotations": {
                    "deployment.kubernetes.io/revision": revision.to_string(),
                    "deployment.kubernetes.io/desired-replicas": desired.to_string(),
                    "deployment.kubernetes.io/max-replicas": max.to_string()
                }
            },
            "spec": {"replicas": size, "selector": {}, "template": template(image)},
            "status": {
                "replicas": actual, "readyReplicas": available, "availableReplicas": available,
                "terminatingReplicas": 0, "observedGeneration": 1
            }
        }))
        .unwrap(),
    )
}

fn planned(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> Plan {
    plan(Observed { deployment, sets, running: &HashSet::new() }, now())
}

fn sizes(plan: &Plan) -> Vec<(String, i32, i32)> {
    let mut sizes: Vec<_> = plan
        .updates
        .iter()
        .map(|update| (super::super::name(&update.set).to_owned(), update.from, update.to))
        .collect();
    sizes.sort();
    sizes
}

fn reasons(plan: &Plan) -> Vec<(String, String, String)> {
    let conditions = plan.status.conditions.clone().unwrap_or_default();
    conditions.into_iter().map(|c| (c.type_, c.status, c.reason.unwrap_or_default())).collect()
}

fn texts(rows: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    rows.iter().map(|(a, b, c)| (a.to_string(), b.to_string(), c.to_string())).collect()
}

#[test]
fn the_first_revision_is_created_whole() {
    let web = deployment(3, "v1", rolling("25%", "25%"), json!({}));
    let plan = planned(&web, &[]);
    let created = plan.create.as_ref().unwrap();
    assert_eq!(replicas_of(created), 3);
    let annotations = created.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["deployment.kubernetes.io/desired-replicas"], "3");
    assert_eq!(annotations["deployment.kubernetes.io/max-replicas"], "4");
    assert_eq!(annotations["deployment.kubernetes.io/revision"], "1");
    let hash = &created.metadata.labels.as_ref().unwrap()["pod-template-hash"];
    assert_eq!(created.metadata.name.as_deref(), Some(format!("web-{hash}").as_str()));
    assert_eq!(plan.revision.as_deref(), Some("1"));
    let expected =
        [("Progressing", "True", "NewReplicaSetCreated"), ("Available", "False", "MinimumReplicasUnavailable")];
    assert_eq!(reasons(&plan), texts(&expected));
    assert_eq!(plan.status.unavailable_replicas, Some(3));
}

#[test]
fn rolling_moves_within_surge_and_unavailability() {
    for (case, surge, unavailable, old, new, expected) in [
        ("grow by the surge", "25%", "25%", (10, 10, 10), (0, 0, 0), vec![("web-v2", 0, 3)]),
        ("shrink what is spare", "25%", "25%", (10, 10, 10), (3, 3, 0), vec![("web-v1", 10, 8)]),
        ("grow into the room", "25%", "25%", (8, 8, 8), (3, 3, 0), vec![("web-v2", 3, 5)]),
        ("nothing while nothing is ready", "25%", "25%", (8, 8, 8), (5, 5, 0), vec![]),
        ("shrink as new ones come up", "25%", "25%", (8, 8, 8), (5, 5, 4), vec![("web-v1", 8, 4)]),
        ("unhealthy old pods go first", "25%", "25%", (8, 8, 3), (5, 5, 0), vec![]),
        ("no surge means first down", "0", "1", (10, 10, 10), (0, 0, 0), vec![("web-v1", 10, 9)]),
        ("a status of before it was made smaller is not believed", "25%", "25%", (6, 12, 12), (7, 7, 4), vec![]),
        ("last old pods go", "25%", "25%", (2, 2, 2), (10, 10, 10), vec![("web-v1", 2, 0)]),
    ] {
        let strategy = match (surge, unavailable) {
            ("0", "1") => json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
            _ => rolling(surge, unavailable),
        };
        let max = if surge == "0" { 10 } else { 13 };
        let web = deployment(10, "v2", strategy, json!({}));
        let sets = [set("v1", 1, old.0, old.1, old.2, 10, max), set("v2", 2, new.0, new.1, new.2, 10, max)];
        let expected: Vec<_> = expected.into_iter().map(|(name, from, to)| (name.to_owned(), from, to)).collect();
        assert_eq!(sizes(&planned(&web, &sets)), expected, "{case}");
    }
}

#[test]
fn unhealthy_old_pods_are_dropped_without_waiting() {
    let web = deployment(10, "v2", rolling("25%", "25%"), json!({}));
    let sets = [set("v1", 1, 8, 8, 5, 10, 13), set("v2", 2, 5, 5, 5, 10, 13)];
    // Of 13, 8 must stay available: 5 may go, 3 of them unhealthy, 2 surplus.
    assert_eq!(sizes(&planned(&web, &sets)), [("web-v1".to_owned(), 8, 3)]);
}

#[test]
fn scaling_in_a_rollout_is_proportional() {
    let web = deployment(20, "v2", rolling("50%", "0%"), json!({"replicas": 15}));
    let sets = [set("v1", 1, 10, 10, 10, 10, 15), set("v2", 2, 5, 5, 5, 10, 15)];
    assert_eq!(sizes(&planned(&web, &sets)), [("web-v1".to_owned(), 10, 20), ("web-v2".to_owned(), 5, 10)]);
    let web = deployment(0, "v2", rolling("50%", "0%"), json!({"replicas": 15}));
    assert_eq!(sizes(&planned(&web, &sets)), [("web-v1".to_owned(), 10, 0), ("web-v2".to_owned(), 5, 0)]);
}

#[test]
fn scaling_down_touches_the_only_revision() {
    let web = deployment(1, "v1", rolling("25%", "25%"), json!({}));
    let plan = planned(&web, &[set("v1", 1, 3, 3, 3, 3, 4)]);
    assert_eq!(sizes(&plan), [("web-v1".to_owned(), 3, 1)]);
    let annotations = plan.updates[0].set.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["deployment.kubernetes.io/max-replicas"], "2");
}

#[test]
fn recreating_waits_for_old_pods() {
    let web = deployment(2, "v2", json!({"type": "Recreate"}), json!({}));
    let old = set("v1", 1, 2, 2, 2, 2, 2);
    assert_eq!(sizes(&planned(&web, std::slice::from_ref(&old))), [("web-v1".to_owned(), 2, 0)]);
    let drained = set("v1", 1, 0, 0, 0, 2, 2);
    let running = HashSet::from(["v1".to_owned()]);
    let waiting = plan(Observed { deployment: &web, sets: std::slice::from_ref(&drained), running: &running }, now());
    assert!(waiting.create.is_none(), "a pod is still ending");
    let ready = planned(&web, &[drained]);
    assert_eq!(replicas_of(ready.create.as_ref().unwrap()), 2);
    assert_eq!(ready.revision.as_deref(), Some("2"));
}

#[test]
fn progress_is_reported_and_times_out() {
    let since = |at: &str, reason: &str| {
        json!({"observedGeneration": 1, "replicas": 3, "updatedReplicas": 3, "unavailableReplicas": 3, "terminatingReplicas": 0,
            "conditions": [{"type": "Progressing", "status": "True", "reason": reason, "lastUpdateTime": at,
                "lastTransitionTime": at}]})
    };
    let status_of = |status: Value, available: i32| {
        let web = deployment(3, "v1", rolling("25%", "25%"), status);
        planned(&web, &[set("v1", 1, 3, 3, available, 3, 4)])
    };
    let recent = status_of(since("2026-01-01T00:09:00Z", "ReplicaSetUpdated"), 0);
    assert_eq!(reasons(&recent)[0].2, "ReplicaSetUpdated");
    assert_eq!(recent.recheck, Some(Duration::from_secs(541)));
    let late = status_of(since("2025-12-31T23:00:00Z", "ReplicaSetUpdated"), 0);
    assert!(reasons(&late).contains(&("Progressing".into(), "False".into(), "ProgressDeadlineExceeded".into())));
    let done = status_of(since("2025-12-31T23:00:00Z", "ReplicaSetUpdated"), 3);
    let expected =
        [("Available", "True", "MinimumReplicasAvailable"), ("Progressing", "True", "NewReplicaSetAvailable")];
    assert_eq!(reasons(&done), texts(&expected));
    assert_eq!(done.recheck, None);
}

#[test]
fn a_paused_deployment_scales_but_does_not_roll() {
    let mut web = deployment(5, "v2", rolling("25%", "25%"), json!({}));
    web.spec.as_mut().unwrap().paused = Some(true);
    let plan = planned(&web, &[set("v1", 1, 3, 3, 3, 3, 4)]);
    assert!(plan.create.is_none());
    assert_eq!(sizes(&plan), [("web-v1".to_owned(), 3, 5)]);
    assert!(reasons(&plan).contains(&("Progressing".into(), "Unknown".into(), "DeploymentPaused".into())));
}

#[test]
fn history_beyond_its_limit_is_removed_once_complete() {
    let done = json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1});
    let mut web = deployment(1, "v4", rolling("25%", "25%"), done);
    web.spec.as_mut().unwrap().revision_history_limit = Some(1);
    let sets = [
        set("v1", 1, 0, 0, 0, 1, 2),
        set("v2", 2, 0, 0, 0, 1, 2),
        set("v3", 3, 0, 0, 0, 1, 2),
        set("v4", 4, 1, 1, 1, 1, 2),
    ];
    let plan = planned(&web, &sets);
    let deleted: Vec<_> = plan.deletions.iter().map(|set| super::super::name(&**set)).collect();
    assert_eq!(deleted, ["web-v1", "web-v2"]);
}

#[test]
fn a_restored_template_gets_a_new_revision() {
    let web = deployment(1, "v1", rolling("25%", "25%"), json!({}));
    let plan = planned(&web, &[set("v1", 1, 0, 0, 0, 1, 2), set("v2", 2, 1, 1, 1, 1, 2)]);
    assert_eq!(plan.revision.as_deref(), Some("3"));
    let back = plan.updates.iter().find(|update| super::super::name(&update.set) == "web-v1").unwrap();
    assert_eq!(back.set.metadata.annotations.as_ref().unwrap()["deployment.kubernetes.io/revision-history"], "1");
    assert_eq!((back.from, back.to), (0, 1));
}

#[test]
fn rolling_back_restores_a_template() {
    let mut web = deployment(1, "v2", rolling("25%", "25%"), json!({}));
    let to = |revision: &str| Some([("deprecated.deployment.rollback.to".to_owned(), revision.to_owned())].into());
    let sets = [set("v1", 1, 0, 0, 0, 1, 2), set("v2", 2, 1, 1, 1, 1, 2)];
    for (revision, image, done, warning) in [
        ("0", "v1", Some("Rolled back deployment \"web\" to revision 1"), None),
        ("2", "v2", None, Some("DeploymentRollbackTemplateUnchanged")),
        ("7", "v2", None, Some("DeploymentRollbackRevisionNotFound")),
    ] {
        web.metadata.annotations = to(revision);
        let rollback = planned(&web, &sets).rollback.unwrap();
        let containers = &rollback.deployment.spec.as_ref().unwrap().template.spec.as_ref().unwrap().containers;
        assert_eq!(containers[0].image.as_deref(), Some(image));
        assert_eq!(rollback.done.as_deref(), done);
        assert_eq!(rollback.warning.map(|warning| warning.0), warning);
        assert!(rollback.deployment.metadata.annotations.unwrap().is_empty());
    }
}
