//! Restart policies of containers, and the pod's phase that follows from its containers.

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::pod::{self, Role};
use crate::runtime::{ContainerView, RuntimePod, State};

/// What to do after a container exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterExit {
    Restart,
    /// Restart the whole pod, init containers included.
    RestartAll,
    Stay,
}

/// By the container's own rules if one matches, otherwise by its own policy, otherwise by the pod's.
pub fn after_exit(pod: &Pod, role: Role, container: &Container, exit_code: i32) -> AfterExit {
    if role == Role::Ephemeral {
        return AfterExit::Stay;
    }
    for rule in container.restart_policy_rules.iter().flatten() {
        let Some(codes) = &rule.exit_codes else { continue };
        let listed = codes.values.iter().flatten().any(|value| *value == exit_code);
        let fits = if codes.operator == "NotIn" { !listed } else { listed };
        if fits {
            return if rule.action == "RestartAllContainers" { AfterExit::RestartAll } else { AfterExit::Restart };
        }
    }
    if role == Role::Sidecar {
        return AfterExit::Restart;
    }
    let policy = container.restart_policy.as_deref().unwrap_or_else(|| pod::restart_policy(pod));
    let restart = match policy {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        // An init container that succeeded is done whatever the policy says.
        _ => role != Role::Init || exit_code != 0,
    };
    if restart { AfterExit::Restart } else { AfterExit::Stay }
}

/// Whether a main container starts again after it failed a probe. Rules about exit codes do not apply to one that runs.
pub fn restarts_on_failure(pod: &Pod, container: &Container) -> bool {
    container.restart_policy.as_deref().unwrap_or_else(|| pod::restart_policy(pod)) != "Never"
}

/// What to do about a container of the pod that exited.
pub fn after_exit_of(
    pod: &Pod,
    runtime: &RuntimePod,
    role: Role,
    container: &Container,
    view: &ContainerView,
) -> AfterExit {
    match runtime.restarting.contains(&view.id) {
        true => AfterExit::Restart,
        false => after_exit(pod, role, container, view.exit_code),
    }
}

/// Whether a rule of one of the pod's containers may restart all of them.
pub fn may_restart_all(pod: &Pod) -> bool {
    let containers = pod::init_containers(pod).map(|(_, container)| container).chain(pod::main_containers(pod));
    containers
        .flat_map(|container| container.restart_policy_rules.iter().flatten())
        .any(|rule| rule.action == "RestartAllContainers")
}

/// Whether a container of this pod exited in a way for which its rules restart all containers.
pub fn restarts_all(pod: &Pod, runtime: &RuntimePod) -> bool {
    let Some(sandbox) = runtime.current_sandbox() else { return false };
    pod::init_containers(pod)
        .chain(pod::main_containers(pod).map(|container| (Role::Main, container)))
        .any(|(role, container)| triggers(pod, role, container, runtime.latest_in(&sandbox.id, &container.name)))
}

fn triggers(pod: &Pod, role: Role, container: &Container, view: Option<&ContainerView>) -> bool {
    view.is_some_and(|view| {
        view.state == State::Exited && after_exit(pod, role, container, view.exit_code) == AfterExit::RestartAll
    })
}

/// The containers to remove next for a restart of all: those that triggered it last, so that an interrupted restart
/// continues.
pub fn to_remove_for_restart<'a>(pod: &'a Pod, runtime: &'a RuntimePod) -> Vec<&'a ContainerView> {
    let roles = || {
        let init = pod::init_containers(pod);
        init.chain(pod::main_containers(pod).map(|container| (Role::Main, container)))
    };
    let of = |triggering: bool| -> Vec<&'a ContainerView> {
        roles()
            .flat_map(|(role, container)| {
                let all = runtime.all_of(&container.name);
                all.filter(move |view| triggers(pod, role, container, Some(view)) == triggering)
            })
            .collect()
    };
    let others = of(false);
    if others.is_empty() { of(true) } else { others }
}

