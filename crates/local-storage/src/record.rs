//! The records of volumes and snapshots, and how they are written so that a crash leaves the old or the new one.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use knarr_csi::messages as csi;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// How a volume is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum Kind {
    /// An image file with a filesystem.
    #[serde(rename_all = "camelCase")]
    Filesystem { fs_type: String },
    /// An image file that pods use as a block device.
    Block,
    /// A directory without a limit.
    Directory,
}

/// What a volume was created from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    Snapshot(String),
    Volume(String),
}

impl From<&Source> for csi::VolumeContentSource {
    fn from(source: &Source) -> Self {
        match source {
            Source::Snapshot(id) => Self::snapshot(id),
            Source::Volume(id) => Self::volume(id),
        }
    }
}

/// A volume. Its name is the caller's and never part of a path; its ID is ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    pub id: String,
    pub name: String,
    /// Zero for directories without a limit.
    pub bytes: u64,
    pub kind: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// The filesystem may be smaller than the image: it grows when it is mounted next.
    #[serde(default)]
    pub grow: bool,
}

/// A snapshot: the image or directory of a volume as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    pub id: String,
    pub name: String,
    pub volume: String,
    pub bytes: u64,
    pub kind: Kind,
    /// Seconds since the Unix epoch.
    pub created: i64,
}

/// Something with a directory and a record in it.
pub trait Record: Serialize + DeserializeOwned + Clone {
    /// The file name of the record.
    const FILE: &'static str;
    fn id(&self) -> &str;
    fn name(&self) -> &str;
}

impl Record for Volume {
    const FILE: &'static str = "volume.json";
    fn id(&self) -> &str {
        &self.id
    }
    fn name(&self) -> &str {
        &self.name
    }
}

impl Record for Snapshot {
    const FILE: &'static str = "snapshot.json";
    fn id(&self) -> &str {
        &self.id
    }
    fn name(&self) -> &str {
        &self.name
    }
}

/// A random ID, which is also a safe file name.
pub fn random_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Whether this is an ID of ours.
pub fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Writes a record into its directory: durable, and never half.
pub fn write<R: Record>(directory: &Path, record: &R) -> Result<(), Error> {
    let text = serde_json::to_vec_pretty(record).map_err(|error| Error::Internal(error.to_string()))?;
    let (path, new) = (directory.join(R::FILE), directory.join("record.new"));
    let mut file = File::create(&new).map_err(Error::file("create", &new))?;
    file.write_all(&text).and_then(|()| file.sync_all()).map_err(Error::file("write", &new))?;
    fs::rename(&new, &path).map_err(Error::file("rename", &new))?;
    sync_directory(directory)
}

/// Reads the record of a directory.
pub fn read<R: Record>(directory: &Path) -> Result<R, Error> {
    let path = directory.join(R::FILE);
    let text = fs::read(&path).map_err(Error::file("read", &path))?;
    serde_json::from_slice(&text).map_err(|error| Error::Internal(format!("{}: {error}", path.display())))
}

/// Makes the names in a directory durable.
pub fn sync_directory(directory: &Path) -> Result<(), Error> {
    File::open(directory).and_then(|open| open.sync_all()).map_err(Error::file("sync", directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_never_paths() {
        assert!(is_id(&random_id()));
        for text in ["", "..", "../../etc", "/", "0123", &"A".repeat(32), &"/".repeat(32), &"é".repeat(16)] {
            assert!(!is_id(text), "{text}");
        }
    }

    #[test]
    fn records_survive_and_a_torn_write_leaves_the_old_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let volume = Volume {
            id: random_id(),
            name: "../pvc-1".into(),
            bytes: 1 << 30,
            kind: Kind::Filesystem { fs_type: "ext4".into() },
            source: Some(Source::Snapshot(random_id())),
            grow: true,
        };
        write(directory.path(), &volume).expect("writes");
        fs::write(directory.path().join("record.new"), "{\"id\": \"tor").expect("a torn write");
        assert_eq!(read::<Volume>(directory.path()).expect("reads"), volume);
        let larger = Volume { bytes: 2 << 30, ..volume };
        write(directory.path(), &larger).expect("writes over the torn one");
        assert_eq!(read::<Volume>(directory.path()).expect("reads"), larger);
    }
}
