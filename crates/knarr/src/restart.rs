//! Replaces this process by a new one of the same program with the same arguments, after everything was stopped in order:
//! for changes that are read at the start, such as a new certificate authority. Pods keep running, as in every restart.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
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
    let program = current_program(std::env::current_exe().context("cannot find this program")?);
    let error = std::process::Command::new(program).args(std::env::args_os().skip(1)).exec();
    Err(error).context("cannot start the program again")
}

/// The program at this one's path. The kernel marks the path of a program that an upgrade has replaced.
fn current_program(own: PathBuf) -> PathBuf {
    match own.to_str().and_then(|path| path.strip_suffix(" (deleted)")) {
        Some(path) if !own.exists() => PathBuf::from(path),
        _ => own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_replaced_is_found() {
        assert_eq!(current_program("/usr/bin/knarr (deleted)".into()), PathBuf::from("/usr/bin/knarr"));
        assert_eq!(current_program("/usr/bin/knarr".into()), PathBuf::from("/usr/bin/knarr"));
    }
}
