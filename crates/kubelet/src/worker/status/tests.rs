use super::*;
use crate::runtime::{ContainerView, Sandbox, State};
use crate::worker::state::Waiting;
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
    RuntimePod { sandboxes: vec![sandbox], containers, ..Default::default() }
}

fn status(pod: &Pod, runtime: &RuntimePod, state: &WorkerState, plan: &Plan) -> PodStatus {
    compute(&Input {
        devices: &Default::default(),
        pod,
        previous: &PodStatus::default(),
        runtime,
        state,
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
    let status = status(&pod, &runtime(vec![view("a", State::Running, 0)]), &WorkerState::default(), &Plan::default());
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.1"));
    for kind in ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"] {
        assert_eq!(condition(&status, kind), "True", "{kind}");
    }
    assert_eq!(status.container_statuses.expect("statuses")[0].container_id.as_deref(), Some("containerd://id-a"));
}

#[test]
fn a_container_reports_the_image_that_it_runs() {
    let pod = pod(json!({ "containers": [{ "name": "a", "image": "new" }, { "name": "b", "image": "new" }] }));
    let running = ContainerView { image: "old".into(), ..view("a", State::Running, 0) };
    let status = status(&pod, &runtime(vec![running]), &WorkerState::default(), &Plan::default());
    let images = status.container_statuses.expect("statuses").into_iter().map(|container| container.image);
    assert_eq!(images.collect::<Vec<_>>(), ["old", "new"], "the spec's only until there is a container");
}

#[test]
fn a_container_that_starts_again_whatever_its_exit_code_waits() {
    let pod = pod(json!({ "restartPolicy": "Never", "containers": [{ "name": "a" }] }));
    let mut exited = runtime(vec![view("a", State::Exited, 0)]);
    exited.restarting.insert("id-a".into());
    let state_of = |state: &WorkerState| {
        let status = status(&pod, &exited, state, &Plan::default());
        let container = status.container_statuses.expect("statuses").remove(0);
        let (now, last) = (container.state.expect("a state"), container.last_state);
        (now.waiting.is_some(), now.terminated.is_some(), last.is_some_and(|last| last.terminated.is_some()))
    };
    assert_eq!(state_of(&WorkerState::default()), (true, false, true));
    let terminating = WorkerState { termination: Some(Termination::Deleted), ..Default::default() };
    assert_eq!(state_of(&terminating), (false, true, false), "it does not start any more");
}

#[test]
fn readiness_waits_for_the_probe() {
    let pod = pod(json!({ "containers": [{ "name": "a", "readinessProbe": {} }] }));
    let running = runtime(vec![view("a", State::Running, 0)]);
    let mut state = WorkerState::default();
    let not_ready = status(&pod, &running, &state, &Plan::default());
    assert_eq!(condition(&not_ready, "Ready"), "False containers with unready status: [a]");
    state.probes.entry("id-a".into()).or_default().ready = Some(true);
    assert_eq!(condition(&status(&pod, &running, &state, &Plan::default()), "Ready"), "True");
}

#[test]
fn a_container_in_back_off_shows_its_last_termination() {
    let pod = pod(json!({ "containers": [{ "name": "a" }] }));
    let mut plan = Plan::default();
    let why = Waiting { reason: "CrashLoopBackOff".into(), message: "later".into() };
    plan.backing_off.insert("a".into(), why);
    let status = status(&pod, &runtime(vec![view("a", State::Exited, 7)]), &WorkerState::default(), &plan);
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
    let mut state = WorkerState { termination: Some(Termination::Finished), ..Default::default() };
    assert_eq!(status(&pod, &done, &state, &Plan::default()).phase.as_deref(), Some("Pending"));
    let over = Plan { terminated: true, ..Default::default() };
    let finished = status(&pod, &done, &state, &over);
    assert_eq!(finished.phase.as_deref(), Some("Succeeded"));
    assert_eq!(condition(&finished, "Ready"), "False");
    state.termination = Some(Termination::Stopped {
        reason: "Evicted".into(),
        message: "full".into(),
        grace: None,
        condition: Some(("TerminationByKubelet".into(), "full".into())),
    });
    let evicted = status(&pod, &done, &state, &over);
    assert_eq!((evicted.phase.as_deref(), evicted.reason.as_deref()), (Some("Failed"), Some("Evicted")));
    assert_eq!(condition(&evicted, "DisruptionTarget"), "True full");
}

#[test]
fn a_rejected_pod_reports_only_the_rejection() {
    let pod = pod(json!({ "containers": [{ "name": "a" }] }));
    let termination = Termination::Rejected { reason: "NodeAffinity".into(), message: "no match".into() };
    let state = WorkerState { termination: Some(termination), first_seen: Some(at(90)), ..Default::default() };
    let rejected = status(&pod, &RuntimePod::default(), &state, &Plan { terminated: true, ..Default::default() });
    assert_eq!(
        serde_json::to_value(rejected).expect("JSON"),
        json!({ "phase": "Failed", "reason": "NodeAffinity", "message": "Pod was rejected: no match",
            "qosClass": "BestEffort", "startTime": "1970-01-01T00:01:30Z", "observedGeneration": 1 })
    );
}

#[test]
fn a_pod_that_is_deleted_before_it_ran_has_failed_without_its_containers() {
    let pod = pod(json!({ "initContainers": [{ "name": "i" }, { "name": "j" }],
        "containers": [{ "name": "a" }, { "name": "b" }] }));
    let state = WorkerState { termination: Some(Termination::Deleted), ..Default::default() };
    let plan = Plan { terminated: true, ..Default::default() };
    let reason = |status: &PodStatus| {
        let found = status.conditions.iter().flatten().find(|known| known.type_ == "Ready").expect("a condition");
        found.reason.clone().unwrap_or_default()
    };
    let container_state = |list: &Option<Vec<k8s_openapi::api::core::v1::ContainerStatus>>, place: usize| {
        let state = list.as_ref().and_then(|list| list[place].state.clone()).unwrap_or_default();
        state.terminated.map_or("waiting".to_string(), |ended| ended.reason.unwrap_or_default())
    };
    // The first init container must have ended, the others had no turn.
    let early = status(&pod, &runtime(vec![]), &state, &plan);
    assert_eq!(early.phase.as_deref(), Some("Failed"));
    assert_eq!(reason(&early), "ContainersNotReady");
    assert_eq!(condition(&early, "Ready"), "False containers with unready status: [a b]");
    assert_eq!(container_state(&early.init_container_statuses, 0), "ContainerStatusUnknown");
    assert_eq!(container_state(&early.init_container_statuses, 1), "waiting");
    assert_eq!(container_state(&early.container_statuses, 0), "waiting");
    let ran = vec![view("i", State::Exited, 0), view("j", State::Exited, 0), view("a", State::Exited, 137)];
    let late = [ran.clone(), vec![view("b", State::Exited, 0)]].concat();
    assert_eq!(reason(&status(&pod, &runtime(ran), &state, &plan)), "ContainersNotReady");
    assert_eq!(reason(&status(&pod, &runtime(late), &state, &plan)), "PodFailed");
}

#[test]
fn a_container_that_failed_to_start_has_a_start_time() {
    let pod = pod(json!({ "restartPolicy": "Never", "containers": [{ "name": "a" }] }));
    let failed = ContainerView { started_at: None, reason: "StartError".into(), ..view("a", State::Exited, 128) };
    let status = status(&pod, &runtime(vec![failed]), &WorkerState::default(), &Plan::default());
    let value = serde_json::to_value(&status).expect("JSON");
    assert_eq!(value["containerStatuses"][0]["state"]["terminated"]["startedAt"], "1970-01-01T00:00:00Z");
    assert_eq!(value["conditions"][2]["reason"], "PodFailed", "known before the phase is reported");
}

#[test]
fn all_containers_restart_in_place() {
    let rules = json!([{ "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [42] } }]);
    let pod = pod(json!({ "restartPolicy": "Never", "containers": [
        { "name": "a", "restartPolicy": "Never", "restartPolicyRules": rules }, { "name": "b" }] }));
    let step = |previous: &PodStatus, containers: Vec<ContainerView>| {
        compute(&Input {
            devices: &Default::default(),
            pod: &pod,
            previous,
            runtime: &runtime(containers),
            state: &WorkerState::default(),
            plan: &Plan::default(),
            node_addresses: &[],
            runtime_name: "containerd",
            now: at(100),
        })
    };
    let summary = |status: &PodStatus| {
        let containers = status.container_statuses.iter().flatten().map(|container| {
            let state = container.state.clone().unwrap_or_default();
            let what = match (state.running, state.terminated, state.waiting) {
                (Some(_), ..) => "running".to_string(),
                (_, Some(ended), _) => format!("ended {}", ended.exit_code),
                (.., waiting) => waiting.and_then(|waiting| waiting.reason).unwrap_or_default(),
            };
            let last = container.last_state.clone().and_then(|last| last.terminated?.reason).unwrap_or_default();
            format!("{} {} {what} {last}", container.name, container.restart_count)
        });
        let all = containers.map(|text| text.trim().to_string()).collect::<Vec<_>>().join(", ");
        let restarting = condition(status, "AllContainersRestarting");
        format!("{} [{restarting}] {all}", status.phase.as_deref().unwrap_or_default())
    };
    let both = step(&PodStatus::default(), vec![view("a", State::Running, 0), view("b", State::Running, 0)]);
    assert_eq!(summary(&both), "Running [False] a 0 running, b 0 running");
    let triggered = step(&both, vec![view("a", State::Exited, 42), view("b", State::Running, 0)]);
    let restarting = "True container exited with restart policy rule";
    assert_eq!(summary(&triggered), format!("Running [{restarting}] a 0 ended 42, b 0 running"));
    let half = step(&triggered, vec![view("a", State::Exited, 42)]);
    let lost = "RestartingAllContainers RestartingAllContainers";
    assert_eq!(summary(&half), format!("Running [{restarting}] a 0 ended 42, b 1 {lost}"));
    let none = step(&half, vec![]);
    assert_eq!(summary(&none), format!("Running [False] a 1 {lost}, b 1 {lost}"));
    assert_eq!(summary(&step(&none, vec![])), summary(&none), "said once and not again");
    let again =
        |name: &str| ContainerView { restart_count: 1, id: format!("new-{name}"), ..view(name, State::Running, 0) };
    let restarted = step(&none, vec![again("a"), again("b")]);
    assert_eq!(
        summary(&restarted),
        "Running [False] a 1 running RestartingAllContainers, b 1 running RestartingAllContainers"
    );
}
