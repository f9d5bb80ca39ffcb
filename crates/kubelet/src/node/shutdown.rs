//! Terminates pods in order when the host shuts down.
//!
//! A systemd inhibitor lock delays the shutdown, and a D-Bus signal announces it. Both are used through systemd's own
//! tools, so that hosts without systemd need nothing.

use std::future::Future;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::context::Context;
use crate::pods::Pods;

/// The drop-in that raises systemd's maximum inhibitor delay to the pods' grace period.
pub const LOGIND_FILE: &str = "/etc/systemd/logind.conf.d/99-knarr.conf";

/// Backoff after a failure of systemd's tools, which most failing hosts don't have at all.
const INITIAL_BACKOFF: Duration = Duration::from_secs(5);
const MAX_BACKOFF: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
enum ShutdownError {
    #[error("cannot run {tool}: {reason}")]
    Tool { tool: &'static str, reason: String },
    #[error("cannot write {LOGIND_FILE}: {0}")]
    File(io::Error),
    #[error("systemd delays shutdowns by at most {0:?}")]
    TooShort(Duration),
    #[error("the stream of systemd's signals output")]
    Silent,
}

impl ShutdownError {
    fn tool(tool: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Tool { tool, reason: error.to_string() }
    }
}

/// Runs for as long as the node does.
pub async fn watch_shutdown(context: Arc<Context>, pods: Arc<Pods>) {
    let mut last_error = String::new();
    let mut backoff = INITIAL_BACKOFF;
    loop {
        let started = Instant::now();
        if let Err(error) = watch(&context, &pods).await {
            let error = error.to_string();
            // During a shutdown systemd's own services stop before us.
            if error != last_error && !pods.is_shutting_down() {
                tracing::warn!(error, "cannot watch for shutdowns: pods will not be terminated in order");
            }
            last_error = error;
        }
        if started.elapsed() > MAX_BACKOFF {
            // It worked for some time before it failed.
            backoff = INITIAL_BACKOFF;
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}

async fn watch(context: &Context, pods: &Pods) -> Result<(), ShutdownError> {
    raise_delay_limit(context.settings.shutdown.iter().map(|period| period.grace).sum()).await?;
    let lock = inhibit()?;
    let mut monitor = listen().map_err(ShutdownError::tool("busctl"))?;
    let output = monitor.stdout.take().ok_or(ShutdownError::Silent)?;
    let act = |starts: bool| async move {
        match starts {
            true => {
                tracing::info!("the host shuts down: terminating pods");
                terminate_pods(context, pods).await;
            }
            false => {
                tracing::info!("the shutdown was cancelled");
                pods.set_shutting_down(false);
            }
        }
    };
    handle_signals(BufReader::new(output), lock, inhibit, act).await
}

/// Handles shutdown signals. The lock is released only when `act` is done, and acquired again after a cancelled
/// shutdown.
async fn handle_signals<H, F: Future<Output = ()>>(
    signals: impl AsyncBufRead + Unpin,
    lock: H,
    inhibit: impl Fn() -> Result<H, ShutdownError>,
    act: impl Fn(bool) -> F,
) -> Result<(), ShutdownError> {
    let mut lock = Some(lock);
    let mut lines = signals.lines();
    while let Some(line) = lines.next_line().await.map_err(ShutdownError::tool("busctl"))? {
        let Some(starts) = parse_signal(&line) else { continue };
        act(starts).await;
        if starts {
            lock = None;
        } else if lock.is_none() {
            lock = Some(inhibit()?);
        }
    }
    Err(ShutdownError::Silent)
}

/// Raises systemd's maximum inhibitor delay to the pods' grace period.
async fn raise_delay_limit(grace: Duration) -> Result<(), ShutdownError> {
    if max_delay().await? >= grace {
        return Ok(());
    }
    let directory = Path::new(LOGIND_FILE).parent().unwrap_or(Path::new("/"));
    let text = format!(
        "# Pods may take this long to terminate.
[Login]\nInhibitDelayMaxSec={}\n",
        grace.as_secs()
    );
    tokio::fs::create_dir_all(directory).await.map_err(ShutdownError::File)?;
    tokio::fs::write(LOGIND_FILE, text).await.map_err(ShutdownError::File)?;
    run("systemctl", &["kill", "--signal=HUP", "systemd-logind.service"]).await?;
    // systemd reloads its files asynchronously and does not report when.
    let mut backoff = Duration::from_millis(100);
    loop {
        let current = max_delay().await?;
        match current >= grace {
            true => return Ok(()),
            false if backoff > INITIAL_BACKOFF => return Err(ShutdownError::TooShort(current)),
            false => tokio::time::sleep(backoff).await,
        }
        backoff *= 2;
    }
}

async fn max_delay() -> Result<Duration, ShutdownError> {
    let (service, object) = ("org.freedesktop.login1", "/org/freedesktop/login1");
    let (interface, property) = ("org.freedesktop.login1.Manager", "InhibitDelayMaxUSec");
    let response = run("busctl", &["--json=short", "get-property", service, object, interface, property]).await?;
    let value =
        serde_json::from_str::<serde_json::Value>(&response).ok().and_then(|response| response["data"].as_u64());
    value.map(Duration::from_micros).ok_or(ShutdownError::Tool { tool: "busctl", reason: format!("{response:?}") })
}

async fn run(tool: &'static str, arguments: &[&str]) -> Result<String, ShutdownError> {
    let output = Command::new(tool).args(arguments).stdin(Stdio::null()).kill_on_drop(true).output().await;
    let output = output.map_err(ShutdownError::tool(tool))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(ShutdownError::Tool { tool, reason: text(&output.stderr) }),
    }
}

/// A child process that delays the shutdown for as long as it runs.
fn inhibit() -> Result<Child, ShutdownError> {
    Command::new("systemd-inhibit")
        .args(["--what=shutdown", "--mode=delay", "--who=knarr", "--why=pods are being terminated", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(ShutdownError::tool("systemd-inhibit"))
}

fn listen() -> io::Result<Child> {
    Command::new("busctl")
        .args(["monitor", "--json=short", "--match", "type='signal',member='PrepareForShutdown'"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
}

/// The signal carries `true` when a shutdown starts and `false` when it was cancelled.
fn parse_signal(line: &str) -> Option<bool> {
    let message = serde_json::from_str::<serde_json::Value>(line).ok()?;
    message["payload"]["data"][0].as_bool().filter(|_| message["member"] == "PrepareForShutdown")
}

async fn terminate_pods(context: &Context, pods: &Pods) {
    pods.set_shutting_down(true);
    let now = || k8s_openapi::jiff::Timestamp::now().as_second() as f64;
    context.metrics.set("kubelet_graceful_shutdown_start_time_seconds", &[], now());
    pods.terminate_for_shutdown(&context.settings.shutdown).await;
    context.metrics.set("kubelet_graceful_shutdown_end_time_seconds", &[], now());
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn shutdowns_are_announced_and_called_off() {
        for (line, expected) in [
            (r#"{"member":"PrepareForShutdown","payload":{"type":"b","data":[true]}}"#, Some(true)),
            (r#"{"member":"PrepareForShutdown","payload":{"type":"b","data":[false]}}"#, Some(false)),
            (r#"{"member":"Other","payload":{"type":"b","data":[true]}}"#, None),
            ("noise", None),
        ] {
            assert_eq!(parse_signal(line), expected, "{line}");
        }
    }

    /// systemd's lock: how many hold it.
    #[derive(Clone, Default)]
    struct Lock(Arc<AtomicUsize>);

    impl Lock {
        fn take(&self) -> Held {
            self.0.fetch_add(1, Ordering::Relaxed);
            Held(self.clone())
        }

        fn holders(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    struct Held(Lock);

    impl Drop for Held {
        fn drop(&mut self) {
            self.0.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn a_shutdown_waits_for_pods_and_so_does_the_next() {
        let line = |starts: bool| {
            format!("{{\"member\":\"PrepareForShutdown\",\"payload\":{{\"type\":\"b\",\"data\":[{starts}]}}}}\n")
        };
        let text = [line(true), "noise\n".into(), line(true), line(false), line(false), line(true)].concat();
        let lock = Lock::default();
        let seen = parking_lot::Mutex::new(Vec::new());
        let act = |starts: bool| {
            let (lock, seen) = (&lock, &seen);
            async move {
                tokio::task::yield_now().await;
                seen.lock().push((starts, lock.holders()));
            }
        };
        let outcome = handle_signals(text.as_bytes(), lock.take(), || Ok(lock.take()), act).await;
        assert!(matches!(outcome, Err(ShutdownError::Silent)));
        assert_eq!(*seen.lock(), [(true, 1), (true, 0), (false, 0), (false, 1), (true, 1)]);
        assert_eq!(lock.holders(), 0);
    }
}
