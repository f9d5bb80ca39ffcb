use super::*;
use serde_json::json;

fn pod(cpu: &str, policy: &str) -> Pod {
    serde_json::from_value(json!({ "spec": { "containers": [{ "name": "a", "resources": { "requests": { "cpu": cpu } },
        "resizePolicy": [{ "resourceName": "cpu", "restartPolicy": policy }] }] } }))
    .expect("a pod")
}

#[test]
fn the_pod_as_a_whole_has_resources_too() {
    let pod = |cpu: &str| -> Pod {
        serde_json::from_value(json!({ "spec": { "resources": { "limits": { "cpu": cpu } },
            "containers": [{ "name": "a" }] } }))
        .expect("a pod")
    };
    let (old, new) = (pod("1"), pod("2"));
    let mut applied = resources_of(&old);
    assert!(!same_all(&applied, &resources_of(&new)));
    assert!(!is_whole_outstanding(&old, &applied) && is_whole_outstanding(&new, &applied));
    assert_eq!(of_whole(&with_resources(&new, &applied)), of_whole(&old));
    assert_eq!(outstanding(&new, &applied, |_| true).len(), 1, "its limit is that of the pod");
    record_pod_level(&new, &mut applied);
    assert!(!is_whole_outstanding(&new, &applied) && outstanding(&new, &applied, |_| true).is_empty());
    let mut bare = new.clone();
    bare.spec.get_or_insert_default().resources = None;
    let applied = resources_of(&bare);
    assert!(is_whole_outstanding(&new, &applied) && !is_done(&new, &applied, |_| true), "it had none before");
    assert!(!is_whole_outstanding(&new, &ByContainer::new()), "nothing was started yet");
    assert_eq!(of_whole(&with_resources(&new, &applied)), None);
}

#[test]
fn a_limit_of_the_pod_restarts_containers_that_have_none() {
    let pod = |whole: &str, own: serde_json::Value| -> Pod {
        serde_json::from_value(json!({ "spec": { "resources": { "limits": { "cpu": whole } }, "containers": [
            { "name": "a", "resources": { "limits": own },
              "resizePolicy": [{ "resourceName": "cpu", "restartPolicy": "RestartContainer" }] }] } }))
        .expect("a pod")
    };
    for (own, expected) in [(json!({}), true), (json!({ "cpu": "1" }), false), (json!({ "memory": "1" }), true)] {
        let new = pod("3", own.clone());
        let applied = resources_of(&pod("2", own.clone()));
        assert_eq!(needs_restart(&new, &pod::spec(&new).containers[0], &applied), expected, "{own}");
    }
}

#[test]
fn init_containers_can_be_resized_while_they_run() {
    let pod = |cpu: &str| -> Pod {
        serde_json::from_value(json!({ "spec": { "containers": [{ "name": "a" }],
            "initContainers": [{ "name": "i", "resources": { "requests": { "cpu": cpu } } }] } }))
        .expect("a pod")
    };
    let (new, applied) = (pod("2"), resources_of(&pod("1")));
    let names = |running: bool| -> Vec<String> {
        outstanding(&new, &applied, |_| running).into_iter().map(|c| c.name.clone()).collect()
    };
    assert_eq!((names(true), names(false)), (vec!["i".to_string()], vec![]));
    assert!(!is_done(&new, &applied, |_| true) && is_done(&new, &applied, |_| false), "it has terminated");
}

#[test]
fn memory_in_use_can_not_be_removed() {
    let pod = |memory: &str| -> Pod {
        serde_json::from_value(json!({ "spec": { "containers": [
            { "name": "a", "resources": { "limits": { "memory": memory } } }] } }))
        .expect("a pod")
    };
    let lowered = |old: &str, new: &str| {
        let (old, new) = (pod(old), pod(new));
        lowered_memory_limit(&new, &pod::spec(&new).containers[0], &resources_of(&old))
    };
    assert_eq!((lowered("20", "10"), lowered("10", "20"), lowered("0", "20")), (Some(10), None, Some(20)));
    let decrease = |pod_limit, usage, container: i64| MemoryDecrease {
        pod_limit,
        pod_usage: Some(usage),
        containers: vec![("a".into(), container, Some(usage))],
    };
    let prefix = "cannot decrease memory limits: ";
    let of_pod = "attempting to set pod memory limit (10) below current usage (15)";
    let of_container = "attempting to set container \"a\" memory limit (10) below current usage (15)";
    let cases = [
        (decrease(Some(20), 15, 20), None),
        (decrease(Some(10), 15, 20), Some(format!("{prefix}{of_pod}"))),
        (decrease(None, 15, 10), Some(format!("{prefix}{of_container}"))),
        (decrease(Some(10), 15, 10), Some(format!("{prefix}[{of_pod}, {of_container}]"))),
        (
            MemoryDecrease { pod_limit: Some(1), ..Default::default() },
            Some(format!("{prefix}missing pod memory usage")),
        ),
    ];
    for (decrease, expected) in cases {
        assert_eq!(decrease.refusal(), expected);
    }
}

#[test]
fn resize_events_list_the_resources() {
    let mut changed = pod("2", "NotRequired");
    changed.metadata.generation = Some(3);
    let list = "\"containers\":[{\"name\":\"a\",\"resources\":{\"requests\":{\"cpu\":\"2\"}}}],\"generation\":3";
    assert_eq!(event_message(&changed, "started", ""), format!("Pod resize started: {{{list}}}"));
    assert_eq!(
        event_message(&changed, "Deferred", "no room"),
        format!("Pod resize Deferred: {{{list},\"error\":\"no room\"}}")
    );
    let applied = resources_of(&pod("1", "NotRequired"));
    assert!(!is_done(&changed, &applied, |_| true) && is_done(&changed, &resources_of(&changed), |_| true));
    assert!(is_done(&changed, &ByContainer::new(), |_| true), "nothing was started yet");
}

#[test]
fn resize_requests_are_counted_by_direction() {
    let (small, large) = (resources_of(&pod("1", "NotRequired")), resources_of(&pod("2", "NotRequired")));
    let change = |operation| vec![("cpu".to_string(), "requests", operation)];
    assert_eq!(changes(&small, &large), change("increase"));
    assert_eq!(changes(&large, &small), change("decrease"));
    assert_eq!(changes(&small, &small), Vec::new());
}

#[test]
fn changes_are_found_by_amount() {
    let (old, equal, new) = (pod("1", "NotRequired"), pod("1000m", "NotRequired"), pod("2", "NotRequired"));
    assert!(same_all(&resources_of(&old), &resources_of(&equal)));
    assert!(!same_all(&resources_of(&old), &resources_of(&new)));
    let applied = resources_of(&old);
    assert_eq!(outstanding(&new, &applied, |_| true).len(), 1);
    assert!(outstanding(&new, &applied, |_| false).is_empty());
    assert!(outstanding(&equal, &applied, |_| true).is_empty());
    assert!(!needs_restart(&new, &pod::spec(&new).containers[0], &applied));
    let strict = pod("2", "RestartContainer");
    assert!(needs_restart(&strict, &pod::spec(&strict).containers[0], &applied));
    assert_eq!(resources_of(&with_resources(&new, &applied)), applied);
}
