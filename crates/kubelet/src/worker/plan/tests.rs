use super::super::resize;
use super::super::state::{ResizeState, StartState, Termination, VolumeState};
use super::*;
use crate::settings::RestartBackoff;
use serde_json::json;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a moment")
}

/// The monotonic counterpart of `at`.
fn instant(second: u64) -> Instant {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    *START + Duration::from_secs(second)
}

fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "n", "uid": "u" }, "spec": spec }))
        .expect("a pod")
}

fn view(name: &str, state: State, exit_code: i32) -> ContainerView {
    ContainerView {
        id: format!("id-{name}"),
        name: name.into(),
        sandbox: "s".into(),
        state,
        exit_code,
        finished_at: (state == State::Exited).then(|| at(100)),
        ..Default::default()
    }
}

fn runtime(containers: Vec<ContainerView>) -> RuntimePod {
    let sandbox = Sandbox { id: "s".into(), ready: true, ..Default::default() };
    RuntimePod { sandboxes: vec![sandbox], containers, ..Default::default() }
}

fn mounted() -> WorkerState {
    WorkerState { volumes: VolumeState { ready: true, ..Default::default() }, ..Default::default() }
}

fn actions(pod: &Pod, runtime: &RuntimePod, state: &WorkerState, second: u64) -> Vec<String> {
    let wall = at(i64::try_from(second).expect("a second"));
    let plan = plan(&Situation { pod, runtime, state, now: instant(second), wall });
    let mut rendered: Vec<String> = plan
        .actions
        .iter()
        .map(|action| match action {
            Action::Allocate => "allocate".into(),
            Action::MountVolumes => "mount".into(),
            Action::CreateSandbox { attempt } => format!("sandbox {attempt}"),
            Action::StopSandbox { id } => format!("stop sandbox {id}"),
            Action::Start { container, attempt, .. } => format!("start {container} {attempt}"),
            Action::Stop { container, grace, why, in_turn, .. } => {
                let turn = if *in_turn { "" } else { " later" };
                format!("stop {container} {grace} {why:?}{turn}")
            }
            Action::TakeTurn { id } => format!("turn {id}"),
            Action::Remove { id } => format!("remove {id}"),
            Action::Resize => "resize".into(),
        })
        .collect();
    rendered.extend(plan.backing_off.keys().map(|name| format!("back off {name}")));
    if plan.terminated {
        rendered.push("terminated".into());
    }
    rendered
}

#[test]
fn a_pod_starts_step_by_step() {
    let pod = pod(json!({ "initContainers": [{ "name": "i" }, { "name": "side", "restartPolicy": "Always" }],
        "containers": [{ "name": "a" }, { "name": "b" }] }));
    use State::*;
    let done = || view("i", Exited, 0);
    let side = || view("side", Running, 0);
    let cases = [
        ("volumes first", RuntimePod::default(), WorkerState::default(), vec!["mount"]),
        ("then the sandbox", RuntimePod::default(), mounted(), vec!["sandbox 0"]),
        ("then the first init", runtime(vec![]), mounted(), vec!["start i 0"]),
        ("which must end", runtime(vec![view("i", Running, 0)]), mounted(), vec![]),
        ("then the sidecar", runtime(vec![done()]), mounted(), vec!["start side 0"]),
        ("then one main", runtime(vec![done(), side()]), mounted(), vec!["start a 0"]),
        ("then the other", runtime(vec![done(), side(), view("a", Running, 0)]), mounted(), vec!["start b 0"]),
    ];
    for (title, runtime, state, expected) in cases {
        assert_eq!(actions(&pod, &runtime, &state, 200), expected, "{title}");
    }
}

