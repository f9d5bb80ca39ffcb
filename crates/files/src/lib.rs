//! Files that survive a loss of power.

use std::fs::File;
use std::io;
use std::path::Path;

/// Renames a file and makes its new name durable. The file itself must have been synced before: otherwise the name may
/// survive without the content.
pub fn rename_durably(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_replaces_another() {
        let directory = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| directory.path().join(name));
        std::fs::write(&old, "1").unwrap();
        std::fs::write(&new, "2").unwrap();
        rename_durably(&new, &old).unwrap();
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "2");
        assert!(!new.exists());
        assert!(rename_durably(&new, &old).is_err());
    }
}
