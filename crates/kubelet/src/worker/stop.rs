//! Stops one container: its pre-stop hook first, then the signal, then the kill, within the grace period and two seconds more.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::hooks::{HookTarget, run_hook};
use super::plan::StopReason;
use super::restart::restarts_on_failure;
use crate::context::Context;
use crate::journey_events::{self, pod_step};
use crate::pod;

pub struct Stop {
    pub context: Arc<Context>,
    pub pod: Arc<Pod>,
    pub id: String,
    pub name: String,
    pub addresses: Vec<String>,
    pub grace: i64,
    pub why: StopReason,
    /// The hook already runs or has run: only the grace period became shorter.
    pub hurried: bool,
    /// Notifies it when it may stop, if others stop before.
    pub turn: Option<Arc<Notify>>,
}

/// The minimum time for the process to exit, however short the grace period is or however long the hook and the others took.
const MIN_GRACE: Duration = Duration::from_secs(2);

impl Stop {
    pub async fn run(self) -> Result<(), knarr_cri::CallError> {
        let grace = Duration::from_secs(u64::try_from(self.grace).unwrap_or(0));
        if self.hurried {
            return self.stop(grace).await;
        }
        let message = killing_message(&self.pod, &self.name, &self.why);
        self.context.events.about_container(&self.pod, &self.name, false, "Killing", message);
        let found = pod::find(&self.pod, &self.name);
        let hook = found.as_ref().and_then(|found| found.container.lifecycle.as_ref()?.pre_stop.as_ref());
        let (Some(found), Some(hook), false) = (&found, hook, grace.is_zero()) else { return self.stop(grace).await };
        self.stop_after_hook(&found.container, hook, grace).await
    }

    /// Stops the container when its hook has finished or the grace period is over. A hook that takes longer goes on until
    /// the container is dead.
    async fn stop_after_hook(
        &self,
        container: &Container,
        hook: &LifecycleHandler,
        grace: Duration,
    ) -> Result<(), knarr_cri::CallError> {
        let started = Instant::now();
        let mut running = std::pin::pin!(self.pre_stop(container, hook, grace.saturating_add(MIN_GRACE)));
        if tokio::time::timeout(grace, &mut running).await.is_ok() {
            return self.stop(grace.saturating_sub(started.elapsed())).await;
        }
        if hook.sleep.is_some() {
            self.context.metrics.count("kubelet_sleep_action_terminated_early_total", &[]);
        }
        let mut stop = std::pin::pin!(self.stop(Duration::ZERO));
        tokio::select! {
            biased;
            () = running => stop.await,
            stopped = &mut stop => {
                self.report_failed_hook("the container was stopped first");
                stopped
            }
        }
    }

    /// Runs the pre-stop hook and reports its failure.
    async fn pre_stop(&self, container: &Container, hook: &LifecycleHandler, limit: Duration) {
        let namespace = pod::namespace(&self.pod);
        let target = HookTarget { namespace, container, id: &self.id, addresses: &self.addresses };
        let step = journey_events::hook(&self.pod, &self.name, "preStop");
        let ran = run_hook(&self.context, hook, &target, Some(limit)).await;
        journey_events::outcome(&step, &ran);
        if let Err(why) = ran {
            self.report_failed_hook(&why);
        }
    }

    fn report_failed_hook(&self, why: &str) {
        tracing::debug!(why, pod = pod::title(&self.pod), container = self.name, "a pre-stop hook failed");
        self.context.events.about_container(&self.pod, &self.name, true, "FailedPreStopHook", "PreStopHook failed");
    }

    /// Sends the signal when it is the container's turn, and kills it after the rest of the grace period.
    async fn stop(&self, grace: Duration) -> Result<(), knarr_cri::CallError> {
        let grace = self.wait_for_turn(grace).await.max(MIN_GRACE);
        let _step = pod_step!("container-stopped", &self.pod, container = self.name.as_str());
        match self.context.runtime.stop_container(&self.id, grace).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other,
        }
    }

    /// Waits until others have stopped, within the grace period. Returns the rest of it.
    async fn wait_for_turn(&self, grace: Duration) -> Duration {
        let Some(turn) = &self.turn else { return grace };
        let started = Instant::now();
        // After the grace period, the container is stopped before its turn.
        let _ = tokio::time::timeout(grace, turn.notified()).await;
        grace.saturating_sub(started.elapsed())
    }
}

