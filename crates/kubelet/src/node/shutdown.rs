//! Ending pods in order when the host shuts down.
//!
//! systemd lets a program hold a shutdown up for a while and tells when one begins. Both are had through its own tools, so
//! that hosts without systemd need nothing and lose nothing.

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

/// Where systemd is told to wait as long as pods may take, if that is longer than it would.
pub const LOGIND_FILE: &str = "/etc/systemd/logind.conf.d/99-knarr.conf";

/// How long systemd's tools are left alone when they failed: longer each time, as most hosts where they do have none.
const RETRY: Duration = Duration::from_secs(5);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
enum ShutdownError {
    #[error("{tool} can't be used: {reason}")]
    Tool { tool: &'static str, reason: String },
    #[error("{LOGIND_FILE} can't be written: {0}")]
    File(io::Error),
    #[error("systemd holds shutdowns up for {0:?} at most")]
    TooShort(Duration),
    #[error("systemd tells nothing any more")]
    Silent,
}

impl ShutdownError {
    fn tool(tool: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Tool { tool, reason: error.to_string() }
    }
}

/// Runs for as long as the node does. Does nothing where no grace is configured.
pub async fn watch_shutdown(context: Arc<Context>, pods: Arc<Pods>) {
    if context.settings.shutdown_grace.is_zero() {
        return;
    }
    let mut told = String::new();
    let mut pause = RETRY;
    loop {
        let begun = Instant::now();
        if let Err(error) = watch(&context, &pods).await {
            let error = error.to_string();
            // In a shutdown that went on, systemd's own parts end before us.
            if error != told && !pods.is_shutting_down() {
                tracing::warn!(error, "pods are not ended in order at shutdown");
            }
            told = error;
        }
        if begun.elapsed() > LONGEST_RETRY {
            // It worked for a while.
            pause = RETRY;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_RETRY);
    }
}

async fn watch(context: &Context, pods: &Pods) -> Result<(), ShutdownError> {
    make_patient(context.settings.shutdown_grace).await?;
    let held = hold_up()?;
    let mut monitor = listen().map_err(ShutdownError::tool("busctl"))?;
    let output = monitor.stdout.take().ok_or(ShutdownError::Silent)?;
    let act = |begins: bool| async move {
        match begins {
            true => {
                tracing::info!("the host shuts down: pods are ended");
                end_pods(context, pods).await;
            }
            false => {
                tracing::info!("the shutdown was called off");
                pods.set_shutting_down(false);
            }
        }
    };
    follow(BufReader::new(output), held, hold_up, act).await
}

/// Hears of shutdowns. One may go on only when `act` is over: until then it is held up, and again when it was called off.
async fn follow<H, F: Future<Output = ()>>(
    announcements: impl AsyncBufRead + Unpin,
    held: H,
    hold_up: impl Fn() -> Result<H, ShutdownError>,
    act: impl Fn(bool) -> F,
) -> Result<(), ShutdownError> {
    let mut held = Some(held);
    let mut lines = announcements.lines();
    while let Some(line) = lines.next_line().await.map_err(ShutdownError::tool("busctl"))? {
        let Some(begins) = announced(&line) else { continue };
        act(begins).await;
        if begins {
            held = None;
        } else if held.is_none() {
            held = Some(hold_up()?);
        }
    }
    Err(ShutdownError::Silent)
}

/// Lets systemd wait for us as long as pods may take.
async fn make_patient(grace: Duration) -> Result<(), ShutdownError> {
    if longest_delay().await? >= grace {
        return Ok(());
    }
    let folder = Path::new(LOGIND_FILE).parent().unwrap_or(Path::new("/"));
    let text = format!("# Pods may take this long to end.\n[Login]\nInhibitDelayMaxSec={}\n", grace.as_secs());
    tokio::fs::create_dir_all(folder).await.map_err(ShutdownError::File)?;
    tokio::fs::write(LOGIND_FILE, text).await.map_err(ShutdownError::File)?;
    run("systemctl", &["kill", "--signal=HUP", "systemd-logind.service"]).await?;
    // It reads its files when it gets to it, and does not tell.
    let mut pause = Duration::from_millis(100);
    loop {
        let longest = longest_delay().await?;
        match longest >= grace {
            true => return Ok(()),
            false if pause > RETRY => return Err(ShutdownError::TooShort(longest)),
            false => tokio::time::sleep(pause).await,
        }
        pause *= 2;
    }
}

async fn longest_delay() -> Result<Duration, ShutdownError> {
    let (service, object) = ("org.freedesktop.login1", "/org/freedesktop/login1");
    let (interface, property) = ("org.freedesktop.login1.Manager", "InhibitDelayMaxUSec");
    let answer = run("busctl", &["--json=short", "get-property", service, object, interface, property]).await?;
    let value = serde_json::from_str::<serde_json::Value>(&answer).ok().and_then(|answer| answer["data"].as_u64());
    value.map(Duration::from_micros).ok_or(ShutdownError::Tool { tool: "busctl", reason: format!("{answer:?}") })
}

async fn run(tool: &'static str, arguments: &[&str]) -> Result<String, ShutdownError> {
    let ended = Command::new(tool).args(arguments).stdin(Stdio::null()).kill_on_drop(true).output().await;
    let ended = ended.map_err(ShutdownError::tool(tool))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match ended.status.success() {
        true => Ok(text(&ended.stdout)),
        false => Err(ShutdownError::Tool { tool, reason: text(&ended.stderr) }),
    }
}

/// A child that holds the shutdown up for as long as it lives.
fn hold_up() -> Result<Child, ShutdownError> {
    Command::new("systemd-inhibit")
        .args(["--what=shutdown", "--mode=delay", "--who=knarr", "--why=pods are being ended", "cat"])
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

/// The signal carries `true` when a shutdown begins and `false` when it was called off.
fn announced(line: &str) -> Option<bool> {
    let message = serde_json::from_str::<serde_json::Value>(line).ok()?;
    message["payload"]["data"][0].as_bool().filter(|_| message["member"] == "PrepareForShutdown")
}

async fn end_pods(context: &Context, pods: &Pods) {
    pods.set_shutting_down(true);
    let now = || k8s_openapi::jiff::Timestamp::now().as_second() as f64;
    context.metrics.set("kubelet_graceful_shutdown_start_time_seconds", &[], now());
    let settings = &context.settings;
    pods.end_for_shutdown(settings.shutdown_grace, settings.shutdown_grace_critical).await;
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
            assert_eq!(announced(line), expected, "{line}");
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
    async fn a_shutdown_is_held_until_pods_have_ended_and_the_next_one_too() {
        let line = |begins: bool| {
            format!("{{\"member\":\"PrepareForShutdown\",\"payload\":{{\"type\":\"b\",\"data\":[{begins}]}}}}\n")
        };
        let text = [line(true), "noise\n".into(), line(true), line(false), line(false), line(true)].concat();
        let lock = Lock::default();
        let seen = parking_lot::Mutex::new(Vec::new());
        let act = |begins: bool| {
            let (lock, seen) = (&lock, &seen);
            async move {
                tokio::task::yield_now().await;
                seen.lock().push((begins, lock.holders()));
            }
        };
        let outcome = follow(text.as_bytes(), lock.take(), || Ok(lock.take()), act).await;
        assert!(matches!(outcome, Err(ShutdownError::Silent)));
        assert_eq!(*seen.lock(), [(true, 1), (true, 0), (false, 0), (false, 1), (true, 1)]);
        assert_eq!(lock.holders(), 0);
    }
}
