//! Replaces this process by a new one of the same program with the same arguments, after everything was stopped in order:
//! for changes that are read at the start, such as a new certificate authority. Pods keep running, as in every restart.

use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use nix::sys::signal::{Signal, raise};

static IS_REQUESTED: AtomicBool = AtomicBool::new(false);

/// Stops this process as SIGTERM does, and starts it again.
pub fn request() {
    IS_REQUESTED.store(true, Ordering::SeqCst);
    if let Err(error) = raise(Signal::SIGTERM) {
        tracing::error!(%error, "cannot restart");
    }
}

pub fn is_requested() -> bool {
    IS_REQUESTED.load(Ordering::SeqCst)
}

/// Starts the program again if that was requested; returns only if it was not, or cannot be done.
pub fn restart_if_requested() -> anyhow::Result<()> {
    if !is_requested() {
        return Ok(());
    }
    // Not `/proc/self/exe`: an upgrade may have replaced the program.
    let program = std::env::current_exe().context("cannot find this program")?;
    let error = std::process::Command::new(program).args(std::env::args_os().skip(1)).exec();
    Err(error).context("cannot start the program again")
}
