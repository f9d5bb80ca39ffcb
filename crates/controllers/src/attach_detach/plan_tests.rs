use super::*;
use serde_json::json;

fn pod(namespace: &str, name: &str, created: &str) -> Arc<Pod> {
    let metadata = json!({"namespace": namespace, "name": name, "creationTimestamp": created});
    Arc::new(serde_json::from_value(json!({"metadata": metadata})).unwrap())
}

/// `desired` are `node:pod`, `attached` are `node:state[:in-use][:lost][:out-of-service]`.
fn observed(shared: bool, desired: &str, attached: &str) -> Observed {
    let mut observed = Observed {
        id: VolumeId::new("d", "h"),
        name: "v".to_owned(),
        shared,
        desired: BTreeMap::new(),
        attachments: BTreeMap::new(),
        force_detach_on_timeout: true,
    };
    for (age, entry) in desired.split_whitespace().enumerate() {
        let (node, name) = entry.split_once(':').unwrap();
        let created = format!("2026-01-01T00:00:{age:02}Z");
        observed.desired.entry(node.to_owned()).or_default().push(pod("ns", name, &created));
    }
    for entry in attached.split_whitespace() {
        let words: Vec<&str> = entry.split(':').collect();
        let state = match words[1] {
            "pending" => State::Pending,
            "attached" => State::Attached,
            "detaching" => State::Detaching,
            failed => State::Failed(failed.to_owned()),
        };
        let has = |word: &str| words.contains(&word);
        let attachment = Attachment {
            state,
            in_use: has("in-use"),
            node_ready: !has("lost"),
            out_of_service: has("out-of-service"),
        };
        observed.attachments.insert(words[0].to_owned(), attachment);
    }
    observed
}

