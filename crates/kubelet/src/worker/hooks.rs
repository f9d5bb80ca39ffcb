//! Runs the post-start and pre-stop hooks of a container.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};

use crate::context::Context;
use crate::probes::{HttpTarget, http_get, resolve_port};

/// Bytes of each output of a hook's command that its error shows.
const MAX_OUTPUT: usize = 2 << 10;

pub struct HookTarget<'a> {
    pub namespace: &'a str,
    pub container: &'a Container,
    pub id: &'a str,
    pub addresses: &'a [String],
}

/// Runs a hook to completion. The runtime ends a command at the limit. The error is the event's message.
pub async fn run_hook(
    context: &Context,
    hook: &LifecycleHandler,
    target: &HookTarget<'_>,
    limit: Option<Duration>,
) -> Result<(), String> {
    if let Some(exec) = &hook.exec {
        let command = exec.command.clone().unwrap_or_default();
        let rendered = command.join(" ");
        let response = context.runtime.exec_sync(target.id, command, limit, MAX_OUTPUT).await;
        let response = response.map_err(|error| error.message())?;
        if response.exit_code == 0 {
            return Ok(());
        }
        let shown = |output: &[u8]| String::from_utf8_lossy(output).into_owned();
        return Err(format!(
            "command '{rendered}' exited with {}: {}, message: \"{}\"",
            response.exit_code,
            shown(&response.stderr),
            shown(&response.stdout)
        ));
    }
    if let Some(http) = &hook.http_get {
        let host = http.host.clone().filter(|host| !host.is_empty()).or_else(|| target.addresses.first().cloned());
        let target = HttpTarget {
            namespace: target.namespace.to_owned(),
            scheme: http.scheme.clone().unwrap_or_else(|| "HTTP".into()),
            host: host.ok_or("the pod has no address")?,
            port: resolve_port(&http.port, target.container)?,
            path: http.path.clone().unwrap_or_default(),
            headers: http.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect(),
        };
        let response = http_get(&target, &format!("kube-lifecycle/{}", knarr_version::RELEASE)).await?;
        return if response.status < 400 { Ok(()) } else { Err(format!("HTTP status {}", response.status)) };
    }
    if let Some(sleep) = &hook.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
    Ok(())
}
