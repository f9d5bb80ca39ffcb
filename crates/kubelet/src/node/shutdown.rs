//! Ending pods in order when the machine shuts down.
//!
//! systemd lets a program hold a shutdown up for a while and tells when one begins. Both are had through its own tools, so
//! that hosts without systemd need nothing and lose nothing.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::context::Context;
use crate::pods::Pods;

/// Runs for as long as the node does. Does nothing where no grace is configured.
pub async fn watch_shutdown(context: Arc<Context>, pods: Arc<Pods>) {
    if context.settings.shutdown_grace.is_zero() {
        return;
    }
    let (inhibitor, mut monitor) = match (hold_up(), listen()) {
        (Ok(inhibitor), Ok(monitor)) => (inhibitor, monitor),
        (Err(error), _) | (_, Err(error)) => {
            tracing::warn!(%error, "systemd's tools can't be used: pods are not ended in order at shutdown");
            return;
        }
    };
    let Some(output) = monitor.stdout.take() else { return };
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if is_beginning(&line) {
            tracing::info!("the machine shuts down: pods are ended");
            end_pods(&context, &pods).await;
            // Only now the shutdown may go on.
            drop(inhibitor);
            return;
        }
    }
}

/// A child that holds the shutdown up for as long as it lives.
fn hold_up() -> std::io::Result<Child> {
    Command::new("systemd-inhibit")
        .args(["--what=shutdown", "--mode=delay", "--who=knarr", "--why=pods are being ended", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
}

fn listen() -> std::io::Result<Child> {
    Command::new("busctl")
        .args(["monitor", "--json=short", "--match", "type='signal',member='PrepareForShutdown'"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
}

/// The signal carries `true` when a shutdown begins and `false` when it was called off.
fn is_beginning(line: &str) -> bool {
    let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { return false };
    message["member"] == "PrepareForShutdown" && message["payload"]["data"][0] == true
}

/// Ordinary pods first, critical ones with the time kept for them.
async fn end_pods(context: &Context, pods: &Pods) {
    pods.begin_shutdown();
    let now = || k8s_openapi::jiff::Timestamp::now().as_second() as f64;
    context.metrics.set("kubelet_graceful_shutdown_start_time_seconds", &[], now());
    let critical = context.settings.shutdown_grace_critical.min(context.settings.shutdown_grace);
    let ordinary = context.settings.shutdown_grace - critical;
    for (wanted, grace) in [(false, ordinary), (true, critical)] {
        pods.end_for_shutdown(wanted, grace);
        let over = pods.wait_until_ended(wanted);
        if tokio::time::timeout(grace + Duration::from_secs(1), over).await.is_err() {
            tracing::warn!(critical = wanted, "some pods did not end in the time they had");
        }
    }
    context.metrics.set("kubelet_graceful_shutdown_end_time_seconds", &[], now());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_of_a_shutdown_counts() {
        for (line, expected) in [
            (r#"{"member":"PrepareForShutdown","payload":{"type":"b","data":[true]}}"#, true),
            (r#"{"member":"PrepareForShutdown","payload":{"type":"b","data":[false]}}"#, false),
            (r#"{"member":"Other","payload":{"type":"b","data":[true]}}"#, false),
            ("noise", false),
        ] {
            assert_eq!(is_beginning(line), expected, "{line}");
        }
    }
}
