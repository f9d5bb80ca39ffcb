use super::*;
use crate::runtime::{ContainerView, Sandbox, State};
use crate::worker::memory::Waiting;
use serde_json::{Value, json};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a moment")
}

fn pod(value: Value) -> Pod {
    serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "n", "uid": "u", "generation": 1 },
        "spec": value }))
    .expect("a pod")
}

fn view(name: &str, state: State, exit_code: i32) -> ContainerView {
    ContainerView {
        id: format!("id-{name}"),
        name: name.into(),
        sandbox: "s".into(),
        state,
        exit_code,
        started_at: Some(at(50)),
        finished_at: (state == State::Exited).then(|| at(60)),
        ..Default::default()
    }
}

fn runtime(containers: Vec<ContainerView>) -> RuntimePod {
    let sandbox = Sandbox { id: "s".into(), ready: true, addresses: vec!["10.0.0.1".into()], ..Default::default() };
    RuntimePod { sandboxes: vec![sandbox], containers }
}

fn status(pod: &Pod, runtime: &RuntimePod, memory: &Memory, plan: &Plan) -> PodStatus {
    compute(&Input {
        devices: &Default::default(),
        pod,
        previous: &PodStatus::default(),
        runtime,
        memory,
        plan,
        node_addresses: &["1.2.3.4".to_string()],
        runtime_name: "containerd",
        now: at(100),
    })
}

fn condition(status: &PodStatus, kind: &str) -> String {
    let found = status.conditions.iter().flatten().find(|condition| condition.type_ == kind).expect("a condition");
    format!("{} {}", found.status, found.message.as_deref().unwrap_or_default()).trim().to_string()
}

#[test]
fn a_running_pod_is_ready() {
    let pod = pod(json!({ "containers": [{ "name": "a", "image": "i" }] }));
    let status = status(&pod, &runtime(vec![view("a", State::Running, 0)]), &Memory::default(), &Plan::default());
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.1"));
    for kind in ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"] {
        assert_eq!(condition(&status, kind), "True", "{kind}");
    }
    assert_eq!(status.container_statuses.expect("statuses")[0].container_id.as_deref(), Some("containerd://id-a"));
}

#[test]
fn readiness_waits_for_the_probe() {
    let pod = pod(json!({ "containers": [{ "name": "a", "readinessProbe": {} }] }));
    let running = runtime(vec![view("a", State::Running, 0)]);
    let mut memory = Memory::default();
    let not_ready = status(&pod, &running, &memory, &Plan::default());
    assert_eq!(condition(&not_ready, "Ready"), "False containers with unready status: [a]");
    memory.probes.entry("id-a".into()).or_default().ready = Some(true);
    assert_eq!(condition(&status(&pod, &running, &memory, &Plan::default()), "Ready"), "True");
}

#[test]
fn a_container_that_backs_off_shows_its_last_end() {
    let pod = pod(json!({ "containers": [{ "name": "a" }] }));
    let mut plan = Plan::default();
    let why = Waiting { reason: "CrashLoopBackOff".into(), message: "later".into() };
    plan.backing_off.insert("a".into(), why);
    let status = status(&pod, &runtime(vec![view("a", State::Exited, 7)]), &Memory::default(), &plan);
    let container = &status.container_statuses.expect("statuses")[0];
    let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref()).expect("waiting");
    assert_eq!(waiting.reason.as_deref(), Some("CrashLoopBackOff"));
    let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref()).expect("ended");
    assert_eq!((last.exit_code, last.reason.as_deref()), (7, Some("Error")));
    assert_eq!(status.phase.as_deref(), Some("Running"));
}

#[test]
fn a_phase_is_final_only_when_all_is_over() {
    let pod = pod(json!({ "restartPolicy": "Never", "containers": [{ "name": "a" }] }));
    let done = runtime(vec![view("a", State::Exited, 0)]);
    let mut memory = Memory { ending: Some(Ending::Finished), ..Default::default() };
    assert_eq!(status(&pod, &done, &memory, &Plan::default()).phase.as_deref(), Some("Pending"));
    let over = Plan { ended: true, ..Default::default() };
    let finished = status(&pod, &done, &memory, &over);
    assert_eq!(finished.phase.as_deref(), Some("Succeeded"));
    assert_eq!(condition(&finished, "Ready"), "False");
    memory.ending = Some(Ending::Stopped {
        reason: "Evicted".into(),
        message: "full".into(),
        grace: None,
        condition: Some(("TerminationByKubelet".into(), "full".into())),
    });
    let evicted = status(&pod, &done, &memory, &over);
    assert_eq!((evicted.phase.as_deref(), evicted.reason.as_deref()), (Some("Failed"), Some("Evicted")));
    assert_eq!(condition(&evicted, "DisruptionTarget"), "True full");
}

#[test]
fn of_a_pod_that_was_not_let_in_only_that_is_told() {
    let pod = pod(json!({ "containers": [{ "name": "a" }] }));
    let ending = Ending::Rejected { reason: "NodeAffinity".into(), message: "no match".into() };
    let memory = Memory { ending: Some(ending), first_seen: Some(at(90)), ..Default::default() };
    let told = status(&pod, &RuntimePod::default(), &memory, &Plan { ended: true, ..Default::default() });
    assert_eq!(
        serde_json::to_value(told).expect("JSON"),
        json!({ "phase": "Failed", "reason": "NodeAffinity", "message": "Pod was rejected: no match",
            "qosClass": "BestEffort", "startTime": "1970-01-01T00:01:30Z", "observedGeneration": 1 })
    );
}
