//! Runs nftables transactions through `nft`: all of a transaction takes effect, or none.

use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Why nft failed.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("cannot run nft: {0}")]
    Run(#[from] std::io::Error),
    #[error("nft rejected the rules: {0}")]
    Refused(String),
}

/// Runs commands as one transaction.
pub async fn run(commands: String) -> Result<(), KernelError> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // If nft exits early, its stderr says why.
        let _ = input.write_all(commands.as_bytes()).await;
    }
    let output = child.wait_with_output().await?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(KernelError::Refused(message.lines().take(6).collect::<Vec<_>>().join(" | ")))
}

/// Removes all rules of the proxy.
pub async fn clear() -> Result<(), KernelError> {
    let table = super::rules::TABLE;
    run(["ip", "ip6"].map(|ip| format!("add table {ip} {table}\ndelete table {ip} {table}\n")).concat()).await
}