/// Whether a main container is stopped to be started again. Its exit code does not matter then.
pub fn starts_again(pod: &Pod, name: &str, why: &StopReason) -> bool {
    let is_reason =
        matches!(why, StopReason::ImageChanged | StopReason::Liveness | StopReason::Startup | StopReason::Resize);
    let container = pod::main_containers(pod).find(|container| container.name == name);
    is_reason && container.is_some_and(|container| may_restart(pod, container, why))
}

fn may_restart(pod: &Pod, container: &Container, why: &StopReason) -> bool {
    *why == StopReason::ImageChanged || restarts_on_failure(pod, container)
}

/// The event message for a container that is stopped.
fn killing_message(pod: &Pod, name: &str, why: &StopReason) -> String {
    let failed = match why {
        StopReason::PodTerminates => return format!("Stopping container {name}"),
        StopReason::SandboxGone => return format!("Container {name} has no sandbox any more, will be restarted"),
        StopReason::Resize => return format!("Container {name} resize requires restart"),
        StopReason::RestartAll => return "killing".to_string(),
        StopReason::Liveness => "failed liveness probe",
        StopReason::Startup => "failed startup probe",
        StopReason::ImageChanged => "definition changed",
    };
    let Some(container) = pod::main_containers(pod).find(|container| container.name == name) else {
        return format!("Init container {name} {failed}");
    };
    match may_restart(pod, container, why) {
        true => format!("Container {name} {failed}, will be restarted"),
        false => format!("Container {name} {failed}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_fails_a_probe_or_changes_starts_again_whatever_its_exit_code() {
        let pod = |policy: &str| -> Pod {
            serde_json::from_value(json!({ "spec": { "restartPolicy": policy, "containers": [{ "name": "a" }] } }))
                .expect("a pod")
        };
        for (policy, why, expected) in [
            ("OnFailure", StopReason::Liveness, true),
            ("OnFailure", StopReason::Startup, true),
            ("Never", StopReason::Liveness, false),
            ("Never", StopReason::ImageChanged, true),
            ("Always", StopReason::PodTerminates, false),
            ("Always", StopReason::SandboxGone, false),
        ] {
            assert_eq!(starts_again(&pod(policy), "a", &why), expected, "{policy} {why:?}");
        }
    }

    #[test]
    fn events_say_why_a_container_is_stopped_and_what_comes_of_it() {
        let pod = |policy: &str, names: &[&str]| -> Pod {
            let containers: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
            serde_json::from_value(json!({ "spec": { "restartPolicy": policy, "containers": containers,
                "initContainers": [{ "name": "s", "restartPolicy": "Always" }] } }))
            .expect("a pod")
        };
        let cases = [
            ("Always", vec!["a"], "a", StopReason::PodTerminates, "Stopping container a"),
            ("Always", vec!["a"], "a", StopReason::Liveness, "Container a failed liveness probe, will be restarted"),
            ("OnFailure", vec!["a"], "a", StopReason::Startup, "Container a failed startup probe, will be restarted"),
            ("Never", vec!["a", "b"], "a", StopReason::Startup, "Container a failed startup probe"),
            ("Never", vec!["a"], "a", StopReason::ImageChanged, "Container a definition changed, will be restarted"),
            ("Always", vec!["a"], "s", StopReason::Startup, "Init container s failed startup probe"),
            ("Always", vec!["a"], "a", StopReason::RestartAll, "killing"),
        ];
        for (policy, names, name, why, expected) in cases {
            assert_eq!(killing_message(&pod(policy, &names), name, &why), expected, "{policy} {names:?} {why:?}");
        }
    }
}
