//! The manifests directory: its objects are applied at startup and on changes; objects removed from it are deleted from the
//! cluster.
//!
//! Each file's objects are recorded beside the directory, so that objects of removed files are known after a restart. `file`
//! reads manifests, `record` persists what was created, `apply` talks to the API.

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

/// Writes to a directory come in bursts.
const DEBOUNCE: Duration = Duration::from_millis(100);
const RETRY: Duration = Duration::from_secs(5);

/// Watches the directory until dropped.
pub async fn run(client: Client, directory: PathBuf, record: PathBuf) {
    loop {
        if let Err(error) = watch(&client, &directory, &record).await {
            tracing::warn!(directory = %directory.display(), error = format!("{error:#}"), "cannot watch the manifests");
            tokio::time::sleep(RETRY).await;
        }
    }
}

async fn watch(client: &Client, directory: &Path, record: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory)?;
    let watcher = Watcher::new(directory)?;
    let mut record = Record::open(record);
    // The content of each file when it was last applied.
    let mut applied: BTreeMap<String, String> = BTreeMap::new();
    loop {
        let is_done = sync(client, directory, &mut record, &mut applied).await?;
        let changed = async {
            watcher.changed().await?;
            tokio::time::sleep(DEBOUNCE).await;
            Ok::<(), std::io::Error>(())
        };
        if is_done {
            changed.await?;
        } else if let Ok(changed) = tokio::time::timeout(RETRY, changed).await {
            // A failure may need another file, or a kind that is not served yet.
            changed?;
        }
    }
}

/// Applies new and changed files, deletes the objects of removed ones. Returns whether all succeeded.
async fn sync(
    client: &Client,
    directory: &Path,
    record: &mut Record,
    applied: &mut BTreeMap<String, String>,
) -> anyhow::Result<bool> {
    let mut is_done = true;
    let present = file::list(directory)?;
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
                tracing::warn!(file = file.name, error = format!("{error:#}"), "cannot parse a manifest");
                // It is read again when it changes.
                applied.insert(file.name, file.text);
                continue;
            }
        };
        if apply::apply(client, record, &file.name, &manifest).await {
            tracing::info!(file = file.name, objects = manifest.objects.len(), "applied a manifest");
            applied.insert(file.name, file.text);
        } else {
            is_done = false;
        }
    }
    Ok(is_done)
}