#[test]
fn restarts_wait_longer_each_time() {
    let pod = pod(json!({ "containers": [{ "name": "a" }] }));
    let terminated = runtime(vec![view("a", State::Exited, 1)]);
    let mut state = mounted();
    state.exits.insert("id-a".into(), instant(100));
    assert_eq!(actions(&pod, &terminated, &state, 100), ["start a 1"]);
    state.record_restart("a", instant(100), RestartBackoff::default());
    assert_eq!(actions(&pod, &terminated, &state, 109), ["back off a"]);
    assert_eq!(actions(&pod, &terminated, &state, 110), ["start a 1"]);
    for _ in 0..10 {
        state.record_restart("a", instant(100), RestartBackoff::default());
    }
    assert_eq!(actions(&pod, &terminated, &state, 399), ["back off a"]);
    assert_eq!(actions(&pod, &terminated, &state, 400), ["start a 1"]);
    let shorter = RestartBackoff { initial: Duration::from_secs(1), max: Duration::from_secs(3) };
    state.restarts.clear();
    for (delay, before) in [(1, 0), (2, 1), (3, 2), (3, 2)] {
        state.record_restart("a", instant(100), shorter);
        assert_eq!(actions(&pod, &terminated, &state, 100 + before), ["back off a"]);
        assert_eq!(actions(&pod, &terminated, &state, 100 + delay), ["start a 1"]);
    }
}

#[test]
fn a_pod_terminates_in_order() {
    let pod = pod(json!({ "terminationGracePeriodSeconds": 30,
        "initContainers": [{ "name": "x", "restartPolicy": "Always" }, { "name": "y", "restartPolicy": "Always" }],
        "containers": [{ "name": "a" }] }));
    let state = |second: u64| WorkerState {
        termination: Some(Termination::Deleted),
        terminating_since: Some(instant(second)),
        ..mounted()
    };
    use State::*;
    let (x, y) = (|state| view("x", state, 0), |state| view("y", state, 0));
    let gone = RuntimePod::default();
    let cases = [
        (
            "mains",
            runtime(vec![view("a", Running, 0), x(Running), y(Running)]),
            vec!["stop a 20 PodTerminates", "stop y 20 PodTerminates later", "stop x 20 PodTerminates later"],
        ),
        (
            "last sidecar",
            runtime(vec![view("a", Exited, 0), x(Running), y(Running)]),
            vec!["stop y 20 PodTerminates", "stop x 20 PodTerminates later"],
        ),
        ("first sidecar", runtime(vec![x(Running), y(Exited)]), vec!["stop x 20 PodTerminates"]),
        ("sandbox", runtime(vec![x(Exited)]), vec!["stop sandbox s"]),
        ("nothing", gone, vec!["terminated"]),
    ];
    for (title, runtime, expected) in cases {
        assert_eq!(actions(&pod, &runtime, &state(90), 100), expected, "{title}");
    }
}

#[test]
fn sidecars_that_wait_take_their_turns() {
    let side = |name: &str| json!({ "name": name, "restartPolicy": "Always" });
    let pod = pod(json!({ "containers": [{ "name": "a" }], "initContainers": [side("x"), side("y")] }));
    let mut state = mounted();
    state.termination = Some(Termination::Deleted);
    state.terminating_since = Some(instant(100));
    for id in ["id-a", "id-x", "id-y"] {
        state.stopping.insert(id.into(), instant(130));
    }
    for id in ["id-x", "id-y"] {
        state.turns.insert(id.into(), Default::default());
    }
    let of = |a: State, x: State, y: State| runtime(vec![view("a", a, 0), view("x", x, 0), view("y", y, 0)]);
    use State::{Exited, Running};
    assert!(actions(&pod, &of(Running, Running, Running), &state, 100).is_empty());
    assert_eq!(actions(&pod, &of(Exited, Running, Running), &state, 100), ["turn id-y"]);
    state.turns.remove("id-y");
    assert_eq!(actions(&pod, &of(Exited, Running, Exited), &state, 100), ["turn id-x"]);
    state.turns = [("id-y".to_string(), Default::default())].into();
    assert_eq!(actions(&pod, &of(Exited, Running, Exited), &state, 100), ["turn id-y"], "it exited by itself");
    state.turns.clear();
    assert!(actions(&pod, &of(Exited, Running, Exited), &state, 100).is_empty(), "it stops already");
}

#[test]
fn what_is_stopped_to_start_again_does_so_for_any_exit_code() {
    let pod = pod(json!({ "restartPolicy": "OnFailure", "containers": [{ "name": "a" }] }));
    let mut exited = runtime(vec![view("a", State::Exited, 0)]);
    let was_final = |runtime: &RuntimePod| crate::worker::restart::phase(&pod, runtime, true).is_final();
    assert_eq!(actions(&pod, &exited, &mounted(), 100), Vec::<String>::new());
    assert!(was_final(&exited));
    exited.restarting.insert("id-a".into());
    assert_eq!(actions(&pod, &exited, &mounted(), 100), ["start a 1"]);
    assert!(!was_final(&exited));
}

