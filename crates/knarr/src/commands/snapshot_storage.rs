//! Snapshots in S3-compatible storage, for commands and for the schedule.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use knarr_object_storage::{Location, Settings, Storage, Url};
use tempfile::TempPath;

use crate::snapshot_place::SnapshotPlace;

#[derive(Args, Clone, Debug)]
pub struct SnapshotStorageArguments {
    /// URL of S3-compatible storage, such as https://storage.example.org:9000 [default: Amazon S3 of the region].
    #[arg(long, value_name = "URL")]
    pub snapshot_s3_endpoint: Option<Url>,
    /// Region of the storage.
    #[arg(long, value_name = "REGION", default_value = "us-east-1")]
    pub snapshot_s3_region: String,
    /// File with the lines `aws_access_key_id = …` and `aws_secret_access_key = …`, which other users cannot read.
    #[arg(long, value_name = "FILE")]
    pub snapshot_s3_credentials: Option<PathBuf>,
    /// CA certificates (PEM) for the storage's serving certificate [default: those of the host].
    #[arg(long, value_name = "FILE")]
    pub snapshot_s3_cafile: Option<PathBuf>,
}

impl SnapshotStorageArguments {
    pub fn open(&self, bucket: &str) -> anyhow::Result<Storage> {
        let settings = Settings {
            endpoint: self.snapshot_s3_endpoint.clone(),
            region: self.snapshot_s3_region.clone(),
            credentials: self.snapshot_s3_credentials.clone(),
            authority: self.snapshot_s3_cafile.clone(),
        };
        Ok(Storage::new(bucket, &settings)?)
    }

    /// A snapshot as a local file; one from the storage is downloaded, and deleted when it is dropped.
    pub async fn fetch(&self, place: &SnapshotPlace, directory: &Path) -> anyhow::Result<LocalSnapshot> {
        let location = match place {
            SnapshotPlace::File(path) => return Ok(LocalSnapshot::Given(path.clone())),
            SnapshotPlace::Remote(location) => location,
        };
        let file = temporary(directory)?;
        let storage = self.open(&location.bucket)?;
        storage.get(&location.key, &file).await.with_context(|| format!("cannot download {location}"))?;
        Ok(LocalSnapshot::Downloaded(file))
    }
}

/// A private file in a directory, which is deleted when dropped.
pub fn temporary(directory: &Path) -> anyhow::Result<TempPath> {
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let file = tempfile::Builder::new().prefix("snapshot-").suffix(".tmp").tempfile_in(directory);
    Ok(file.with_context(|| format!("cannot write to {}", directory.display()))?.into_temp_path())
}

pub enum LocalSnapshot {
    Given(PathBuf),
    Downloaded(TempPath),
}

impl LocalSnapshot {
    pub fn path(&self) -> &Path {
        match self {
            LocalSnapshot::Given(path) => path,
            LocalSnapshot::Downloaded(path) => path,
        }
    }
}

/// The directory of one server's scheduled snapshots in the storage.
#[derive(Clone)]
pub struct Mirror {
    storage: Storage,
    location: Location,
}

/// What makes the storage hold the newest snapshots.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    upload: Vec<String>,
    delete: Vec<String>,
}

impl Mirror {
    pub fn new(storage: Storage, parent: &Location, server: &str) -> Self {
        let location = Location { bucket: parent.bucket.clone(), key: parent.child(server) };
        Self { storage, location }
    }

    /// Uploads what of the newest snapshots is missing, then deletes older ones. Other objects are left as they are.
    pub async fn sync(&self, directory: &Path, local: &[String], keep: usize) -> anyhow::Result<()> {
        let prefix = self.location.child("");
        let listed = self.storage.list(&prefix).await.with_context(|| format!("cannot list {}", self.location))?;
        let remote: Vec<String> =
            listed.iter().filter_map(|object| object.key.strip_prefix(&prefix)).map(str::to_owned).collect();
        let plan = plan(local, &remote, keep);
        for name in plan.upload {
            let uploaded = self.storage.put(&self.location.child(&name), &directory.join(&name)).await;
            uploaded.with_context(|| format!("cannot upload {name} to {}", self.location))?;
            tracing::info!(name, to = %self.location, "uploaded a snapshot");
        }
        for name in plan.delete {
            let deleted = self.storage.delete(&self.location.child(&name)).await;
            deleted.with_context(|| format!("cannot delete {name} from {}", self.location))?;
        }
        Ok(())
    }
}

fn plan(local: &[String], remote: &[String], keep: usize) -> Plan {
    let is_scheduled = |name: &&String| super::snapshot_schedule::saved_at(name).is_some();
    let (local, remote): (BTreeSet<&String>, BTreeSet<&String>) =
        (local.iter().filter(is_scheduled).collect(), remote.iter().filter(is_scheduled).collect());
    // Names sort by time.
    let newest: BTreeSet<&String> = (&local | &remote).into_iter().rev().take(keep).collect();
    let names = |names: BTreeSet<&String>| names.into_iter().cloned().collect();
    Plan { upload: names(&(&local & &newest) - &remote), delete: names(&remote - &newest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(days: &[u8]) -> Vec<String> {
        days.iter().map(|day| format!("knarr-202601{day:02}T100000Z.snapshot")).collect()
    }

    #[test]
    fn the_storage_holds_the_newest_snapshots() {
        for (local, remote, keep, upload, delete) in [
            (&[][..], &[][..], 2, &[][..], &[][..]),
            (&[1], &[], 2, &[1], &[]),
            (&[1, 2], &[1], 2, &[2], &[]),
            (&[1, 2, 3], &[1], 2, &[2, 3], &[1]),
            // What the disk lost is kept, as long as it is new enough.
            (&[3], &[1, 2], 2, &[3], &[1]),
            (&[], &[1, 2, 3], 2, &[], &[1]),
            // A clock was wrong: what is older than all that are kept is not uploaded, only to be deleted.
            (&[1], &[2, 3], 2, &[], &[]),
        ] {
            let mut remote = names(remote);
            remote.push("by-hand.snapshot".to_owned());
            let expected = Plan { upload: names(upload), delete: names(delete) };
            assert_eq!(plan(&names(local), &remote, keep), expected, "{local:?} {remote:?}");
        }
    }
}