fn rendered(plan: &Plan) -> String {
    let action = |action: &Action| match action {
        Action::Attach { node } => format!("attach {node}"),
        Action::ReportAttached { node } => format!("attached {node}"),
        Action::ReportFailure { pod, message, .. } => format!("{}: {message}", pod.1),
        Action::Detach { node, verify: true } => format!("detach {node}"),
        Action::Detach { node, verify: false } => format!("force detach {node}"),
    };
    plan.actions.iter().map(action).collect::<Vec<_>>().join(", ")
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn volumes_are_attached_where_pods_need_them() {
    let taken = "q: Waiting for detach for volume \"v\" Volume is already used by pod(s) p";
    let stale = "q: Waiting for detach for volume \"v\" Volume is already exclusively attached to one node, waiting on detach \
                 before it can be attached to another node";
    for (shared, desired, attached, expected) in [
        (false, "", "", ""),
        (false, "a:p", "", "attach a"),
        (false, "a:p", "a:attached", ""),
        (false, "a:p", "a:attached:in-use", ""),
        (false, "b:q a:p", "", "attach b"),
        (true, "b:q a:p", "", "attach b, attach a"),
        (false, "a:p b:q", "a:attached", taken),
        (false, "a:p b:q", "a:pending", taken),
        (true, "a:p b:q", "a:attached", "attach b"),
        (false, "b:q", "a:attached", &format!("detach a, {stale}")),
        (false, "b:q", "a:attached:in-use", stale),
        (false, "b:q", "a:detaching", stale),
        (false, "", "a:attached", "detach a"),
        (false, "", "a:pending", "detach a"),
        (false, "", "a:attached:in-use", ""),
        (false, "", "a:attached:in-use:lost", ""),
        (false, "", "a:attached:in-use:lost:out-of-service", "force detach a"),
        (false, "", "a:detaching", ""),
        (false, "a:p", "a:broken", "p: AttachVolume.Attach failed for volume \"v\" : broken"),
        (
            false,
            "a:p",
            "a:detaching",
            "p: AttachVolume.Attach failed for volume \"v\" : volume attachment is being deleted",
        ),
    ] {
        let plan = plan(&observed(shared, desired, attached), &mut BTreeMap::new(), Duration::ZERO);
        assert_eq!(rendered(&plan), expected, "{shared} {desired:?} {attached:?}");
    }
}

#[test]
fn a_lost_node_keeps_its_volume_for_six_minutes() {
    for (force, attached, at_the_end) in [
        (true, "a:attached:in-use:lost", "force detach a"),
        (true, "a:attached:in-use", ""),
        (false, "a:attached:in-use:lost", ""),
    ] {
        let mut memory = BTreeMap::new();
        let mut observed = observed(false, "", attached);
        observed.force_detach_on_timeout = force;
        let first = plan(&observed, &mut memory, MINUTE);
        assert_eq!((rendered(&first).as_str(), first.again_at), ("", Some(MINUTE * 7)));
        assert_eq!(rendered(&plan(&observed, &mut memory, MINUTE * 6)), "");
        assert_eq!(rendered(&plan(&observed, &mut memory, MINUTE * 7)), at_the_end, "{force} {attached}");
    }
}

#[test]
fn a_volume_that_is_needed_again_starts_a_new_wait() {
    let mut memory = BTreeMap::new();
    let lost = observed(false, "", "a:attached:in-use:lost");
    plan(&lost, &mut memory, Duration::ZERO);
    plan(&observed(false, "a:p", "a:attached:in-use:lost"), &mut memory, MINUTE * 3);
    assert_eq!(rendered(&plan(&lost, &mut memory, MINUTE * 7)), "");
    assert_eq!(rendered(&plan(&lost, &mut memory, MINUTE * 13)), "force detach a");
}

#[test]
fn success_is_reported_once() {
    let mut memory = BTreeMap::new();
    assert_eq!(rendered(&plan(&observed(false, "a:p", ""), &mut memory, MINUTE)), "attach a");
    assert_eq!(rendered(&plan(&observed(false, "a:p", "a:pending"), &mut memory, MINUTE)), "");
    let attached = observed(false, "a:p", "a:attached");
    assert_eq!(rendered(&plan(&attached, &mut memory, MINUTE)), "attached a");
    assert_eq!(rendered(&plan(&attached, &mut memory, MINUTE)), "");
    plan(&observed(false, "", ""), &mut memory, MINUTE);
    assert!(memory.is_empty(), "nothing is remembered of volumes that are gone");
}

#[test]
fn a_multi_attach_error_is_reported_once_for_each_wait() {
    let mut memory = BTreeMap::new();
    let taken = observed(false, "a:p b:q", "a:attached");
    assert!(rendered(&plan(&taken, &mut memory, MINUTE)).starts_with("q: Waiting for detach"));
    assert_eq!(rendered(&plan(&taken, &mut memory, MINUTE * 2)), "");
    assert_eq!(rendered(&plan(&observed(false, "b:q", ""), &mut memory, MINUTE * 3)), "attach b");
    plan(&observed(false, "b:q", "b:attached"), &mut memory, MINUTE * 3);
    plan(&observed(false, "", ""), &mut memory, MINUTE * 3);
    assert!(rendered(&plan(&taken, &mut memory, MINUTE * 4)).starts_with("q: Waiting for detach"));
}

#[test]
fn a_driver_that_does_not_respond_is_reported_after_two_minutes() {
    let mut memory = BTreeMap::new();
    let pending = observed(false, "a:p", "a:pending");
    plan(&observed(false, "a:p", ""), &mut memory, Duration::ZERO);
    let waiting = plan(&pending, &mut memory, MINUTE);
    assert_eq!((rendered(&waiting).as_str(), waiting.again_at), ("", Some(MINUTE * 2)));
    let late = "p: AttachVolume.Attach failed for volume \"v\" : timed out waiting for external-attacher of d CSI driver to \
                attach volume h";
    assert_eq!(rendered(&plan(&pending, &mut memory, MINUTE * 2)), late);
    assert_eq!(rendered(&plan(&pending, &mut memory, MINUTE * 3)), "", "a new wait");
    assert_eq!(rendered(&plan(&pending, &mut memory, MINUTE * 5)), late);
    assert_eq!(rendered(&plan(&observed(false, "a:p", "a:attached"), &mut memory, MINUTE * 5)), "attached a");
}

#[test]
fn errors_of_a_driver_are_reported_with_a_backoff() {
    let mut memory = BTreeMap::new();
    let failing = observed(false, "a:p", "a:broken");
    let mut reports = Vec::new();
    for half_seconds in 0..20 {
        let now = Duration::from_millis(500 * half_seconds);
        if !plan(&failing, &mut memory, now).actions.is_empty() {
            reports.push(half_seconds);
        }
    }
    assert_eq!(reports, [0, 1, 3, 7, 15]);
}

#[test]
fn a_failed_attach_does_not_delay_the_detach() {
    let mut memory = BTreeMap::new();
    let (failing, unneeded) = (observed(false, "a:p", "a:broken"), observed(false, "", "a:broken"));
    for seconds in 0..200 {
        plan(&failing, &mut memory, Duration::from_secs(seconds));
    }
    let now = Duration::from_secs(200);
    assert_eq!(rendered(&plan(&unneeded, &mut memory, now)), "detach a");
    memory.get_mut("a").unwrap().fail(now);
    let waiting = plan(&unneeded, &mut memory, now);
    assert_eq!((rendered(&waiting).as_str(), waiting.again_at), ("", Some(now + INITIAL_BACKOFF)), "its own backoff");
    assert_eq!(rendered(&plan(&unneeded, &mut memory, now + INITIAL_BACKOFF)), "detach a");
    for failures in 0..10 {
        memory.get_mut("a").unwrap().fail(now + INITIAL_BACKOFF * failures);
    }
    let gone = observed(false, "a:q", "");
    assert_eq!(rendered(&plan(&gone, &mut memory, now + MINUTE)), "attach a", "nor a failed detach the next attach");
}
