//! Waits for the signal to stop.

use std::sync::OnceLock;

use knarr_supervisor::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Waits for a signal to stop. One that arrives after the first call is remembered: a process that starts waits for it now and
/// then, and from the first time on, the signal no longer ends it by itself.
pub async fn stopped() -> anyhow::Result<()> {
    static STOPPED: OnceLock<watch::Receiver<bool>> = OnceLock::new();
    let known = match STOPPED.get() {
        Some(known) => known,
        None => {
            let listening = listen()?;
            STOPPED.get_or_init(|| listening)
        }
    };
    known.clone().wait_for(|is_stopped| *is_stopped).await?;
    Ok(())
}

fn listen() -> anyhow::Result<watch::Receiver<bool>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (sender, receiver) = watch::channel(false);
    knarr_supervisor::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        sender.send_replace(true);
    });
    Ok(receiver)
}

/// Waits for a signal to stop, or for the failure of a component without which the process cannot go on.
pub async fn stopped_or_failed(registry: &Registry) -> anyhow::Result<()> {
    tokio::select! {
        signal = stopped() => signal,
        failure = registry.failed() => Err(failure.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::sys::signal::{Signal, raise};

    #[tokio::test]
    async fn a_signal_between_two_waits_is_not_lost() {
        let waited = tokio::time::timeout(Duration::from_millis(10), super::stopped()).await;
        assert!(waited.is_err(), "nobody has sent a signal");
        raise(Signal::SIGTERM).unwrap();
        for _ in 0..2 {
            super::stopped().await.unwrap();
        }
    }
}
