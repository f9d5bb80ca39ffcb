//! Directories that other users of the host can't enter, whatever the umask.
//!
//! Inside containers every user can access volumes, which may hold setuid programs. On the host only root may reach
//! them.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

const MODE: u32 = 0o750;

/// Creates the missing directories of the path. Existing ones are left unchanged.
pub fn create_all(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(MODE).create(path)
}

/// Creates the directory, or removes other users' access to an existing one.
pub fn close(path: &Path) -> io::Result<()> {
    create_all(path)?;
    let mode = std::fs::metadata(path)?.permissions().mode() & 0o7777;
    match mode & MODE == mode {
        true => Ok(()),
        false => std::fs::set_permissions(path, Permissions::from_mode(mode & MODE)),
    }
}

/// Creates a log directory and its parents. The log root's permissions decide who may enter.
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
        let directory = tempfile::tempdir().expect("a directory");
        let open = directory.path().join("open");
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
