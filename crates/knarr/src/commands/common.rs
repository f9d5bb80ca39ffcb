//! What all commands need: a runtime, a log, and the signal to stop.

use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};

/// Logs go to standard error; `KNARR_LOG` chooses what is logged.
pub fn start_logging() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("KNARR_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    // A second call finds a log that works already.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}

/// Runs a command to its end on a runtime with a thread for each processor.
pub fn block_on(command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(command)
}

/// Waits until the process is asked to stop.
pub async fn stopped() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => {}
        result = tokio::signal::ctrl_c() => result?,
    }
    Ok(())
}
