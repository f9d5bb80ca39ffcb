//! What all commands need: a runtime, a log, and the signal to stop.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use knarr_apiserver::kinds::OpenDescriptions;
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

/// The name a node goes by: the given one, or the machine's.
pub fn node_name(given: Option<&str>) -> anyhow::Result<String> {
    if let Some(name) = given {
        return Ok(name.to_owned());
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").context("cannot read the machine's name")?;
    Ok(name.trim().to_lowercase())
}

/// Where Knarr keeps its files when nothing else is said, and where its settings are.
pub const DATA: &str = "/var/lib/knarr";
pub const CONFIGURATION: &str = "/etc/knarr";

/// The administrator's kubeconfig of a server with this data directory.
pub fn kubeconfig(data: &Path) -> PathBuf {
    data.join("kubeconfig.yaml")
}

/// Rows under their headings, each column as wide as it needs to be.
pub fn table<const COLUMNS: usize>(headings: [&str; COLUMNS], rows: &[[String; COLUMNS]]) -> String {
    let headings = headings.map(str::to_owned);
    let all = || std::iter::once(&headings).chain(rows);
    let widths: [usize; COLUMNS] =
        std::array::from_fn(|column| all().map(|row| row[column].chars().count()).max().unwrap_or_default());
    let mut text = String::new();
    for row in all() {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
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
