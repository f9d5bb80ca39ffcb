//! The files of a step and their installation. All of them are saved in one pending file first and installed at the next start,
//! before anything reads them. A crash in between neither loses files nor mixes old and new ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use crate::servers::member::write_private;

/// The files below the data directory that a rollout may write.
const ALLOWED: [&str; 3] = ["pki/ca.crt", "pki/ca.key", "pki/ca-cross.crt"];
/// The encryption configuration; a flag of the server may choose another path for it.
pub const ENCRYPTION: &str = "encryption.yaml";

/// Contents by path; `None` is a file that must not exist.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files(pub BTreeMap<String, Option<String>>);

impl Files {
    /// Whether the files are installed.
    pub fn are_in(&self, data: &Path, encryption: &Path) -> bool {
        self.0.iter().all(|(name, content)| {
            let current = path(data, encryption, name).and_then(|path| Ok(std::fs::read_to_string(path)?));
            match content {
                Some(content) => current.is_ok_and(|current| current == *content),
                None => current.is_err(),
            }
        })
    }

    /// Saves the files for installation at the next start.
    pub fn save_pending(&self, data: &Path) -> anyhow::Result<()> {
        write_private(&pending(data), &serde_json::to_vec(self)?)
    }
}

// Prints only the names: the contents are keys.
impl std::fmt::Debug for Files {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_list().entries(self.0.keys()).finish()
    }
}

/// Installs the files that were saved before this start.
pub fn install_pending(data: &Path, encryption: &Path) -> anyhow::Result<()> {
    let pending = pending(data);
    let text = match std::fs::read(&pending) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", pending.display())),
    };
    let files: Files = serde_json::from_slice(&text).with_context(|| format!("{} is invalid", pending.display()))?;
    for (name, content) in &files.0 {
        let path = path(data, encryption, name)?;
        match content {
            Some(content) => write_private(&path, content.as_bytes())?,
            None => remove(&path)?,
        }
    }
    remove(&pending)
}

fn path(data: &Path, encryption: &Path, name: &str) -> anyhow::Result<PathBuf> {
    match name {
        ENCRYPTION => Ok(encryption.to_owned()),
        name if ALLOWED.contains(&name) => Ok(data.join(name)),
        _ => bail!("{name} is no file that servers share"),
    }
}

fn pending(data: &Path) -> PathBuf {
    data.join("pki/pending.json")
}

fn remove(path: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_files_are_installed_at_the_next_start() {
        let directory = tempfile::tempdir().unwrap();
        let (data, encryption) = (directory.path(), directory.path().join("elsewhere.yaml"));
        std::fs::create_dir_all(data.join("pki")).unwrap();
        std::fs::write(data.join("pki/ca-cross.crt"), "old").unwrap();
        let content = [("pki/ca.crt", Some("new")), ("pki/ca-cross.crt", None), (ENCRYPTION, Some("keys"))];
        let files = Files(content.map(|(name, text)| (name.to_owned(), text.map(str::to_owned))).into());
        install_pending(data, &encryption).unwrap();
        assert!(!files.are_in(data, &encryption));
        files.save_pending(data).unwrap();
        assert!(!files.are_in(data, &encryption));
        install_pending(data, &encryption).unwrap();
        install_pending(data, &encryption).unwrap();
        assert!(files.are_in(data, &encryption));
        assert_eq!(std::fs::read_to_string(encryption).unwrap(), "keys");
        assert!(!format!("{files:?}").contains("keys"));
        Files([("../root".to_owned(), Some(String::new()))].into()).save_pending(data).unwrap();
        assert!(install_pending(data, data).is_err());
    }
}
