//! Runs nftables transactions from code outside a tokio runtime.

use std::io::Write;
use std::process::{Command, Stdio};

#[derive(Debug, thiserror::Error)]
pub enum NftError {
    #[error("cannot run nft")]
    Run(#[from] std::io::Error),
    #[error("nft rejected the rules: {0}")]
    Refused(String),
}

/// Runs commands as one transaction: all take effect, or none.
pub fn run(commands: &str) -> Result<(), NftError> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // If nft exits early, its stderr says why.
        let _ = input.write_all(commands.as_bytes());
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(NftError::Refused(message.lines().take(6).collect::<Vec<_>>().join(" | ")))
}
