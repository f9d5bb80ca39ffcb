//! `knarr stop`: ends the server or agent; pods go on running.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::{running, service};

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Where it keeps its files.
    #[arg(long, default_value = "/var/lib/knarr")]
    pub data_dir: PathBuf,
    /// How many seconds to wait for its end.
    #[arg(long, default_value_t = 60)]
    pub timeout: u64,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    // Asked directly, systemd would start it again.
    let was_service = service::stop(&arguments.data_dir)?;
    let was_running = running::stop(&arguments.data_dir, Duration::from_secs(arguments.timeout))?;
    let outcome = if was_service || was_running { "stopped; its pods go on running" } else { "was not running" };
    println!("Knarr on {} {outcome}", arguments.data_dir.display());
    Ok(())
}
