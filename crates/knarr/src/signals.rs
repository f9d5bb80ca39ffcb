//! Waits for the signal to stop.

use knarr_supervisor::Registry;
use tokio::signal::unix::{SignalKind, signal};

/// Waits for a signal to stop.
pub async fn stopped() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => {}
        result = tokio::signal::ctrl_c() => result?,
    }
    Ok(())
}

/// Waits for a signal to stop, or for the failure of a component without which the process cannot go on.
pub async fn stopped_or_failed(registry: &Registry) -> anyhow::Result<()> {
    tokio::select! {
        signal = stopped() => signal,
        failure = registry.failed() => Err(failure.into()),
    }
}
