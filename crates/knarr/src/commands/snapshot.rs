//! `knarr snapshot save|list|restore`: saves the store to a file or to S3-compatible storage, and restores it.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use knarr_object_storage::Location;
use knarr_store::Store as _;
use serde::{Deserialize, Serialize};

use super::snapshot_storage::{SnapshotStorageArguments, temporary};
use crate::snapshot_place::SnapshotPlace;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    command: Snapshot,
    /// Data directory of the server.
    #[arg(long, global = true, default_value = "/var/lib/knarr")]
    data_dir: PathBuf,
}

#[derive(Subcommand, Clone, Debug)]
enum Snapshot {
    /// Save the store to a file, or to S3-compatible storage. The server may be running.
    Save {
        /// File, or object such as s3://BUCKET/KEY.
        file: SnapshotPlace,
        #[command(flatten)]
        storage: SnapshotStorageArguments,
    },
    /// List the snapshots in S3-compatible storage.
    List {
        /// Bucket and start of the keys, such as s3://BUCKET/PREFIX.
        location: Location,
        #[command(flatten)]
        storage: SnapshotStorageArguments,
    },
    /// Restore the store from a file or from S3-compatible storage. The data directory must not contain a store.
    Restore {
        /// File, or object such as s3://BUCKET/KEY.
        file: SnapshotPlace,
        /// Number of revisions to skip, so that clients notice that the store was restored.
        #[arg(long, default_value_t = 1_000_000_000)]
        skip_revisions: u64,
        #[command(flatten)]
        storage: SnapshotStorageArguments,
    },
}

/// How a snapshot came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    Command,
    Schedule,
}

/// The last snapshot that was made on this host. Wherever it was saved, this is noted in the data directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastSnapshot {
    pub file: PathBuf,
    pub revision: u64,
    pub time: String,
}

impl LastSnapshot {
    fn path(data: &Path, occasion: Occasion) -> PathBuf {
        data.join(match occasion {
            Occasion::Command => "last-snapshot.json",
            Occasion::Schedule => "last-scheduled-snapshot.json",
        })
    }

    pub fn load(data: &Path, occasion: Occasion) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(Self::path(data, occasion)).ok()?).ok()
    }

    pub fn save(&self, data: &Path, occasion: Occasion) -> anyhow::Result<()> {
        let path = Self::path(data, occasion);
        std::fs::write(&path, serde_json::to_vec(self)?).with_context(|| format!("cannot write {}", path.display()))
    }
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { command, data_dir: data } = arguments;
    match command {
        Snapshot::Save { file: SnapshotPlace::File(file), .. } => {
            let revision = write(&file, &data).await?;
            note(&SnapshotPlace::File(file), revision, &data)
        }
        Snapshot::Save { file: SnapshotPlace::Remote(location), storage } => {
            let file = temporary(&data)?;
            let revision = write(&file, &data).await?;
            let stored = storage.open(&location.bucket)?.put(&location.key, &file).await;
            stored.with_context(|| format!("cannot upload to {location}"))?;
            note(&SnapshotPlace::Remote(location), revision, &data)
        }
        Snapshot::List { location, storage } => list(&location, &storage).await,
        Snapshot::Restore { file, .. } if crate::servers::has_member(&data)? => bail!(
            "this server keeps its objects in etcd: stop all servers of the cluster, and restore with \
             `knarr server --cluster-reset --cluster-reset-restore-path {file}`"
        ),
        Snapshot::Restore { file, skip_revisions, storage } => {
            let local = storage.fetch(&file, &data).await?;
            restore(&file, local.path(), &data.join("store"), skip_revisions)
        }
    }
}

async fn list(location: &Location, storage: &SnapshotStorageArguments) -> anyhow::Result<()> {
    let objects = storage.open(&location.bucket)?.list(&location.key).await;
    for object in objects.with_context(|| format!("cannot list {location}"))? {
        println!("{:>12} s3://{}/{}", object.bytes, location.bucket, object.key);
    }
    Ok(())
}

/// Records a snapshot that was saved.
fn note(place: &SnapshotPlace, revision: u64, data: &Path) -> anyhow::Result<()> {
    let file = PathBuf::from(place.to_string());
    LastSnapshot { file, revision, time: format!("{:.0}", Timestamp::now()) }.save(data, Occasion::Command)?;
    println!("saved revision {revision} to {place}");
    Ok(())
}

/// Saves the store of the server to a file, and returns its revision.
async fn write(file: &Path, data: &Path) -> anyhow::Result<u64> {
    let shared = crate::servers::connect_store(data).await?;
    let store = data.join("store");
    if shared.is_none() && !store.exists() {
        bail!(
            "there is no store in {}: set --data-dir to the server's data directory (save a store in etcd with etcdctl)",
            store.display()
        );
    }
    // A file of its own, which is gone if this fails: another command may save to the same place.
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    anyhow::ensure!(directory.is_dir(), "cannot write {}: {} is no directory", file.display(), directory.display());
    let beside = temporary(directory)?;
    let opened = File::options().write(true).open(&beside);
    let mut image = BufWriter::new(opened.with_context(|| format!("cannot write {}", beside.display()))?);
    let revision = match shared {
        Some(store) => store.snapshot(&mut image).await.context("cannot save the store in etcd")?,
        None => knarr_store::export(&store, &mut image)
            .with_context(|| format!("cannot save the store in {}", store.display()))?,
    };
    image.flush()?;
    image.get_ref().sync_all()?;
    knarr_files::rename_durably(&beside, file).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(revision)
}

fn restore(place: &SnapshotPlace, file: &Path, store: &Path, skip: u64) -> anyhow::Result<()> {
    if store.exists() {
        bail!("{} already exists: move it away first", store.display());
    }
    let image = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let revision =
        knarr_store::restore(BufReader::new(image), store, skip).with_context(|| format!("cannot restore {place}"))?;
    println!("restored to {} at revision {revision}", store.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_snapshot_is_saved_as_a_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let store = knarr_store::Embedded::open(&data.join("store"), Default::default()).unwrap();
        store.create("/registry/a", bytes::Bytes::from("1"), None).await.unwrap();
        let target = directory.path().join("target");
        std::fs::create_dir(&target).unwrap();
        let names = || {
            let entries = std::fs::read_dir(&target).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        // The place is taken by a directory: nothing remains of what was written.
        std::fs::create_dir_all(target.join("a.knarr/b")).unwrap();
        assert!(write(&target.join("a.knarr"), &data).await.is_err());
        assert_eq!(names(), ["a.knarr"]);
        assert!(write(&target.join("missing/a.knarr"), &data).await.is_err());
        std::fs::remove_dir_all(target.join("a.knarr")).unwrap();
        let (one, other) = (target.join("a.knarr"), target.join("a.copy"));
        let (saved, copied) = tokio::join!(write(&one, &data), write(&other, &data));
        assert_eq!((saved.unwrap(), copied.unwrap()), (2, 2));
        assert_eq!(names().len(), 2);
        let restored = directory.path().join("restored");
        assert_eq!(knarr_store::restore(File::open(one).unwrap(), &restored, 0).unwrap(), 2);
    }
}
