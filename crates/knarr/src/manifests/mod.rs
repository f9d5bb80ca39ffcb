//! The folder of manifests: what lies in it is applied at the start and when it changes; what is taken out of it is
//! deleted from the cluster.
//!
//! Each file's objects are recorded beside the folder, so that it is known after a restart what a file made that has
//! gone since. `file` reads manifests, `record` remembers, `apply` acts.

mod apply;
mod file;
mod record;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use knarr_client::kube::Client;
use knarr_kubelet::inotify::Watcher;

use file::Manifest;
use record::Record;

/// Writes to a folder come in bursts.
const SETTLE: Duration = Duration::from_millis(100);
const RETRY: Duration = Duration::from_secs(5);

/// Follows the folder until dropped.
pub async fn run(client: Client, folder: PathBuf, record: PathBuf) {
    loop {
        if let Err(error) = follow(&client, &folder, &record).await {
            tracing::warn!(folder = %folder.display(), error = format!("{error:#}"), "the manifests cannot be followed");
            tokio::time::sleep(RETRY).await;
        }
    }
}

async fn follow(client: &Client, folder: &Path, record: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    let watcher = Watcher::new(folder)?;
    let mut record = Record::open(record);
    // What a file held when it was last applied.
    let mut applied: BTreeMap<String, String> = BTreeMap::new();
    loop {
        let is_done = bring_about(client, folder, &mut record, &mut applied).await?;
        let changed = async {
            watcher.changed().await?;
            tokio::time::sleep(SETTLE).await;
            Ok::<(), std::io::Error>(())
        };
        if is_done {
            changed.await?;
        } else if let Ok(changed) = tokio::time::timeout(RETRY, changed).await {
            // What failed may need another file, or a kind that is not served yet.
            changed?;
        }
    }
}

/// Applies what is new or other, deletes what is gone. Tells whether all of it succeeded.
async fn bring_about(
    client: &Client,
    folder: &Path,
    record: &mut Record,
    applied: &mut BTreeMap<String, String>,
) -> anyhow::Result<bool> {
    let mut is_done = true;
    let present = file::list(folder)?;
    for name in record.files().into_iter().filter(|name| !present.iter().any(|file| file.name == *name)) {
        is_done &= apply::delete_all(client, record, &name).await;
        applied.remove(&name);
    }
    for file in present {
        if applied.get(&file.name) == Some(&file.text) {
            continue;
        }
        let manifest = match Manifest::parse(&file.text) {
            Ok(manifest) => manifest,
            Err(error) => {
                tracing::warn!(file = file.name, error = format!("{error:#}"), "a manifest cannot be read");
                // It is read again when it changes.
                applied.insert(file.name, file.text);
                continue;
            }
        };
        if apply::apply(client, record, &file.name, &manifest).await {
            tracing::info!(file = file.name, objects = manifest.objects.len(), "a manifest was applied");
            applied.insert(file.name, file.text);
        } else {
            is_done = false;
        }
    }
    Ok(is_done)
}