#[test]
fn unhealthy_containers_are_stopped_and_a_lost_sandbox_replaced() {
    let pod = pod(json!({ "containers": [{ "name": "a", "livenessProbe": { "terminationGracePeriodSeconds": 3 } }] }));
    let mut state = mounted();
    let running = runtime(vec![view("a", State::Running, 0)]);
    state.probes.entry("id-a".into()).or_default().liveness_failed = true;
    assert_eq!(actions(&pod, &running, &state, 100), ["stop a 3 Liveness"]);
    state.stopping.insert("id-a".into(), instant(103));
    assert!(actions(&pod, &running, &state, 100).is_empty(), "it is requested once");
    state.stop_again.insert("id-a".into());
    assert_eq!(actions(&pod, &running, &state, 100), ["stop a 3 Liveness"], "it could not be stopped");

    let mut lost = runtime(vec![view("a", State::Exited, 1)]);
    lost.sandboxes[0].ready = false;
    let mut state = mounted();
    assert_eq!(actions(&pod, &lost, &state, 100), ["stop sandbox s"]);
    state.stopped_sandboxes.insert("s".into());
    assert_eq!(actions(&pod, &lost, &state, 100), ["sandbox 1"]);
}

#[test]
fn a_pod_whose_last_container_fails_for_good_stops_as_a_whole() {
    let with = |policy: &str| {
        pod(json!({ "restartPolicy": policy, "terminationGracePeriodSeconds": 30,
            "initContainers": [{ "name": "side", "restartPolicy": "Always" }],
            "containers": [{ "name": "a", "livenessProbe": { "terminationGracePeriodSeconds": 3 } }, { "name": "b" }] }))
    };
    let mut state = mounted();
    for id in ["id-a", "id-side"] {
        state.probes.entry(id.into()).or_default().liveness_failed = true;
    }
    let of = |b: State| runtime(vec![view("side", State::Running, 0), view("a", State::Running, 0), view("b", b, 0)]);
    let whole = vec!["stop a 30 PodTerminates", "stop side 30 PodTerminates later"];
    let single = vec!["stop side 30 Liveness", "stop a 3 Liveness"];
    let cases = [
        ("nothing is left to run", "Never", State::Exited, whole),
        ("another container runs", "Never", State::Running, single.clone()),
        ("it starts again", "OnFailure", State::Exited, single),
    ];
    for (title, policy, b, expected) in cases {
        assert_eq!(actions(&with(policy), &of(b), &state, 100), expected, "{title}");
    }
    let dead = runtime(vec![view("side", State::Exited, 1), view("a", State::Running, 0), view("b", State::Exited, 0)]);
    assert_eq!(actions(&with("Never"), &dead, &state, 100), ["stop a 30 PodTerminates"], "no sidecar starts meanwhile");
}

#[test]
fn what_is_set_aside_comes_first() {
    let pod = pod(json!({ "containers": [{ "name": "a" }] }));
    let mut state = WorkerState { to_allocate: true, ..Default::default() };
    assert_eq!(actions(&pod, &RuntimePod::default(), &state, 0), ["allocate"]);
    state.operations.insert(Operation::Allocate);
    assert!(actions(&pod, &RuntimePod::default(), &state, 0).is_empty());
    state = WorkerState::default();
    assert_eq!(actions(&pod, &RuntimePod::default(), &state, 0), ["mount"]);
}

