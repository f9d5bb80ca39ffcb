//! The registries file of a node: read at start, and again whenever it changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use knarr_cri::containerd::Registries;
use knarr_kubelet::inotify::Watcher;
use tokio::sync::watch;

/// How long a directory that cannot be watched, such as one that does not exist yet, is not tried again.
const RETRY: Duration = Duration::from_secs(30);
/// Editors write a file in several steps.
const QUIET: Duration = Duration::from_millis(200);

/// The registries file of a node, and where containerd reads what follows from it.
#[derive(Clone)]
pub struct RegistriesFile {
    pub path: PathBuf,
    pub hosts: PathBuf,
    pub current: Arc<watch::Sender<Arc<Registries>>>,
    /// What was in the file when it was read: a change before it is watched is one, too.
    content: Option<Vec<u8>>,
}

impl RegistriesFile {
    /// Reads the file; a wrong one is an error.
    pub fn open(path: PathBuf, hosts: &Path) -> anyhow::Result<Self> {
        let content = content(&path);
        let registries = load(&path, hosts).context("cannot use the registries file")?;
        let current = Arc::new(watch::channel(Arc::new(registries)).0);
        Ok(Self { path, hosts: hosts.to_path_buf(), current, content })
    }

    /// Applies changes of the file for as long as the node runs. A wrong file changes nothing.
    pub async fn keep(mut self) {
        let directory = self.path.parent().unwrap_or(Path::new("/")).to_path_buf();
        loop {
            let Ok(watcher) = Watcher::new(&directory) else {
                tokio::time::sleep(RETRY).await;
                continue;
            };
            loop {
                self.reload();
                match watcher.changed().await {
                    Ok(flags) if flags.intersects(gone()) => break,
                    Ok(_) => tokio::time::sleep(QUIET).await,
                    Err(error) => {
                        tracing::warn!(%error, directory = %directory.display(), "cannot watch the registries file");
                        break;
                    }
                }
            }
            tokio::time::sleep(QUIET).await;
        }
    }

    /// Applies the file if its content has changed.
    fn reload(&mut self) -> Reload {
        let now = content(&self.path);
        if now == self.content {
            return Reload::Unchanged;
        }
        self.content = now;
        match load(&self.path, &self.hosts) {
            Ok(registries) => {
                tracing::info!(file = %self.path.display(), "the registries file was applied");
                self.current.send_replace(Arc::new(registries));
                Reload::Applied
            }
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "the registries file was not applied");
                Reload::Refused
            }
        }
    }
}

/// What reading the file again led to.
#[derive(Debug, PartialEq, Eq)]
enum Reload {
    Unchanged,
    Applied,
    Refused,
}

/// The directory itself was removed or renamed.
fn gone() -> nix::sys::inotify::AddWatchFlags {
    use nix::sys::inotify::AddWatchFlags;
    AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_IGNORED
}

fn content(path: &Path) -> Option<Vec<u8>> {
    std::fs::read(path).ok()
}

fn load(path: &Path, hosts: &Path) -> anyhow::Result<Registries> {
    let registries = Registries::read(path)?;
    registries.write(hosts)?;
    Ok(registries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_file_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (path, hosts) = (directory.path().join("registries.yaml"), directory.path().join("hosts"));
        std::fs::write(&path, "mirrors: {a.io: {endpoint: [m]}}").unwrap();
        let mut file = RegistriesFile::open(path.clone(), &hosts).unwrap();
        let changes = file.current.subscribe();
        let mirror = |name: &str| hosts.join(name).join("hosts.toml").exists();
        std::fs::write(&path, "mirrors: [").unwrap();
        assert_eq!((file.reload(), file.reload()), (Reload::Refused, Reload::Unchanged));
        assert!(mirror("a.io") && !changes.has_changed().unwrap());
        assert!(RegistriesFile::open(path.clone(), &hosts).is_err());
        std::fs::write(&path, "mirrors: {b.io: {endpoint: [m]}}").unwrap();
        assert_eq!((file.reload(), file.reload()), (Reload::Applied, Reload::Unchanged));
        assert!(mirror("b.io") && !mirror("a.io") && changes.has_changed().unwrap());
    }

    #[tokio::test]
    async fn changes_are_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, hosts) = (directory.path().join("registries.yaml"), directory.path().join("hosts"));
        let file = RegistriesFile::open(path.clone(), &hosts).unwrap();
        let mut changes = file.current.subscribe();
        let running = tokio::spawn(file.keep());
        let mut until_mirror = async |name: &str| {
            while !hosts.join(name).join("hosts.toml").exists() {
                tokio::time::timeout(Duration::from_secs(20), changes.changed()).await.unwrap().unwrap();
            }
        };
        std::fs::write(&path, "mirrors: {a.io: {endpoint: [m]}}").unwrap();
        until_mirror("a.io").await;
        std::fs::write(directory.path().join("new"), "mirrors: {b.io: {endpoint: [m]}}").unwrap();
        std::fs::rename(directory.path().join("new"), &path).unwrap();
        until_mirror("b.io").await;
        running.abort();
    }
}
