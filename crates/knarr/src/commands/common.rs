//! What all commands need: a runtime, a log, and the signal to stop.

use std::future::Future;
use std::sync::Arc;

use anyhow::Context as _;
use knarr_apiserver::kinds::OpenDescriptions;
use knarr_client::LeaderElection;
use knarr_client::kube::Client;
use knarr_descriptions::Descriptions;
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

/// Works until the process is asked to stop; with `elected` only while holding the lease of that name.
pub async fn lead<W, F>(client: Client, lease: &str, elected: bool, work: W) -> anyhow::Result<()>
where
    W: FnOnce() -> F,
    F: Future<Output = ()>,
{
    if !elected {
        tokio::select! {
            () = work() => {}
            stopped = stopped() => stopped?,
        }
        return Ok(());
    }
    let shutdown = async {
        if let Err(error) = stopped().await {
            tracing::error!(%error, "cannot listen for signals");
        }
    };
    election(lease).run(client, shutdown, work).await?;
    Ok(())
}

/// The lease that processes of one kind compete for, each under a name of its own.
fn election(lease: &str) -> LeaderElection {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    LeaderElection::new("kube-system", lease, format!("{}_{}", host.trim(), std::process::id()))
}

/// The name a node goes by: the given one, or the machine's.
pub fn node_name(given: Option<&str>) -> anyhow::Result<String> {
    if let Some(name) = given {
        return Ok(name.to_owned());
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").context("cannot read the machine's name")?;
    Ok(name.trim().to_lowercase())
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

/// What the fields of the built-in kinds mean, unpacked whenever a document is made from it.
pub fn descriptions() -> OpenDescriptions {
    Arc::new(|| match Descriptions::inflate() {
        Ok(descriptions) => {
            Box::new(move |type_name: &str, field: &str| descriptions.get(type_name, field).map(str::to_owned))
        }
        Err(error) => {
            tracing::error!(%error, "the descriptions cannot be unpacked");
            Box::new(|_, _| None)
        }
    })
}