#[test]
fn failed_operations_are_retried_after_a_delay() {
    let pod = pod(json!({ "containers": [{ "name": "a" }] }));
    let running = WorkerState { stopped_sandboxes: ["s".into()].into(), ..mounted() };
    let termination = WorkerState { termination: Some(Termination::Deleted), ..mounted() };
    let again = |name: &str, number: u32| ContainerView {
        id: format!("id-{number}"),
        restart_count: number,
        created_at: number.into(),
        ..view(name, if number == 3 { State::Running } else { State::Exited }, 0)
    };
    let mut lost = runtime(vec![]);
    lost.sandboxes[0].ready = false;
    let sandbox = || Operation::StopSandbox("s".into());
    for (title, runtime, state, operation, requested) in [
        ("an termination pod", runtime(vec![]), termination, sandbox(), "stop sandbox s"),
        ("a lost sandbox", lost, mounted(), sandbox(), "stop sandbox s"),
        (
            "an old container",
            runtime(vec![again("a", 3), again("a", 2), again("a", 1)]),
            running,
            Operation::Remove("id-1".into()),
            "remove id-1",
        ),
    ] {
        assert_eq!(actions(&pod, &runtime, &state, 100), [requested], "{title}");
        let busy = WorkerState { operations: [operation.clone()].into(), ..state.clone() };
        assert!(actions(&pod, &runtime, &busy, 100).is_empty(), "{title} while it is at it");
        let refused = WorkerState { refused: [(operation, instant(102))].into(), ..state };
        assert!(actions(&pod, &runtime, &refused, 101).is_empty(), "{title} right after it failed");
        let plan = plan(&Situation { pod: &pod, runtime: &runtime, state: &refused, now: instant(101), wall: at(101) });
        assert_eq!(plan.wake_at, Some(instant(102)), "{title}");
        assert_eq!(actions(&pod, &runtime, &refused, 102), [requested], "{title} later");
    }
}

#[test]
fn a_rule_restarts_all_containers() {
    let rules = json!([{ "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [42] } }]);
    let pod = pod(json!({ "restartPolicy": "Never", "initContainers": [{ "name": "i" }], "containers": [
        { "name": "a", "restartPolicy": "Never", "restartPolicyRules": rules }, { "name": "b" }] }));
    let (i, a, b) = (view("i", State::Exited, 0), view("a", State::Exited, 42), view("b", State::Running, 0));
    let cases = [
        ("what runs is killed", vec![i.clone(), a.clone(), b], vec!["stop b 0 RestartAll"]),
        (
            "then what is left goes",
            vec![i, a.clone(), view("b", State::Exited, 137)],
            vec!["remove id-i", "remove id-b"],
        ),
        ("and last the one that triggered it", vec![a], vec!["remove id-a"]),
        ("then all start again", vec![], vec!["start i 0"]),
    ];
    let tried = |names: &[&str]| WorkerState {
        starts: StartState { attempted: names.iter().map(|name| name.to_string()).collect(), ..Default::default() },
        ..mounted()
    };
    for (what, containers, expected) in cases {
        assert_eq!(actions(&pod, &runtime(containers), &tried(&["a", "b"]), 200), expected, "{what}");
    }
    let (i, a) = (view("i", State::Exited, 0), view("a", State::Exited, 42));
    let early = runtime(vec![i, a]);
    assert_eq!(actions(&pod, &early, &tried(&["a"]), 200), ["start b 0"], "each has its first start");
}

#[test]
fn a_running_init_container_is_resized() {
    let of = |cpu: &str| {
        pod(json!({ "containers": [{ "name": "a" }],
            "initContainers": [{ "name": "i", "resources": { "requests": { "cpu": cpu } } }] }))
    };
    let state = WorkerState {
        resize: ResizeState { applied: resize::resources_of(&of("1")), ..Default::default() },
        ..mounted()
    };
    let running = runtime(vec![view("i", State::Running, 0)]);
    assert_eq!(actions(&of("2"), &running, &state, 200), ["resize"]);
    assert_eq!(actions(&of("1"), &running, &state, 200), Vec::<String>::new());
}

#[test]
fn a_jump_of_the_wall_clock_ends_no_delay() {
    let pod = pod(json!({ "containers": [{ "name": "a" }] }));
    let exited = runtime(vec![view("a", State::Exited, 1)]);
    let mut state = mounted();
    state.exits.insert("id-a".into(), instant(100));
    state.record_restart("a", instant(100), RestartBackoff::default());
    let plan = plan(&Situation { pod: &pod, runtime: &exited, state: &state, now: instant(101), wall: at(100_000) });
    assert!(plan.backing_off.contains_key("a") && plan.actions.is_empty());
    assert_eq!(plan.wake_at, Some(instant(110)));
}
