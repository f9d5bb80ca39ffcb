//! `hostPath` volumes: checks that the path has the type that the pod specifies.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::VolumeError;

pub fn check(path: &str, kind: &str) -> Result<PathBuf, VolumeError> {
    let path = PathBuf::from(path);
    match kind {
        "DirectoryOrCreate" if !path.exists() => {
            std::fs::create_dir_all(&path).map_err(VolumeError::file(&path))?;
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .map_err(VolumeError::file(&path))?;
        }
        "FileOrCreate" if !path.exists() => {
            std::fs::OpenOptions::new()
                .create(true)
                .append(true)
                .mode(0o644)
                .open(&path)
                .map_err(VolumeError::file(&path))?;
        }
        _ => {}
    }
    let is = |test: fn(&Metadata) -> bool| std::fs::metadata(&path).is_ok_and(|metadata| test(&metadata));
    let (fits, what) = match kind {
        "Directory" | "DirectoryOrCreate" => (is(Metadata::is_dir), "a directory"),
        "File" | "FileOrCreate" => (is(Metadata::is_file), "a file"),
        "Socket" => (is(|metadata| metadata.file_type().is_socket()), "a socket file"),
        "CharDevice" => (is(|metadata| metadata.file_type().is_char_device()), "a character device"),
        "BlockDevice" => (is(|metadata| metadata.file_type().is_block_device()), "a block device"),
        _ => (true, ""),
    };
    if fits { Ok(path) } else { Err(refused(&path, what)) }
}

fn refused(path: &Path, what: &str) -> VolumeError {
    VolumeError::Path(format!("hostPath type check failed: {} is not {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_checked_and_made() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        let directory = directory.path().join("a/b");
        let cases = [
            (&file, "File", false),
            (&file, "FileOrCreate", true),
            (&file, "File", true),
            (&file, "Directory", false),
            (&file, "Socket", false),
            (&directory, "Directory", false),
            (&directory, "DirectoryOrCreate", true),
            (&directory, "Directory", true),
            (&directory, "", true),
        ];
        for (path, kind, expected) in cases {
            assert_eq!(check(&path.to_string_lossy(), kind).is_ok(), expected, "{kind} {}", path.display());
        }
        assert!(check("/dev/null", "CharDevice").is_ok());
    }
}
