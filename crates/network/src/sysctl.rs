//! Kernel parameters. Some hosts mount some of them read-only: that is logged, and not an error.

use std::path::PathBuf;

/// Sets `net/…` to a value unless it has it. Returns whether the kernel now has it.
pub fn set(name: &str, value: &str) -> bool {
    let path = PathBuf::from("/proc/sys").join(name);
    match std::fs::read_to_string(&path) {
        Ok(now) if now.trim() == value => return true,
        Ok(_) => {}
        Err(error) => {
            tracing::debug!(name, %error, "a kernel parameter does not exist");
            return false;
        }
    }
    match std::fs::write(&path, value) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(name, value, %error, "cannot set a kernel parameter");
            false
        }
    }
}