/// The pod's phase, derived from its containers only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// `was_initialized` says that init containers may already have been removed.
pub fn phase(pod: &Pod, runtime: &RuntimePod, was_initialized: bool) -> Phase {
    let mut main_started = false;
    // Whatever has exited, and for whatever policy, starts again.
    let all_restart = restarts_all(pod, runtime);
    let (mut running, mut waiting, mut succeeded, mut failed) = (0, 0, 0, 0);
    for container in pod::main_containers(pod) {
        let Some(view) = runtime.latest(&container.name) else {
            waiting += 1;
            continue;
        };
        match view.state {
            State::Running => {
                main_started = true;
                running += 1;
            }
            State::Exited => {
                main_started = true;
                match after_exit_of(pod, runtime, Role::Main, container, view) {
                    AfterExit::Restart | AfterExit::RestartAll => running += 1,
                    AfterExit::Stay if all_restart => running += 1,
                    AfterExit::Stay if view.exit_code == 0 => succeeded += 1,
                    AfterExit::Stay => failed += 1,
                }
            }
            State::Created | State::Unknown => waiting += 1,
        }
    }
    if !was_initialized && !main_started {
        match init_progress(pod, runtime) {
            InitProgress::Failed => return Phase::Failed,
            InitProgress::Pending => return Phase::Pending,
            InitProgress::Done => {}
        }
    }
    if waiting > 0 {
        // A pod runs once all its containers have started; a container that is missing later was only cleaned up.
        let has_run = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        return if has_run && running > 0 { Phase::Running } else { Phase::Pending };
    }
    if running > 0 {
        return Phase::Running;
    }
    if failed > 0 {
        return Phase::Failed;
    }
    if succeeded > 0 { Phase::Succeeded } else { Phase::Pending }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitProgress {
    Pending,
    Done,
    Failed,
}

/// Whether all init containers have finished; a sidecar counts once it has run.
fn init_progress(pod: &Pod, runtime: &RuntimePod) -> InitProgress {
    for (role, container) in pod::init_containers(pod) {
        let Some(view) = runtime.latest(&container.name) else { return InitProgress::Pending };
        match (role, view.state) {
            (Role::Sidecar, State::Running | State::Exited) => {}
            (Role::Init, State::Exited) if view.exit_code == 0 => {}
            (Role::Init, State::Exited) => {
                return match after_exit(pod, role, container, view.exit_code) {
                    AfterExit::Stay => InitProgress::Failed,
                    _ => InitProgress::Pending,
                };
            }
            _ => return InitProgress::Pending,
        }
    }
    InitProgress::Done
}

/// Whether the container's latest instance exited and will be restarted.
pub fn will_restart(pod: &Pod, role: Role, container: &Container, view: &ContainerView) -> bool {
    view.state == State::Exited && after_exit(pod, role, container, view.exit_code) != AfterExit::Stay
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Sandbox;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({ "metadata": { "name": "p" }, "spec": spec })).expect("a pod")
    }

    fn view(name: &str, state: State, exit_code: i32) -> ContainerView {
        ContainerView { id: format!("id-{name}"), name: name.into(), state, exit_code, ..Default::default() }
    }

    #[test]
    fn phases_follow_the_containers() {
        let two =
            |policy: &str| pod(json!({ "restartPolicy": policy, "containers": [{ "name": "a" }, { "name": "b" }] }));
        let init = |policy: &str| {
            pod(
                json!({ "restartPolicy": policy, "initContainers": [{ "name": "i" }], "containers": [{ "name": "a" }] }),
            )
        };
        let ran = |mut pod: Pod| {
            pod.status.get_or_insert_default().phase = Some("Running".to_owned());
            pod
        };
        use State::*;
        let cases = [
            ("nothing yet", two("Always"), vec![], Phase::Pending),
            ("half", two("Always"), vec![view("a", Running, 0)], Phase::Pending),
            ("half is left", ran(two("Always")), vec![view("a", Running, 0)], Phase::Running),
            ("both", two("Always"), vec![view("a", Running, 0), view("b", Exited, 1)], Phase::Running),
            ("done", two("Never"), vec![view("a", Exited, 0), view("b", Exited, 0)], Phase::Succeeded),
            ("failed", two("Never"), vec![view("a", Exited, 0), view("b", Exited, 3)], Phase::Failed),
            ("one left", two("Never"), vec![view("a", Exited, 3), view("b", Running, 0)], Phase::Running),
            ("again", two("OnFailure"), vec![view("a", Exited, 3), view("b", Exited, 0)], Phase::Running),
            ("init runs", init("Always"), vec![view("i", Running, 0)], Phase::Pending),
            ("init failed", init("Never"), vec![view("i", Exited, 1)], Phase::Failed),
            ("init again", init("Always"), vec![view("i", Exited, 1)], Phase::Pending),
            ("init done", init("Always"), vec![view("i", Exited, 0)], Phase::Pending),
        ];
        for (title, pod, containers, expected) in cases {
            let runtime = RuntimePod { containers, ..Default::default() };
            assert_eq!(phase(&pod, &runtime, false), expected, "{title}");
        }
    }

    #[test]
    fn rules_come_before_policies() {
        let pod = pod(json!({ "restartPolicy": "Never", "containers": [{ "name": "a", "restartPolicy": "Never",
            "restartPolicyRules": [{ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }] }] }));
        let container = &pod::spec(&pod).containers[0];
        assert_eq!(after_exit(&pod, Role::Main, container, 42), AfterExit::Restart);
        assert_eq!(after_exit(&pod, Role::Main, container, 1), AfterExit::Stay);
    }

    #[test]
    fn rules_of_sidecars_may_restart_all() {
        let rules = json!([{ "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [42] } }]);
        let pod = pod(json!({ "restartPolicy": "Never", "containers": [{ "name": "a" }], "initContainers": [
            { "name": "side", "restartPolicy": "Always", "restartPolicyRules": rules }] }));
        let sidecar = pod::init_containers(&pod).next().expect("a sidecar").1;
        assert_eq!(after_exit(&pod, Role::Sidecar, sidecar, 42), AfterExit::RestartAll);
        assert_eq!(after_exit(&pod, Role::Sidecar, sidecar, 0), AfterExit::Restart);

        // The main container was killed for it: the pod has not failed.
        let in_sandbox = |view: ContainerView| ContainerView { sandbox: "s".into(), ..view };
        let mut containers = vec![view("side", State::Exited, 42), view("a", State::Exited, 137)];
        containers = containers.into_iter().map(in_sandbox).collect();
        let sandboxes = vec![Sandbox { id: "s".into(), ready: true, ..Default::default() }];
        let mut runtime = RuntimePod { containers, sandboxes, ..Default::default() };
        assert_eq!(phase(&pod, &runtime, true), Phase::Running);
        runtime.containers[0].exit_code = 0;
        assert_eq!(phase(&pod, &runtime, true), Phase::Failed);
    }
}
