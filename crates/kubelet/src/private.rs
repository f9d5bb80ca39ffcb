//! Directories that other users of the host can't enter, whatever the umask.
//!
//! What pods write is theirs to protect inside containers only: volumes are open to every user there, and may hold setuid
//! programs. On the host nobody but root may reach them.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

const MODE: u32 = 0o750;

/// Creates what is missing of the path. What exists stays as it is.
pub fn create_all(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(MODE).create(path)
}

/// Creates the directory, or takes from an existing one the access that others have.
pub fn close(path: &Path) -> io::Result<()> {
    create_all(path)?;
    let mode = std::fs::metadata(path)?.permissions().mode() & 0o7777;
    match mode & MODE == mode {
        true => Ok(()),
        false => std::fs::set_permissions(path, Permissions::from_mode(mode & MODE)),
    }
}

/// Creates a directory of logs with everything above it. Who may enter is up to the root of all logs.
pub fn create_log_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("there").permissions().mode() & 0o7777
    }

    #[test]
    fn others_have_no_access() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = folder.path().join("open");
        std::fs::create_dir(&open).expect("made");
        std::fs::set_permissions(&open, Permissions::from_mode(0o1777)).expect("set");
        close(&open).expect("closed");
        assert_eq!(mode(&open), 0o750);
        std::fs::set_permissions(&open, Permissions::from_mode(0o700)).expect("set");
        close(&open).expect("closed");
        assert_eq!(mode(&open), 0o700, "never more than there was");
        create_all(&open.join("a/b")).expect("made");
        for path in ["a", "a/b"] {
            assert_eq!(mode(&open.join(path)) & 0o027, 0, "{path}");
        }
    }
}
