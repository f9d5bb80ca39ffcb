//! Kernel settings. Some machines hold some of them read-only: that is told, and life goes on.

use std::path::PathBuf;

/// Sets `net/…` to a value unless it has it. Tells whether the kernel now has it.
pub fn set(name: &str, value: &str) -> bool {
    let path = PathBuf::from("/proc/sys").join(name);
    match std::fs::read_to_string(&path) {
        Ok(now) if now.trim() == value => return true,
        Ok(_) => {}
        Err(error) => {
            tracing::debug!(name, %error, "a kernel setting is not there");
            return false;
        }
    }
    match std::fs::write(&path, value) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(name, value, %error, "a kernel setting cannot be changed");
            false
        }
    }
}
