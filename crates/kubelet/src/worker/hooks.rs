//! What a container wants done right after its start and right before its end.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};

use crate::context::Context;
use crate::probes::{HttpTarget, http_get, resolve_port};

pub struct HookTarget<'a> {
    pub container: &'a Container,
    pub id: &'a str,
    pub addresses: &'a [String],
}

/// Runs to its end, or to the limit. The error is what the event tells.
pub async fn run_hook(
    context: &Context,
    hook: &LifecycleHandler,
    target: &HookTarget<'_>,
    limit: Option<Duration>,
) -> Result<(), String> {
    let work = perform(context, hook, target, limit);
    match limit {
        Some(limit) => tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
            if hook.sleep.is_some() {
                context.metrics.count("kubelet_sleep_action_terminated_early_total", &[]);
            }
            Err("the hook took too long".into())
        }),
        None => work.await,
    }
}

async fn perform(
    context: &Context,
    hook: &LifecycleHandler,
    target: &HookTarget<'_>,
    limit: Option<Duration>,
) -> Result<(), String> {
    if let Some(exec) = &hook.exec {
        let command = exec.command.clone().unwrap_or_default();
        let shown = command.join(" ");
        let answer = context.runtime.exec_sync(target.id, command, limit).await.map_err(|error| error.message())?;
        if answer.exit_code == 0 {
            return Ok(());
        }
        return Err(format!(
            "command '{shown}' exited with {}: {}, message: \"{}\"",
            answer.exit_code,
            String::from_utf8_lossy(&answer.stderr),
            String::from_utf8_lossy(&answer.stdout)
        ));
    }
    if let Some(http) = &hook.http_get {
        let host = http.host.clone().filter(|host| !host.is_empty()).or_else(|| target.addresses.first().cloned());
        let target = HttpTarget {
            scheme: http.scheme.clone().unwrap_or_else(|| "HTTP".into()),
            host: host.ok_or("the pod has no address")?,
            port: resolve_port(&http.port, target.container)?,
            path: http.path.clone().unwrap_or_default(),
            headers: http.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect(),
        };
        let answer = http_get(&target, &format!("kube-lifecycle/{}", knarr_version::RELEASE)).await?;
        return if answer.status < 400 { Ok(()) } else { Err(format!("HTTP status {}", answer.status)) };
    }
    if let Some(sleep) = &hook.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
    Ok(())
}
