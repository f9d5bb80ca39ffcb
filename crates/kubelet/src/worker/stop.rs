//! Stopping one container: its hook first, then the signal, then the kill, all within its grace.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;

use super::hooks::{HookTarget, run_hook};
use super::plan::Why;
use crate::context::Context;
use crate::pod;
use crate::trail::{self, pod_step};

pub struct Stop {
    pub context: Arc<Context>,
    pub pod: Arc<Pod>,
    pub id: String,
    pub name: String,
    pub addresses: Vec<String>,
    pub grace: i64,
    pub why: Why,
    /// The hook runs already, or has run: only the time became shorter.
    pub hurried: bool,
}

/// However long the hook took, the process gets this long to end.
const LEAST_AFTER_HOOK: Duration = Duration::from_secs(2);

impl Stop {
    pub async fn run(self) -> Result<(), knarr_cri::CallError> {
        let context = &self.context;
        let mut grace = Duration::from_secs(u64::try_from(self.grace).unwrap_or(0));
        if !self.hurried {
            let message = self.message();
            context.container_event(&self.pod, &self.name, false, "Killing", message);
            grace = self.pre_stop(grace).await;
        }
        let _step = pod_step!("container-stopped", &self.pod, container = self.name.as_str());
        match context.runtime.stop_container(&self.id, grace).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other,
        }
    }

    fn message(&self) -> String {
        let name = &self.name;
        match self.why {
            Why::PodEnds => format!("Stopping container {name}"),
            Why::Liveness => format!("Container {name} failed liveness probe, will be restarted"),
            Why::Startup => format!("Container {name} failed startup probe, will be restarted"),
            Why::ImageChanged => {
                format!("Container {name} definition changed, will be restarted")
            }
            Why::SandboxGone => format!("Container {name} has no sandbox any more, will be restarted"),
            Why::Resize => format!("Container {name} resize requires restart"),
            Why::RestartAll => format!("Container {name} is restarted with all containers of its pod"),
        }
    }

    /// What is left of the grace.
    async fn pre_stop(&self, grace: Duration) -> Duration {
        let Some(found) = pod::find(&self.pod, &self.name) else { return grace };
        let hook = found.container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
        let Some(hook) = hook.filter(|_| !grace.is_zero()) else { return grace };
        let begun = Instant::now();
        let target = HookTarget { container: &found.container, id: &self.id, addresses: &self.addresses };
        let step = trail::hook(&self.pod, &self.name, "preStop");
        let ran = run_hook(&self.context, hook, &target, Some(grace)).await;
        trail::outcome(&step, &ran);
        drop(step);
        if let Err(why) = ran {
            tracing::debug!(why, pod = pod::title(&self.pod), container = self.name, "a pre-stop hook failed");
            self.context.container_event(&self.pod, &self.name, true, "FailedPreStopHook", "PreStopHook failed");
        }
        grace.saturating_sub(begun.elapsed()).max(LEAST_AFTER_HOOK)
    }
}
