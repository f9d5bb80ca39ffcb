//! `knarr stop`: stops the server or agent; pods keep running.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::{data_directory_lock, service};

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Data directory.
    #[arg(long, default_value = "/var/lib/knarr")]
    pub data_dir: PathBuf,
    /// Seconds to wait for it to stop.
    #[arg(long, default_value_t = 60)]
    pub timeout: u64,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    // Stopped directly, systemd would restart it.
    let was_service = service::stop(&arguments.data_dir)?;
    let was_running = data_directory_lock::stop(&arguments.data_dir, Duration::from_secs(arguments.timeout))?;
    let outcome = if was_service || was_running { "stopped; its pods keep running" } else { "was not running" };
    println!("Knarr on {} {outcome}", arguments.data_dir.display());
    Ok(())
}
